"""A cluster in memory, for what a real one does not do on demand. It answers Fetch as a broker would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Optional

from fetch_encode import R, batch

from allocator.errors import BrokerError
from allocator.types import TopicPartition

__all__ = ["FakeCluster", "Request"]


class Request(SimpleNamespace):
    """One fetch that arrived: `node`, `urgent`, `parts` {partition: (offset, bytes)}, `max_bytes`, `max_wait_ms`."""

    node: int
    urgent: bool
    parts: dict[TopicPartition, tuple[int, int]]
    max_bytes: int
    max_wait_ms: int


class FakeCluster:
    """Stands where `KafkaClient` does. `hold` stops a node's answers, `errors` replaces partitions' answers."""

    request_timeout_s = 5.0
    retry_backoff_s = 0.01

    def __init__(self, version: int = 12) -> None:
        self.version = version
        self.leaders: dict[TopicPartition, Optional[int]] = {}
        # of each partition: (base offset, next offset, bytes) of what is in the log
        self.logs: dict[TopicPartition, list[tuple[int, int, bytes]]] = {}
        self.start: dict[TopicPartition, int] = {}
        self.errors: dict[TopicPartition, list[int]] = {}
        self.aborted: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.down: set[int] = set()
        self.held: dict[int, asyncio.Event] = {}
        self.requests: list[Request] = []
        self.refreshed: list[frozenset[str]] = []
        self.on_refresh: Callable[[], None] = lambda: None
        self._news: list[asyncio.Event] = []
        self._listeners: list[Callable[[], None]] = []
        self.in_flight: dict[TopicPartition, int] = {}
        self.most_in_flight = 0

    # -- what tests do

    def add(self, tp: TopicPartition, leader: Optional[int] = 0) -> TopicPartition:
        self.leaders[tp] = leader
        self.logs.setdefault(tp, [])
        self.changed()
        return tp

    def append(self, tp: TopicPartition, count: int = 1, size: int = 10, codec: str = "none") -> None:
        """One record batch of `count` records."""
        base = self.end(tp)
        raw = batch([R(i, bytes(size)) for i in range(count)], base, codec)
        self.logs[tp].append((base, base + count, raw))
        self._arrived()

    def append_raw(self, tp: TopicPartition, raw: bytes, count: int) -> None:
        base = self.end(tp)
        self.logs[tp].append((base, base + count, raw))
        self._arrived()

    def end(self, tp: TopicPartition) -> int:
        return self.logs[tp][-1][1] if self.logs[tp] else self.start.get(tp, 0)

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    def hold(self, node: int) -> None:
        self.held[node] = asyncio.Event()

    def release(self, node: int) -> None:
        self.held.pop(node).set()

    # -- what KafkaClient does

    def api_version(self, _: Any) -> int:
        return self.version

    def leader(self, tp: TopicPartition) -> Optional[int]:
        return self.leaders.get(tp)

    def leader_epoch(self, _: TopicPartition) -> Optional[int]:
        return None

    def partitions(self, topic: str) -> Optional[tuple[int, ...]]:
        return tuple(tp.partition for tp in self.leaders if tp.topic == topic) or None

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        self.refreshed.append(frozenset(topics))
        await asyncio.sleep(0)
        self.on_refresh()

    async def send(self, where: Any, request: Any, timeout_s: float | None = None) -> Any:
        if type(request).__name__.startswith("ListOffsets"):
            return self._offsets(request)
        urgent = isinstance(where, tuple)
        node = where[1] if urgent else where
        parts = {
            TopicPartition(t.topic, p.partition): (p.fetch_offset, p.partition_max_bytes)
            for t in request.topics
            for p in t.partitions
        }
        self.requests.append(
            Request(node=node, urgent=urgent, parts=parts, max_bytes=request.max_bytes, max_wait_ms=request.max_wait_ms)
        )
        for tp in parts:
            self.in_flight[tp] = self.in_flight.get(tp, 0) + 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight[tp])
        try:
            await asyncio.sleep(0)
            if node in self.held:
                await self.held[node].wait()
            if node in self.down:
                raise BrokerError(f"broker {node} is down", retriable=True)
            return await self._answer(node, parts, request)
        finally:
            for tp in parts:
                self.in_flight[tp] -= 1

    async def _answer(self, node: int, parts: dict[TopicPartition, tuple[int, int]], request: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        news = asyncio.Event()
        self._news.append(news)
        try:
            while True:
                news.clear()
                answers = self._read(node, parts, request.max_bytes)
                left = deadline - asyncio.get_running_loop().time()
                if any(a.records or a.error_code for _, a in answers) or left <= 0:
                    break
                try:
                    await asyncio.wait_for(news.wait(), left)
                except asyncio.TimeoutError:
                    continue
        finally:
            self._news.remove(news)
        return SimpleNamespace(
            API_VERSION=self.version,
            error_code=0,
            responses=[SimpleNamespace(topic=tp.topic, partitions=[answer]) for tp, answer in answers],
        )

    def _read(self, node: int, parts: dict[TopicPartition, tuple[int, int]], max_bytes: int) -> list[Any]:
        out: list[Any] = []
        left = max_bytes
        for tp, (offset, size) in parts.items():
            code, data = 0, b""
            script = self.errors.get(tp)
            if script:
                code = script.pop(0)
            elif tp not in self.leaders:
                code = 3
            elif self.leaders[tp] != node:
                code = 6
            elif not self.start.get(tp, 0) <= offset <= self.end(tp):
                code = 1
            if not code:
                data = b"".join(raw for _, after, raw in self.logs[tp] if after > offset)
                first = next((raw for _, after, raw in self.logs[tp] if after > offset), b"")
                if self.version >= 3:
                    # the first batch comes whole if nothing else did
                    most = max(min(size, left), len(first) if left == max_bytes else 0)
                    data = data[:most] if most >= len(first) else b""
                else:
                    data = data[:size]
                left = max(0, left - len(data))
            out.append(
                (
                    tp,
                    SimpleNamespace(
                        partition_index=tp.partition,
                        error_code=code,
                        high_watermark=self.end(tp) if tp in self.logs else -1,
                        records=data or None,
                        aborted_transactions=[
                            SimpleNamespace(producer_id=p, first_offset=o) for p, o in self.aborted.get(tp, [])
                        ],
                    ),
                )
            )
        return out

    def _offsets(self, request: Any) -> Any:
        topics = []
        for t in request.topics:
            answers = []
            for p in t.partitions:
                tp = TopicPartition(t.name, p.partition_index)
                offset = self.start.get(tp, 0) if p.timestamp == -2 else self.end(tp) if p.timestamp == -1 else -1
                answers.append(
                    SimpleNamespace(
                        partition_index=tp.partition, error_code=0, offset=offset, timestamp=-1, leader_epoch=-1
                    )
                )
            topics.append(SimpleNamespace(name=t.name, partitions=answers))
        return SimpleNamespace(API_VERSION=7, topics=topics)

    def _arrived(self) -> None:
        for event in self._news:
            event.set()
