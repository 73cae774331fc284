"""Ownership of partitions by Kafka's next-generation group protocol (KIP-848), in which the coordinator assigns.

Guarantee: a partition has at most one owner, as far as the protocol can give it: the coordinator gives a partition away
only after its last owner said that it released it, or was removed for its silence or its slowness; and this member
stops acting by its own clock before it can have been removed. What it commits carries its epoch, and the coordinator
refuses it once that is over. Only what moves stops; everything else goes on through a rebalance.

The clock: the lease lasts three quarters of the group's session timeout from the start of the last heartbeat that was
answered. The session timeout is the broker's (`group.consumer.session.timeout.ms`, 45 s by default, or the group's own
`consumer.session.timeout.ms`), and heartbeats do not tell it, so it is asked for when joining and once a minute; who
lowers it on a running group should wait that long before relying on it. Where this user may not ask (the right is
DESCRIBE_CONFIGS on the group), only the heartbeat interval is known, which is always the smaller one: the lease is
counted from that, with heartbeats three times as often. A revocation counts likewise: the coordinator removes a member
that does not release within its rebalance timeout, counted from when it was told to.

Members of the classic protocol may be in the same group while a service is moved, if the broker lets it
(`group.consumer.migration.policy`). From the first member of the new protocol to the last one the coordinator assigns,
to the classic members as well, whatever functions they offer. (Kafka 4.1 does not count what classic members hold of a
topic that is so new that the coordinator has not heard of it when it takes the group over: do not move a group within
the second in which its topics are made.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from allocator.client.client import KafkaClient
from allocator.clock import boot_clock
from allocator.errors import AllocatorError
from allocator.groups.kafka_member import KafkaMember
from allocator.groups.kip848.group import Kip848Group
from allocator.groups.kip848.messages import IdPartition
from allocator.groups.kip848.settings import Ids, Kip848GroupSettings
from allocator.groups.membership import AssignmentListener
from allocator.groups.patterns import compiled
from allocator.offsets.coordinator import Coordinator
from allocator.types import TopicPartition

__all__ = ["Kip848Membership", "Kip848Settings"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kip848Settings:
    """How a member takes part. Times in seconds."""

    topics: frozenset[str] = frozenset()
    # matched here and not by the broker: 4.1 gives no partitions to a member whose expression matches nothing but
    # topics that the group had before, and Python's syntax is the same for all memberships
    pattern: str | None = None
    topic_poll_s: float = 10.0  # with a pattern: how soon new topics are noticed, at one metadata request each
    connect_timeout_s: float | None = 15.0  # how long `join` waits for the coordinator; None: for ever
    group: Kip848GroupSettings = field(default_factory=Kip848GroupSettings)


class Kip848Membership(KafkaMember):
    """One member of one group; see the module for what it guarantees.

    `client` is connected and stays the caller's. `owner` is told what to process. The constructor touches nothing.

    It is the `Committer` of a `GroupOffsets` too, which then commits as this member.
    """

    leading = False
    """The coordinator assigns."""
    _group: Kip848Group

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        owner: AssignmentListener,
        settings: Kip848Settings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        super().__init__(client, group, owner, settings.connect_timeout_s, clock)
        self._settings = settings
        self._topics, self._pattern = settings.topics, compiled(settings.pattern)
        self._wanted: frozenset[str] = settings.topics
        self._names: dict[IdPartition, TopicPartition] = {}  # of what is held
        self._group = Kip848Group(client, group, self, settings.group, coordinator=coordinator, clock=clock)

    # -- the surface ----------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return self._group.member_id

    @property
    def generation(self) -> int:
        """The member epoch, 0 while this is no member."""
        return self._group.epoch

    @property
    def group(self) -> Kip848Group:
        """The protocol beneath: phase, coordinator, heartbeats."""
        return self._group

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; the coordinator hears of it at once. Raises `ConfigError`, and then nothing has
        changed."""
        self._topics, self._pattern = frozenset(topics), compiled(pattern)
        self._follow()
        self._wanted = self._resolved()
        self._group.changed()

    async def _begin(self) -> None:
        self._follow()
        if self._pattern is not None:
            with contextlib.suppress(AllocatorError):  # what it would tell comes later
                await self._client.refresh(max_age_s=1.0)
        self._wanted = self._resolved()

    # -- called by the group --------------------------------------------------------------------------------------

    def topics(self) -> frozenset[str]:
        return self._wanted

    async def take(self, given: Ids) -> bool:
        new = given - self._names.keys()
        topics = self._by_id()
        if any(each.topic_id not in topics for each in new):
            try:
                await self._client.refresh()
            except AllocatorError as error:
                log.info("%s: the names of new topics are not to be had yet: %s", self._group_name, error)
            topics = self._by_id()
        named = {each: TopicPartition(topics[each.topic_id], each.partition) for each in new if each.topic_id in topics}
        # others may be given to us for what we wanted before
        gained = {each: part for each, part in named.items() if part.topic in self._wanted}
        if gained:
            self._names.update(gained)
            self._held |= frozenset(gained.values())
            log.info("%s: %s begins with %d partitions", self._group_name, self.member_id, len(gained))
            await self._owner.assigned(frozenset(gained.values()))
        return len(named) == len(new)

    async def release(self, taken: Ids) -> None:
        parts = frozenset(self._names.pop(each) for each in taken if each in self._names)
        if parts:
            log.info("%s: %s releases %d partitions", self._group_name, self.member_id, len(parts))
            await self._give_up(parts)

    async def lost(self, why: str) -> None:
        self._names.clear()
        await super().lost(why)

    def acknowledged(self, started: float, session_timeout_s: float, *, revoking: bool) -> None:
        rebalance_s = self._settings.group.rebalance_timeout_s
        self._lease.renew(started, session_timeout_s, rebalance_s, rebalancing=revoking)

    # -------------------------------------------------------------------------------------------------------------

    def _by_id(self) -> dict[object, str]:
        """Names by id, of the topics that are known."""
        return {topic.topic_id: name for name, topic in self._client.metadata.topics.items()}

    def _resolved(self) -> frozenset[str]:
        if self._pattern is None:
            return self._topics
        return self._topics | {topic for topic in self._client.topics() if self._pattern.match(topic)}

    def _follow(self) -> None:
        if self._pattern is not None:
            self._client.follow_all()
        else:
            self._client.follow(self._topics)

    def _metadata_came(self) -> None:
        wanted = self._resolved()
        if self._pattern is not None and wanted != self._wanted:
            self._wanted = wanted
            self._group.changed()

    async def _poll_topics(self) -> None:
        """What no message announces: new topics."""
        while True:
            await asyncio.sleep(self._settings.topic_poll_s)
            if self._pattern is not None:
                with contextlib.suppress(AllocatorError):  # the next turn asks again
                    await self._client.refresh()
