"""Builds generations from the calls of a membership.

A membership assigns and revokes partitions as its protocol does: a Kafka group all at once, a ZooKeeper group a few at
a time. A `ConsumerGroup` wants generations instead: one whole assignment, which ends before the next one begins. The
`GenerationTracker` listens to the membership and ends the current generation at any change. `KafkaGenerations` and
`ZooKeeperGenerations` are the two memberships, with one addition: they tell the tracker when a whole assignment stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from allocator.compat.generation import Generation
from allocator.compat.group_config import ConsumerGroupConfig, kafka_settings_of
from allocator.core.aio import TaskGroup
from allocator.core.client import KafkaClient
from allocator.core.membership import AssignmentListener, ZooKeeperMembership, ZooKeeperSettings
from allocator.core.offsets import Committer, Identity
from allocator.core.znodes import AssignmentDocument, Paths
from allocator.core.zookeeper import ZooKeeperClient
from allocator.protocols.kafka_classic import KafkaMembership
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

T = TypeVar("T")

# An assignment in ZooKeeper lists only members that own partitions. So a member that finds none waits this long before
# its generation begins without partitions. More: that generation begins later. Less: a member whose partitions arrive
# late has two generations, the first of them without partitions.
NOTHING_AFTER_S = 1.0


@dataclass(frozen=True)
class PendingGeneration:
    """A generation that can begin."""

    id: int
    member_id: str
    partitions: Partitions
    committer: Committer | None = field(default=None, compare=False)
    """The identity that its commits carry; None if Kafka does not know the members."""


class GenerationTracker(AssignmentListener):
    """The `AssignmentListener` of a `ConsumerGroup`: any change of the held partitions ends the current generation.

    Guarantee: `revoked`, `lost` and `ending` return only when the current generation is over, and the membership waits
    for them. The next generation begins with the argument of the last `settle`, which the membership calls when a whole
    assignment stands.
    """

    def __init__(self) -> None:
        self.pending: PendingGeneration | None = None
        self.current: Generation | None = None
        """The generation that began last, until it has ended."""
        self.reason: BaseException | None = None
        """The error that ends this membership."""
        self._suspended = False
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        # not awaited: no other member waits for gained partitions
        self.pending = None
        self._end(f"it gains {len(partitions)} partitions")

    async def revoked(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are revoked")

    async def lost(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are lost")

    def suspended(self, why: str) -> None:
        # the user's functions read by themselves: they must have ended before another member owns the partitions
        self._suspended = True
        self._end(why)

    def resumed(self) -> None:
        self._suspended = False
        self._changed.set()

    def failed(self, error: BaseException) -> None:
        self.stop(error)

    async def ending(self, why: str) -> None:
        """Ends the current generation; returns when it is over."""
        self.pending = None
        generation = self.current
        if generation is not None:
            generation.end(why)
            await generation.over()

    def settle(self, pending: PendingGeneration) -> None:
        """Notes that a whole assignment is in place. Changes nothing while a generation with the same
        partitions is active."""
        current = self.current
        if current is not None and not current.done:
            if (current.member_id, current.partitions) == (pending.member_id, pending.partitions):
                return
            current.end("another assignment stands")
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
        """Whether `pending` is still the current assignment."""
        return self.pending is pending and not self._suspended and self.reason is None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. If the membership ends first, cancels `work`, waits for its end and
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
    """Begins a generation with every join, even if the partitions are the same, or none."""

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
        if before <= self.held:  # otherwise it joins once more, so that other members get the revoked partitions
            committer = _GenerationCommitter(Identity(generation, self.member_id), self)
            self._tracker.settle(PendingGeneration(generation, self.member_id, self.held, committer))


class _GenerationCommitter:
    """Commits as a member of one generation, until the next one has begun."""

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
    """A generation begins when the member holds its whole assignment.

    That is: it holds the partitions that it owns in the assignment, and the assignment promises it no others. If the
    present owners do not release promised partitions within the rebalance timeout, it begins without them.
    """

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, tracker: GenerationTracker) -> None:
        assert config.zookeeper is not None
        super().__init__(
            ZooKeeperClient(
                config.zookeeper, session_timeout_s=config.session_timeout_s, options=config.zookeeper_options
            ),
            Paths(config.root, config.group),
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
        """Does nothing: on ZooKeeper the leader detects every change that needs a new assignment."""

    async def leave(self) -> None:
        self._stop_timer()
        await super().leave()

    def _read(self, document: AssignmentDocument) -> None:
        if document.owners.get(self.member_id, NO_PARTITIONS) != self.held:
            return  # this assignment is not complete yet
        if document.promised.get(self.member_id):
            self._settle_after(self._promise_s)
        elif not self.held:
            self._settle_after(NOTHING_AFTER_S)
        else:
            self._settle()

    def _settle_after(self, pause_s: float) -> None:
        if self._timer is None or self._pause_s != pause_s:  # else the timer is running
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
"""`rejoin` requests a new assignment, unless the group detects by itself that one is due."""
