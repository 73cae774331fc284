"""Both memberships under the generations of a `ConsumerGroup`: when a generation ends, and when the next may begin."""

from __future__ import annotations

import asyncio
from typing import Protocol

from allocator.consumer.group_config import ConsumerGroupConfig, group_settings_of
from allocator.consumer.standing import Round, Standing
from allocator.coordinator.identity import Identity
from allocator.membership.kafka import KafkaMembership, KafkaSettings
from allocator.membership.leader import LeaderSettings
from allocator.membership.znodes import NONE, Document, Paths
from allocator.membership.zookeeper import Settings, ZooKeeperMembership
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["GroupMember", "KafkaMember", "ZooKeeperMember", "member_of"]

# a ZooKeeper group does not say of a member that it is to get nothing, only what others get
# more: a member without partitions has its generation later; less: one that is about to get some has two
NOTHING_AFTER_S = 1.0


class GroupMember(Protocol):
    """What a `ConsumerGroup` needs of a membership."""

    member_id: str

    async def join(self) -> None: ...

    async def leave(self) -> None: ...

    def may_act(self) -> bool: ...

    def rejoin(self, why: str) -> None:
        """Ask the group for a new assignment, where it does not see by itself that one is due."""


def member_of(config: ConsumerGroupConfig, client: KafkaClient, standing: Standing) -> GroupMember:
    """The member that `config` describes, which has touched nothing yet."""
    if config.membership == "kafka":
        return KafkaMember(config, client, standing)
    return ZooKeeperMember(config, client, standing)


class KafkaMember(KafkaMembership):
    """Every join begins a generation, one that gives nothing too, and ends the one before, whatever is kept."""

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, standing: Standing) -> None:
        super().__init__(
            client,
            config.group,
            standing,
            config.assignors(),
            KafkaSettings(
                name=config.client_id,
                topics=frozenset(config.topics),
                connect_timeout_s=config.connect_timeout_s,
                topic_poll_s=config.topic_poll_s,
                group=group_settings_of(config),
            ),
        )
        self._standing = standing

    def rejoin(self, why: str) -> None:
        self._standing.round = None
        self.group.request_rejoin(why)

    async def prepare(self) -> None:
        await self._standing.ending("the group rebalances")
        await super().prepare()

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        before = self.held
        await super().joined(generation, protocol, assignment)
        if before <= self.held:  # else it has to join once more, so that others get what it gave up
            committer = _Under(Identity(generation, self.member_id), self)
            self._standing.settle(Round(generation, self.member_id, self.held, committer))


class _Under:
    """A member as of one generation: in the next one it commits nothing any more."""

    def __init__(self, identity: Identity, member: KafkaMember) -> None:
        self._identity = identity
        self._member = member

    @property
    def identity(self) -> Identity | None:
        return self._identity if self._member.identity == self._identity else None

    def may_commit(self, partition: TopicPartition) -> bool:
        return self._member.may_commit(partition)

    def refused(self, code: int, sent: Identity) -> bool:
        return self._member.refused(code, sent) and self.identity is not None


class ZooKeeperMember(ZooKeeperMembership):
    """Partitions come and go one by one here; a generation begins when nothing more of the assignment is to come.

    That is: what is given is held, and nothing is promised, or the promise was not kept within the rebalance timeout
    because its present owner does not let go.
    """

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, standing: Standing) -> None:
        assert config.zookeeper is not None
        super().__init__(
            ZooKeeper(config.zookeeper, session_timeout_s=config.session_timeout_s, options=config.zookeeper_options),
            Paths(config.root, config.group),
            standing,
            client,
            config.assignors(),
            Settings(
                name=config.client_id,
                topics=frozenset(config.topics),
                connect_timeout_s=config.connect_timeout_s,
                leader=LeaderSettings(topic_poll_s=config.topic_poll_s),
            ),
            followed=self._read,
        )
        self._standing = standing
        self._promise_s = config.rebalance_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = 0.0

    def rejoin(self, why: str) -> None:
        """The leader sees by itself what calls for a new assignment."""

    async def leave(self) -> None:
        self._stop_timer()
        await super().leave()

    def _read(self, document: Document) -> None:
        if document.owners.get(self.member_id, NONE) != self.held:
            return  # on the way
        if document.promised.get(self.member_id):
            self._settle_after(self._promise_s)
        elif not self.held:
            self._settle_after(NOTHING_AFTER_S)
        else:
            self._settle()

    def _settle_after(self, pause_s: float) -> None:
        if self._timer is None or self._pause_s != pause_s:  # else the clock runs already
            self._stop_timer()
            self._pause_s = pause_s
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._settle)

    def _settle(self) -> None:
        self._stop_timer()
        self._standing.settle(Round(self.generation, self.member_id, self.held))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
