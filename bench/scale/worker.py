"""Runs some members of the group in one process. `bench.scale` starts it and writes commands to its standard input.

    join     all members join the group
    leave    all members leave
    stats    only print the counters

After each command the process prints its counters, as one line of JSON. It also prints a line when the assignment of a
member changes, with the numbers of the partitions that it gained and lost. Times are from CLOCK_MONOTONIC.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from allocator.assignors import resolve
from allocator.core.membership.membership import AssignmentListener
from allocator.protocols.zookeeper.client.client import Op, Stat, ZooKeeperClient
from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition

__all__ = ["Topics", "say"]

Parts = frozenset[TopicPartition]


def say(**what: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)


class Topics:
    """Replaces a Kafka cluster: has only topics and partition counts."""

    def __init__(self, topics: int, partitions: int) -> None:
        self._counts = {f"topic-{number:03}": partitions // topics for number in range(topics)}
        self._first = {topic: number * (partitions // topics) for number, topic in enumerate(self._counts)}

    def numbers(self, partitions: Parts) -> list[int]:
        """Numbers the partitions of all topics consecutively, because names would be long to report."""
        return [self._first[tp.topic] + tp.partition for tp in partitions]

    def follow(self, topics: Iterable[str]) -> None: ...

    def follow_all(self) -> None: ...

    async def refresh(self, topics: Iterable[str] | None = None) -> None: ...

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        return tuple(range(self._counts[topic])) if topic in self._counts else None

    def hides(self, topic: str) -> bool:
        return False

    def topics(self, internal: bool = False) -> frozenset[str]:
        return frozenset(self._counts)

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]:
        return ()

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class CountingZooKeeper(ZooKeeperClient):
    """Counts requests, bytes of data and fired watches, and separately the writes that prove the lease."""

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        super().__init__(hosts, session_timeout_s=session_timeout_s)
        self.count: Counter[str] = Counter()

    def _wrote(self, path: str, size: int) -> None:
        if "/members/m-" in path:
            self.count["proofs"] += 1
        else:
            self.count["writes"] += 1
            self.count["bytes written"] += size

    async def get(self, path: str, watch: Any = None, *, deleted: Any = None) -> tuple[bytes, Stat]:
        data, stat = await super().get(path, watch, deleted=deleted)
        self.count["reads"] += 1
        self.count["bytes read"] += len(data)
        return data, stat

    async def get_children(self, path: str, watch: Any = None) -> list[str]:
        names = await super().get_children(path, watch)
        self.count["reads"] += 1
        self.count["bytes read"] += sum(map(len, names))
        return names

    async def exists(self, path: str, watch: Any = None) -> Stat | None:
        self.count["reads"] += 1
        return await super().exists(path, watch)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        made = await super().create(path, data, ephemeral=ephemeral, sequence=sequence)
        self.count["writes"] += 1
        self.count["bytes written"] += len(data)
        return made

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        self._wrote(path, len(data))
        return await super().set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        self.count["writes"] += 1
        await super().delete(path, version)

    async def multi(self, ops: Sequence[Op]) -> int:
        self.count["writes"] += 1
        self.count["bytes written"] += sum(len(op.data) for op in ops)
        return await super().multi(ops)

    def _watch(self, watch: Any, deleted: Any = None) -> Any:
        def counted() -> None:
            self.count["events"] += 1
            watch()

        return super()._watch(None if watch is None else counted, deleted)


class BenchMember(AssignmentListener):
    """A member that processes no records, so it releases partitions at once."""

    def __init__(self, number: int, hosts: str, topics: Topics, session_timeout_s: float, assignor: str) -> None:
        self.number = number
        self.topics = topics
        self.zk = CountingZooKeeper(hosts, session_timeout_s)
        function = resolve(assignor)
        self.membership = ZooKeeperMembership(
            Store(self.zk, Paths("/allocator", "scale")),
            self,
            topics,
            {function.name: function},
            ZooKeeperSettings(
                name=f"worker-{number}", topics=topics.topics(), connect_timeout_s=120.0, topic_poll_s=3600.0
            ),
        )

    def _tell(self, began: Parts = frozenset(), ended: Parts = frozenset()) -> None:
        numbers, generation = self.topics.numbers, self.membership.generation
        say(member=self.number, began=numbers(began), ended=numbers(ended), generation=generation)

    async def assigned(self, partitions: Parts) -> None:
        self._tell(began=partitions)

    async def revoked(self, partitions: Parts) -> None:
        self._tell(ended=partitions)

    async def lost(self, partitions: Parts) -> None:
        self._tell(ended=partitions)
        say(lost=self.number)

    def suspended(self, why: str) -> None:
        say(suspended=self.number, why=why)

    def resumed(self) -> None: ...

    def failed(self, error: BaseException) -> None:
        say(failed=self.number, why=str(error))


async def main(hosts: str, first: int, count: int, topics: int, partitions: int, timeout_s: float, name: str) -> None:
    stub = Topics(topics, partitions)
    members = [BenchMember(first + n, hosts, stub, timeout_s, name) for n in range(count)]
    joined: list[BenchMember] = []
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().strip():
        if line == "join":
            await asyncio.gather(*(member.membership.join() for member in members))
            joined = list(members)
        elif line == "leave":
            await asyncio.gather(*(member.membership.leave() for member in joined))
            joined = []
        counts = {member.number: dict(member.zk.count) for member in members}
        say(done=line, counts=counts, leading=[m.number for m in joined if m.membership.leading])
    await asyncio.gather(*(member.membership.leave() for member in joined))


if __name__ == "__main__":
    hosts, *numbers, timeout, assignor = sys.argv[1:]
    asyncio.run(main(hosts, *map(int, numbers), float(timeout), assignor))
