"""Finds the clusters from which mirrors bring the records of a cluster, to stop records that would go round."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from allocator.core.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.errors import TopicAuthorizationFailed
from allocator.migrate.offset_map import BadOffsetMap, Entry, unpack
from allocator.migrate.topics import SUFFIX
from allocator.types import TopicPartition


class Origins:
    """The clusters from which mirrors bring records to the cluster of `client`, directly or through others.

    The offset maps there tell: each entry names both clusters of its mirror, and those before the old one. Mirrors of
    versions that do not write this are not seen, nor is the map `ignored`: that of a mirror that has ended.
    """

    def __init__(self, client: KafkaClient, ignored: str | None = None) -> None:
        self._client = client
        self._ignored = ignored
        self._read_to: dict[TopicPartition, int] = {}
        self._found: dict[str, dict[str, str]] = defaultdict(dict)

    async def refresh(self) -> None:
        """Reads the entries that mirrors have added since. Leaves out maps without a leader until the next call. Raises
        BrokerError."""
        maps = [
            topic for topic in await self._client.list_topics() if topic.endswith(SUFFIX) and topic != self._ignored
        ]
        await self._client.refresh(maps)
        reader = RangeReader(self._client)
        for each in (TopicPartition(topic, 0) for topic in maps):
            if self._client.leader(each) is None:
                continue
            with contextlib.suppress(TopicAuthorizationFailed):
                start, end = (await reader.bounds([each]))[each]
                async for batch in reader.read({each: (max(start, self._read_to.get(each, 0)), end)}):
                    for record in batch:
                        with contextlib.suppress(BadOffsetMap):  # another program uses such a name
                            self._note(unpack(record.key, record.value), batch.topic)
                self._read_to[each] = end

    def _note(self, entry: Entry, topic: str) -> None:
        route = entry.route
        if route.old is not None and route.new == self._client.metadata.cluster_id:
            self._found[entry.partition.topic].update(dict.fromkeys((route.old, *route.before), topic))

    def of(self, topic: str) -> dict[str, str]:
        """Returns the ids of the clusters from which `topic` comes -> the offset map that says so."""
        return dict(self._found.get(topic, {}))
