"""Derives generations from the calls of a membership.

A membership assigns and revokes partitions as its protocol does: a Kafka group all at once, a ZooKeeper group a few at
a time. A generation of a `ConsumerGroup` is one complete assignment, which ends before the next one begins. The
`GenerationTracker` is the listener of the membership, and ends the current generation at any change. `KafkaGenerations`
and `ZooKeeperGenerations` are the two memberships. They also notify the tracker when an assignment is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from allocator.compat.generation import Generation
from allocator.compat.group_config import ConsumerGroupConfig, kafka_settings_of
from allocator.core.aio import TaskGroup
from allocator.core.client import Committer, Identity, KafkaClient
from allocator.core.membership import AssignmentListener
from allocator.protocols.kafka_classic import KafkaMembership
from allocator.protocols.zookeeper import (
    AssignmentDocument,
    Paths,
    Store,
    ZooKeeperClient,
    ZooKeeperMembership,
    ZooKeeperSettings,
)
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

T = TypeVar("T")

# Seconds until a ZooKeeper member without partitions begins a generation. The assignment lists only members that own
# partitions, so the member cannot know whether it will get some. Higher: that generation begins later; lower: a member
# whose partitions arrive late has an extra generation without partitions.
NOTHING_AFTER_S = 1.0


@dataclass(frozen=True)
class PendingGeneration:
    """A generation that can begin."""

    id: int
    member_id: str
    partitions: Partitions
    committer: Committer | None = field(default=None, compare=False)
    """The identity that commits carry; None if Kafka does not know the members."""


class GenerationTracker(AssignmentListener):
    """The `AssignmentListener` of a `ConsumerGroup`: any change of the owned partitions ends the current generation.

    Guarantee: `revoked`, `lost` and `ending` return only after the current generation has ended with all its functions,
    and the membership waits for them. The next generation begins with the argument of the last `settle`, which the
    membership calls when an assignment is complete.
    """

    def __init__(self) -> None:
        self.pending: PendingGeneration | None = None
        self.current: Generation | None = None
        """The newest generation, until all its functions have ended."""
        self.reason: BaseException | None = None
        """The error that ends this membership."""
        self._suspended = False
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        # does not wait until the generation has ended, because gained partitions block no other member
        self.pending = None
        self._end(f"it gains {len(partitions)} partitions")

    async def revoked(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are revoked")

    async def lost(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are lost")

    def suspended(self, why: str) -> None:
        # ends the user's functions, because they read directly and must stop before another member owns the partitions
        self._suspended = True
        self._end(why)

    def resumed(self) -> None:
        self._suspended = False
        self._changed.set()

    def failed(self, error: BaseException) -> None:
        self.stop(error)

    async def ending(self, why: str) -> None:
        """Ends the current generation, and returns when all its functions have ended."""
        self.pending = None
        generation = self.current
        if generation is not None:
            generation.end(why)
            await generation.over()

    def settle(self, pending: PendingGeneration) -> None:
        """Makes a complete assignment the next generation. Does nothing while a generation with the same partitions is
        active."""
        current = self.current
        if current is not None and not current.done:
            if (current.member_id, current.partitions) == (pending.member_id, pending.partitions):
                return
            current.end("the assignment changed")
        if pending != self.pending:
            self.pending = pending
            self._changed.set()

    # -- called by the group --------------------------------------------------------------------------------------

    def stop(self, reason: BaseException) -> None:
        """Ends the current generation, and makes `settled` raise `reason`. Only the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._end(str(reason))
            self._stop.set()
            self._changed.set()

    async def settled(self) -> PendingGeneration:
        """Waits for the next generation. Raises the reason if the membership ends instead."""
        while True:
            self._changed.clear()
            if self.reason is not None:
                raise self.reason
            if self.pending is not None and not self._suspended:
                return self.pending
            await self._changed.wait()

    def may_begin(self, pending: PendingGeneration) -> bool:
        """Returns whether `pending` is still the current assignment, and the membership is intact."""
        return self.pending is pending and not self._suspended and self.reason is None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. If the membership ends first, cancels `work`, waits until it has ended and
        raises the reason."""
        return await TaskGroup().run(work, stop=self._stopped())

    async def _stopped(self) -> None:
        await self._stop.wait()
        assert self.reason is not None
        raise self.reason

    def _end(self, why: str) -> None:
        if self.current is not None:
            self.current.end(why)


class KafkaGenerations(KafkaMembership):
    """Begins a generation with every join, even if the partitions are unchanged or there are none."""

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, tracker: GenerationTracker) -> None:
        super().__init__(client, config.group, tracker, config.assignors(), kafka_settings_of(config))
        self._tracker = tracker

    def rejoin(self, why: str) -> None:
        self._tracker.pending = None
        self.group.request_rejoin(why)

    async def prepare(self) -> None:
        await self._tracker.ending("the group rebalances")
        await super().prepare()

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        before = self.held
        await super().joined(generation, protocol, assignment)
        if before <= self.held:  # otherwise the member joins again, so that other members get the revoked partitions
            committer = _GenerationCommitter(Identity(generation, self.member_id), self)
            self._tracker.settle(PendingGeneration(generation, self.member_id, self.held, committer))


class _GenerationCommitter:
    """The `Committer` of one generation, until the next one begins."""

    def __init__(self, identity: Identity, member: KafkaGenerations) -> None:
        self._identity = identity
        self._member = member

    @property
    def identity(self) -> Identity | None:
        return self._identity if self._member.identity == self._identity else None

    def may_commit(self, partition: TopicPartition) -> bool:
        return self._member.may_commit(partition)

    def refused(self, code: int, sent: Identity) -> bool | None:
        return self._member.refused(code, sent) and self.identity is not None


class ZooKeeperGenerations(ZooKeeperMembership):
    """Begins a generation when the member owns its complete assignment.

    The assignment is complete when the member has claimed all its partitions in the document, and the document promises
    it no further partitions. If the current owners do not release the promised partitions within the rebalance timeout,
    the generation begins without them.
    """

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, tracker: GenerationTracker) -> None:
        assert config.zookeeper is not None
        zk = ZooKeeperClient(
            config.zookeeper, session_timeout_s=config.session_timeout_s, options=config.zookeeper_options
        )
        super().__init__(
            Store(zk, Paths(config.root, config.group)),
            tracker,
            client,
            config.assignors(),
            ZooKeeperSettings(
                name=config.client_id,
                topics=frozenset(config.topics),
                connect_timeout_s=config.connect_timeout_s,
                topic_poll_s=config.topic_poll_s,
            ),
            followed=self._read,
        )
        self._tracker = tracker
        self._promise_s = config.rebalance_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = 0.0

    def rejoin(self, why: str) -> None:
        """Does nothing: with ZooKeeper, the leader detects every change that needs a new assignment."""

    async def leave(self) -> None:
        self._stop_timer()
        await super().leave()

    def _read(self, document: AssignmentDocument) -> None:
        if document.owners.get(self.member_id, NO_PARTITIONS) != self.held:
            return  # the member has not claimed all its partitions yet
        if document.promised.get(self.member_id):
            self._settle_after(self._promise_s)
        elif not self.held:
            self._settle_after(NOTHING_AFTER_S)
        else:
            self._settle()

    def _settle_after(self, pause_s: float) -> None:
        if self._timer is None or self._pause_s != pause_s:  # otherwise a timer for this time is already running
            self._stop_timer()
            self._pause_s = pause_s
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._settle)

    def _settle(self) -> None:
        self._stop_timer()
        self._tracker.settle(PendingGeneration(self.generation, self.member_id, self.held))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


GenerationSource = Union[KafkaGenerations, ZooKeeperGenerations]
"""A membership with `rejoin`, which requests a new assignment if the group does not detect the need itself."""
