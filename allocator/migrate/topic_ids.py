"""What tells a topic from another one that had its name before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from allocator.wire.kafka import KafkaClient
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["ZNODE", "TopicIds", "same_topic"]

ZNODE: Final = "znode-"


class TopicIds:
    """The ids of a cluster's topics, as texts: the broker's own (Kafka 2.8 and newer), else when its znode was created.

    `ensemble` is the cluster's ZooKeeper, if it is known. Without both there are no ids.
    """

    def __init__(self, client: KafkaClient, ensemble: ZooKeeper | None = None) -> None:
        self._client = client
        self._ensemble = ensemble

    async def of(self, topics: Iterable[str]) -> dict[str, str | None]:
        """As they are now; None for a topic that does not exist or has no id. Also refreshes the client's metadata."""
        wanted = list(topics)
        await self._client.refresh(wanted)
        found: dict[str, str | None] = {}
        for topic in wanted:
            topic_id = self._client.topic_id(topic)
            found[topic] = None if topic_id is None else str(topic_id)
            if topic_id is None and self._ensemble is not None:
                stat = await self._ensemble.exists(f"/brokers/topics/{topic}")
                found[topic] = None if stat is None else f"{ZNODE}{stat.created_ms}"
        return found


def same_topic(known: str | None, now: str | None) -> bool | None:
    """None where the ids do not tell: one is missing, or the brokers began to have ids since the other was noted."""
    if known is None or now is None or known.startswith(ZNODE) != now.startswith(ZNODE):
        return None
    return known == now
