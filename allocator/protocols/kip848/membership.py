"""Membership under KIP-848, Kafka's next-generation group protocol, in which the coordinator assigns the partitions.

Guarantee: a partition has at most one owner, as far as the protocol allows. The coordinator assigns a partition to
another member only after the owner has reported its release, or after the coordinator has removed the owner because it
was silent or slow. By its own clock, this member stops acting before the coordinator can have removed it. Its commits
carry its epoch, and the coordinator refuses them after that epoch has ended. During a rebalance, only partitions that
move stop.

The lease lasts three quarters of the group's session timeout, from the start of the last acknowledged heartbeat. The
session timeout is a setting of the broker (`group.consumer.session.timeout.ms`, 45 s by default, or the group's own
`consumer.session.timeout.ms`). Heartbeats do not carry it, so the member reads it when it joins and once a minute. If
you lower it on a running group, wait a minute before you rely on it. Without the right to DESCRIBE_CONFIGS on the
group, the member knows only the heartbeat interval, which is always shorter. Then it computes the lease from the
interval, and sends heartbeats three times as often. A revocation has a time limit too: the coordinator removes a member
that does not release its partitions within its rebalance timeout after the notification.

While a service moves, the group may also have members of the classic protocol, if the broker allows it
(`group.consumer.migration.policy`). As long as the group has a member of the new protocol, the coordinator assigns the
partitions of all members, whatever assignors the classic members offer. Do not move a group within a second after its
topics were created: when Kafka 4.1 takes over a group, it ignores the partitions that classic members own of a topic
that the coordinator does not know yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from allocator.core.client import Coordinator, KafkaClient
from allocator.core.membership import AssignmentListener
from allocator.core.settings import TopicSelection
from allocator.errors import AllocatorError
from allocator.protocols.kafka_member import KafkaMember
from allocator.protocols.kip848.group import Kip848Group
from allocator.protocols.kip848.messages import IdPartition, IdPartitions
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.types import TopicPartition

log = logging.getLogger(__name__)


class Kip848Membership(KafkaMember):
    """One member of one group. The docstring of the module has the guarantee.

    The caller connects and closes `client`. As the `Committer` of a `GroupOffsets`, this object makes commits carry the
    identity of the member. The constructor does no I/O.
    """

    group: Kip848Group

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        listener: AssignmentListener,
        settings: Kip848Settings,
        *,
        coordinator: Coordinator | None = None,
    ) -> None:
        selection = TopicSelection(settings.topics, settings.pattern)
        super().__init__(client, group, listener, selection, settings.connect_timeout_s)
        self._settings = settings
        self._names: dict[IdPartition, TopicPartition] = {}  # the owned partitions
        self.group = Kip848Group(client, group, self, settings, coordinator=coordinator, clock=self._lease.clock)

    @property
    def member_id(self) -> str:
        return self.group.member_id

    @property
    def generation(self) -> int:
        """The member epoch; 0 while this process is not a member of the group."""
        return self.group.epoch

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        self._selection = TopicSelection(topics, pattern)
        self._selection.follow(self._client)
        self._wanted = self._selection.among(self._client.topics())
        self.group.changed()

    async def _begin(self) -> None:
        self._selection.follow(self._client)
        if self._selection.pattern is not None:
            with contextlib.suppress(AllocatorError):  # `_poll_topics` retries
                await self._client.refresh(max_age_s=1.0)
        self._wanted = self._selection.among(self._client.topics())

    # -- called by the state machine ------------------------------------------------------------------------------

    def topics(self) -> frozenset[str]:
        return self._wanted

    async def take(self, assigned: IdPartitions) -> bool:
        new = assigned - self._names.keys()
        topics = self._by_id()
        if any(each.topic_id not in topics for each in new):
            try:
                await self._client.refresh()
            except AllocatorError as error:
                log.info("%s: cannot read the names of new topics yet: %s", self._group_name, error)
            topics = self._by_id()
        named = {each: TopicPartition(topics[each.topic_id], each.partition) for each in new if each.topic_id in topics}
        # ignores unsubscribed topics: the coordinator may have computed the assignment for an earlier subscription
        gained = {each: partition for each, partition in named.items() if partition.topic in self._wanted}
        if gained:
            self._names.update(gained)
            self.tenures.claim(dict.fromkeys(gained.values(), self.generation))
            log.info("%s: %s starts %d partitions", self._group_name, self.member_id, len(gained))
            await self._listener.assigned(frozenset(gained.values()))
        return len(named) == len(new)

    async def release(self, revoked: IdPartitions) -> None:
        named = frozenset(self._names.pop(each) for each in revoked if each in self._names)
        if named:
            log.info("%s: %s releases %d partitions", self._group_name, self.member_id, len(named))
            await self._give_up(self.tenures.drain(named))

    async def lost(self, why: str) -> None:
        self._names.clear()
        await super().lost(why)

    def acknowledged(self, started: float, session_timeout_s: float, *, revoking: bool) -> None:
        rebalance_s = self._settings.rebalance_timeout_s
        self._lease.renew(started, session_timeout_s, rebalance_s, rebalancing=revoking)

    # -------------------------------------------------------------------------------------------------------------

    def _by_id(self) -> dict[object, str]:
        return {topic.topic_id: name for name, topic in self._client.metadata.topics.items()}

    def _metadata_came(self) -> None:
        wanted = self._selection.among(self._client.topics())
        if self._selection.pattern is not None and wanted != self._wanted:
            self._wanted = wanted
            self.group.changed()

    async def _poll_topics(self) -> None:
        while True:
            await asyncio.sleep(self._settings.topic_poll_s)
            if self._selection.pattern is not None:
                with contextlib.suppress(AllocatorError):  # the next iteration retries
                    await self._client.refresh()
