"""Partitions without a group: those that the user names, or all partitions of the topics that the user names.

Guarantee: none about other processes. With this membership the user says that no other process reads these partitions,
or that it does not matter. Reading starts and stops as in any other membership, so a service can be tried without a
group. It is called `fixed`, not static: in Kafka, a static member is a member of a group with an instance id (KIP-345).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from allocator.core.aio import TaskGroup, start_task, wait_for_event
from allocator.core.consumer import MemberParts, MembershipConfig, MembershipOptions
from allocator.core.membership import AssignmentListener, GroupMembership, Membership
from allocator.core.settings import PartitionCountSource, TopicSelection, as_partitions, does_not_exist, names_arguments
from allocator.core.subscription import Phase, Tenure
from allocator.errors import AllocatorError
from allocator.types import NO_PARTITIONS, OffsetStorage, PartitionLike, Partitions, TopicPartition

log = logging.getLogger(__name__)

TOPIC_POLL_S = 10.0  # between two metadata requests


class FixedMembership(GroupMembership):
    """A member without a group. It owns the partitions that the user chose.

    These are `partitions`, or else every partition of `topics`, or of the topics whose name starts with a match of
    `pattern`. New partitions follow within `TOPIC_POLL_S` seconds. If the metadata does not list a topic, the member
    keeps its partitions: a starting broker may report existing topics as missing.
    """

    def __init__(
        self,
        client: PartitionCountSource,
        listener: AssignmentListener,
        *,
        name: str = "",
        topics: frozenset[str] = frozenset(),
        pattern: str | None = None,
        partitions: Iterable[TopicPartition] = (),
    ) -> None:
        super().__init__(listener)
        self.member_id = name
        self.generation = 0
        """Number that increases whenever the owned partitions change."""
        self._client = client
        self._selection = TopicSelection(topics, pattern)
        self._partitions = frozenset(partitions)
        self._active = False

    async def confirm(self) -> bool:
        return self.may_act()

    def may_act(self) -> bool:
        return self._active and self.ended is None

    def polled(self) -> None:
        """Does nothing: without a group, a user who does not poll delays no other member."""

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the previous topics, or the partitions that `assign` chose."""
        self._choose(TopicSelection(topics, pattern), NO_PARTITIONS)

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Replaces the previous topics or partitions with these partitions.

        Returns the partitions that the member owns from this moment on. The caller passes them to the listener.
        A chosen partition that is still draining is released and restarted at once. If a partition does not exist,
        raises ConfigError and changes nothing.
        """
        wanted = frozenset(partitions)
        self._check(wanted)
        self._choose(TopicSelection(), wanted)
        if not self._active:
            return NO_PARTITIONS
        gained = self._wanted() - self.held
        self.tenures.release([tenure for tenure in self._draining() if tenure.partition in gained])
        self._claim(gained)
        return gained

    def _choose(self, selection: TopicSelection, partitions: Partitions) -> None:
        self._selection, self._partitions = selection, partitions
        if self._active:
            self.tenures.drain(self.held - self._wanted())
            self._follow()
            self._changed.set()

    async def connect(self) -> None:
        pass

    async def join(self) -> None:
        """Starts the chosen partitions that the client's metadata lists. Raises ConfigError for a partition that does
        not exist."""
        if self._task is not None:
            raise RuntimeError("join() was called already")
        self._changed, self._stop = asyncio.Event(), asyncio.Event()
        self._check(self._partitions)
        self._follow()
        self._active = True
        await self._take()
        self._changed.set()  # metadata may have changed before `_run` listens
        self._task = start_task(self._run(), "membership")

    async def leave(self) -> None:
        if self._task is None:
            self._active = False
            return
        self._stop.set()
        self._changed.set()
        try:
            await self._until_left()
        finally:
            self._active = False

    async def abandon(self) -> None:
        self._active = False
        await super().abandon()

    async def _run(self) -> None:
        remove = self._client.on_metadata(self._changed.set)
        try:
            await TaskGroup().run(self._keep_up(), topics=self._poll_topics())
        except Exception as error:
            log.exception("reading the chosen partitions ended")
            self.ended = error
            self._listener.failed(error)
        finally:
            remove()
            lost = self.tenures.lose()
            if lost:
                await self._listener.lost(lost)

    async def _keep_up(self) -> None:
        while not self._stop.is_set():
            await self._changed.wait()
            self._changed.clear()
            await self._take()
        await self._take()

    async def _take(self) -> None:
        self.tenures.drain(self.held - self._wanted())
        draining = self._draining()
        if draining:
            self.generation += 1
            await self._give_up(draining)
        gained = self._wanted() - self.tenures.owned  # the choice may have changed in the meantime
        if gained:
            log.info("starts %d partitions", len(gained))
            self._claim(gained)
            await self._listener.assigned(gained)

    def _claim(self, partitions: Partitions) -> None:
        if partitions:
            self.generation += 1
            self.tenures.claim(dict.fromkeys(partitions, 0))  # fence 0: without a group, owners have no order

    def _draining(self) -> list[Tenure]:
        return [tenure for tenure in self.tenures.assignment.values() if tenure.phase is Phase.DRAINING]

    def _wanted(self) -> Partitions:
        if self._stop.is_set():
            return NO_PARTITIONS
        if self._partitions:
            return self._partitions
        found = set()
        for topic in self._selection.among(self._client.topics() | {p.topic for p in self.held}):
            partitions = self._client.partitions(topic)
            if partitions is None:
                found |= {p for p in self.held if p.topic == topic}
            else:
                found |= {TopicPartition(topic, number) for number in partitions}
        return frozenset(found)

    def _check(self, partitions: Partitions) -> None:
        for partition in sorted(partitions):
            error = does_not_exist(self._client, partition)
            if error is not None:
                raise error

    def _follow(self) -> None:
        self._selection.follow(self._client, frozenset(p.topic for p in self._partitions))

    async def _poll_topics(self) -> None:
        while not await wait_for_event(self._stop, TOPIC_POLL_S):
            if not self._partitions:
                with contextlib.suppress(AllocatorError):  # it is requested again after `TOPIC_POLL_S`
                    await self._client.refresh()


@names_arguments
@dataclass(frozen=True)
class Fixed(MembershipOptions):
    """Reads all partitions of the topics, or the given ones, without a group that assigns partitions."""

    name = "fixed"
    storages: ClassVar[tuple[OffsetStorage, ...]] = ("kafka", "both", "zookeeper")

    partitions: Sequence[PartitionLike] = ()
    """The partitions to read. Empty: all partitions of the topics."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", as_partitions(self.partitions))

    def check_assignor(self, config: MembershipConfig) -> None:
        """Accepts any value, because this membership uses no assignor."""

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        return FixedMembership(
            parts.client,
            parts.listener,
            name=config.client_id,
            topics=frozenset(config.topics),
            pattern=config.pattern,
            partitions=config.partitions,
        )
