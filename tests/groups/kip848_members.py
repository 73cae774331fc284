"""Members of KIP-848 groups for tests: allocator's and confluent-kafka's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.protocols.kip848.membership import Kip848Membership
from allocator.protocols.kip848.settings import Kip848Settings
from tests.groups.kafka_clients import Confluent
from tests.groups.members import History, RecordingOwner
from tests.groups.real_member import RealMember

# brokers that detect a crashed member within seconds
QUICK = {
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 1000,
}


class Kip848Member(RealMember):
    """A member of the KIP-848 protocol."""

    membership: Kip848Membership

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        *,
        name: str = "allocator",
        history: History | None = None,
        pattern: str | None = None,
        **settings: Any,
    ) -> None:
        self.client = KafkaClient(bootstrap)
        self.owner = RecordingOwner(name, history or History())
        self.membership = Kip848Membership(
            self.client,
            group,
            self.owner,
            Kip848Settings(topics=frozenset(topics), pattern=pattern, **{"rebalance_timeout_s": 20.0, **settings}),
        )
        self.offsets = GroupOffsets(self.client, group, timeout_s=15, committer=self.membership)

    async def __aexit__(self, *_: object) -> None:
        self.owner.may_drain.set()
        await super().__aexit__()


class ConfluentKip848(Confluent):
    """confluent-kafka's consumer under the next-generation protocol."""

    def __init__(self, bootstrap: str, group: str, topics: Iterable[str], **options: Any) -> None:
        super().__init__(bootstrap, group, topics, "", **options)
        for classic in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            del self._settings[classic]
        self._settings["group.protocol"] = "consumer"
