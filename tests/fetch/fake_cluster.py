"""A cluster in memory, for faults that a real one does not show on demand. It responds to Fetch like a broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

from allocator.core.client.client import KafkaClient
from allocator.core.client.fetch_messages import FetchedPartition, FetchRequest, FetchResponse
from allocator.core.subscription import RecordsLost
from allocator.core.telemetry.measures import Measures
from allocator.errors import BrokerError
from allocator.types import TopicPartition
from tests.fetch.fetch_encode import R, batch

Parts = dict[TopicPartition, tuple[int, int]]


class Request(NamedTuple):
    """A Fetch request that arrived.

    `parts` {partition: (offset, bytes)} is what it requests, session included. `listed` is what the request itself
    lists, and `removed` what it removes from the session.
    """

    node: int
    urgent: bool
    parts: Parts
    listed: Parts
    removed: set[TopicPartition]
    session: tuple[int, int]
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    rack: str


class Session:
    def __init__(self, number: int, parts: Parts) -> None:
        self.number = number
        self.epoch = 1
        self.parts = parts
        self.high_watermarks: dict[TopicPartition, int] = {}  # in the last response


class FakeCluster:
    """A fake `KafkaClient`. `hold` stops the responses of a node, `errors` has the next errors of each partition.

    `refusals` has the next errors of whole responses, by node. `epochs` {partition: [(leader epoch, its first offset)]}
    are the epochs that the leaders know, `replicas` {partition: node} the replicas to which leaders redirect clients
    with a rack.
    """

    request_timeout_s = 5.0
    retry_backoff_s: float = 0.01
    reading, unusable = KafkaClient.reading, KafkaClient.unusable

    def __init__(self, version: int = 12) -> None:
        self.version = version
        self.measures = Measures()
        self.metadata = SimpleNamespace(cluster_id="one")
        self.leaders: dict[TopicPartition, Optional[int]] = {}
        # per partition: (base offset, next offset, bytes) of each batch in the log
        self.logs: dict[TopicPartition, list[tuple[int, int, bytes]]] = {}
        self.start: dict[TopicPartition, int] = {}
        self.errors: dict[TopicPartition, list[int]] = {}
        self.hung_up: list[Any] = []  # the nodes whose connections the client closed
        self.aborted: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.down: set[int] = set()
        self.refusals: dict[int, list[int]] = {}
        self.grants_sessions = True
        self.sessions: dict[tuple[int, int], Session] = {}
        self._session_ids = itertools.count(1)
        self.ids: dict[str, uuid.UUID] = {}
        self.epochs: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.epoch_requests: list[tuple[TopicPartition, int]] = []
        self.epoch_errors: dict[TopicPartition, list[int]] = {}
        self.replicas: dict[TopicPartition, int] = {}
        self.held: dict[int, asyncio.Event] = {}
        self.requests: list[Request] = []
        self.losses: list[RecordsLost] = []
        self.refreshed: list[frozenset[str]] = []
        self.on_refresh: Callable[[], None] = lambda: None
        self._news: list[asyncio.Event] = []
        self._listeners: list[Callable[[], None]] = []
        self._at_once = False
        self.exchanges: set[asyncio.Future[None]] = set()

    # -- for tests

    def add(self, tp: TopicPartition, leader: Optional[int] = 0) -> TopicPartition:
        self.leaders[tp] = leader
        self.logs.setdefault(tp, [])
        self.changed()
        return tp

    def append(self, tp: TopicPartition, count: int = 1, size: int = 10, codec: str = "none") -> None:
        """One record batch of `count` records."""
        records = [R(i, bytes(size)) for i in range(count)]
        self.append_raw(tp, batch(records, self.end(tp), codec, epoch=self.leader_epoch(tp) or 0), count)

    def append_raw(self, tp: TopicPartition, raw: bytes, count: int) -> None:
        base = self.end(tp)
        self.logs[tp].append((base, base + count, raw))
        for event in self._news:
            event.set()

    def end(self, tp: TopicPartition) -> int:
        return self.logs[tp][-1][1] if self.logs[tp] else self.start.get(tp, 0)

    def elect(self, tp: TopicPartition, node: int, cut: Optional[int] = None) -> None:
        """Elects a new leader, whose log ends at `cut` if that is given."""
        newest = self.leader_epoch(tp) or 0
        if cut is not None:
            self.logs[tp] = [entry for entry in self.logs[tp] if entry[1] <= cut]
            assert self.end(tp) == cut
            self.epochs[tp] = [(epoch, first) for epoch, first in self.epochs[tp] if first < cut]
        self.epochs.setdefault(tp, []).append((newest + 1, self.end(tp)))
        self.leaders[tp] = node

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    def hold(self, node: int) -> None:
        self.held[node] = asyncio.Event()

    def release(self, node: int) -> None:
        self.held.pop(node).set()

    # -- the interface of KafkaClient

    def api_version(self, request: Any) -> int:
        return self.version if request is FetchRequest else 4

    def topic_id(self, topic: str) -> Optional[uuid.UUID]:
        return self.ids.get(topic)

    def leader(self, tp: TopicPartition) -> Optional[int]:
        return self.leaders.get(tp)

    def leader_epoch(self, tp: TopicPartition) -> Optional[int]:
        return self.epochs[tp][-1][0] if tp in self.epochs else None

    def partitions(self, topic: str) -> Optional[tuple[int, ...]]:
        return tuple(tp.partition for tp in self.leaders if tp.topic == topic) or None

    def hides(self, topic: str) -> bool:
        return False

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def follow(self, topics: Iterable[str]) -> None:
        """All topics are known."""

    async def prepare(self, node: int, _: Any) -> None:
        """Nothing is to prepare."""

    def hang_up(self, node: Any, request_class: Any) -> None:
        self.hung_up.append(node)

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        self.refreshed.append(frozenset(topics))
        await asyncio.sleep(0)
        self.on_refresh()

    def send_now(self, node: Any, request: Any, timeout_s: float, done: Callable[[Any, Any], None]) -> bool:
        """Sends every second request at once, as if a connection were ready."""
        self._at_once = not self._at_once
        if self._at_once:

            async def exchange() -> None:
                try:
                    response, error = await self.send(node, request, timeout_s), None
                except Exception as failure:  # noqa: BLE001 - the fetcher reports it
                    response, error = None, failure
                done(response, error)

            task = asyncio.ensure_future(exchange())
            self.exchanges.add(task)
            task.add_done_callback(self.exchanges.discard)
        return self._at_once

    async def send(self, where: Any, request: Any, timeout_s: float | None = None) -> Any:
        if type(request).__name__.startswith("ListOffsets"):
            return self._offsets(request)
        if type(request).__name__.startswith("OffsetForLeaderEpoch"):
            return self._epoch_ends(request)
        urgent = isinstance(where, tuple)
        node = where[1] if urgent else where
        listed = {tp: (wanted.offset, wanted.size) for tp, wanted in request.wanted.items()}
        removed = set(request.forgotten)
        session, refusal = self._session(node, request, listed, removed)
        parts = listed if session is None else session.parts
        self.requests.append(
            Request(
                node=node,
                urgent=urgent,
                parts=dict(parts),
                listed=listed,
                removed=removed,
                session=request.session,
                max_bytes=request.max_bytes,
                max_wait_ms=int(request.max_wait_s * 1000),
                min_bytes=request.min_bytes,
                rack=request.rack,
            )
        )
        await asyncio.sleep(0)
        if node in self.held:
            await self.held[node].wait()
        if node in self.down:
            raise BrokerError(f"broker {node} is down", retriable=True)
        if refusal is None and self.refusals.get(node):
            refusal = self.refusals[node].pop(0)
        if refusal:
            return FetchResponse(self._version(request), [], refusal)
        return await self.respond(node, parts, request, session)

    def _version(self, request: Any) -> int:
        return min(self.version, request.max_version)

    def _session(
        self, node: int, request: Any, listed: Parts, removed: set[TopicPartition]
    ) -> tuple[Optional[Session], Optional[int]]:
        """Returns the session of a request as brokers keep it (KIP-227), or the error."""
        if self._version(request) < 7 or request.session[1] == -1:
            assert not removed
            return None, None
        key = (node, request.session[0])
        if request.session[1] == 0:
            assert not removed
            self.sessions.pop(key, None)
            if not self.grants_sessions:
                return None, None
            created = Session(next(self._session_ids), dict(listed))
            self.sessions[node, created.number] = created
            return created, None
        session = self.sessions.get(key)
        if session is None:
            return None, 70
        if request.session[1] != session.epoch:
            return None, 71
        session.epoch += 1
        for tp in removed:
            del session.parts[tp]  # only partitions of the session may be removed
        session.parts.update(listed)
        for tp in {*listed, *removed}:
            session.high_watermarks.pop(tp, None)
        return session, None

    async def respond(self, node: int, parts: Parts, request: Any, session: Optional[Session]) -> Any:
        deadline = asyncio.get_running_loop().time() + request.max_wait_s
        news = asyncio.Event()
        self._news.append(news)
        try:
            while True:
                news.clear()
                found = self._read(node, parts, request)
                left = deadline - asyncio.get_running_loop().time()
                enough = sum(len(a.records) for a in found) >= max(1, request.min_bytes)
                if enough or left <= 1e-6 or any(a.code or a.preferred_replica >= 0 for a in found):
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), left)
        finally:
            self._news.remove(news)
        if session is not None:
            known = session.high_watermarks
            for a in found:
                if a.records:
                    session.parts[_tp(a)] = session.parts.pop(_tp(a))  # to the end
            if request.session[1]:
                # as Kafka's FetchSession.CachedPartition does
                found = [
                    a
                    for a in found
                    if a.records or a.code or a.preferred_replica >= 0 or known.get(_tp(a)) != a.high_watermark
                ]
            known.update((_tp(a), -1 if a.code else a.high_watermark) for a in found)
        version = self._version(request)
        if version >= 13:
            found = [FetchedPartition(self.ids[str(a.topic)].bytes, *a[1:]) for a in found]
        return FetchResponse(version, found, 0, 0 if session is None else session.number)

    def _read(self, node: int, parts: Parts, request: Any) -> list[FetchedPartition]:
        out: list[FetchedPartition] = []
        max_bytes = left = request.max_bytes
        for tp, (offset, size) in parts.items():
            code, data, elsewhere = 0, b"", -1
            script = self.errors.get(tp)
            nearer = self.replicas.get(tp) if request.rack else None
            end = self.end(tp) if tp in self.logs else -1
            if script:
                code = script.pop(0)
            elif tp not in self.leaders:
                code = 3
            elif self.leaders[tp] != node and self.replicas.get(tp) != node:
                code = 6
            else:
                if self.leaders[tp] == node and nearer is not None and nearer != node:
                    elsewhere = nearer
                if not self.start.get(tp, 0) <= offset <= end:
                    code = 1
            if not code and elsewhere < 0:
                log = [entry for entry in self.logs[tp] if entry[1] > offset and entry[1] <= end]
                data = b"".join(raw for _, _, raw in log)
                first = log[0][2] if log else b""
                if self.version >= 3:
                    # the first batch comes whole if nothing came before it
                    most = max(min(size, left), len(first) if left == max_bytes else 0)
                    data = data[:most] if most >= len(first) else b""
                else:
                    data = data[:size]
                left = max(0, left - len(data))
            out.append(
                FetchedPartition(tp.topic, tp.partition, code, end, -1, elsewhere, self.aborted.get(tp, []), data)
            )
        return out

    def _epoch_ends(self, request: Any) -> Any:
        topics = []
        for t in request.topics:
            found = []
            for p in t.partitions:
                tp = TopicPartition(t.topic, p.partition)
                self.epoch_requests.append((tp, p.leader_epoch))
                script = self.epoch_errors.get(tp)
                code = script.pop(0) if script else 0
                history = self.epochs.get(tp, [])
                known = [at for at, (epoch, _) in enumerate(history) if epoch <= p.leader_epoch]
                epoch, end = -1, -1
                if known and not code:
                    epoch = history[known[-1]][0]
                    end = history[known[-1] + 1][1] if known[-1] + 1 < len(history) else self.end(tp)
                fields = {"error_code": code, "leader_epoch": epoch, "end_offset": end}
                found.append(SimpleNamespace(partition=tp.partition, **fields))
            topics.append(SimpleNamespace(topic=t.topic, partitions=found))
        return SimpleNamespace(API_VERSION=4, topics=topics)

    def _offsets(self, request: Any) -> Any:
        topics = []
        for t in request.topics:
            found = []
            for p in t.partitions:
                tp = TopicPartition(t.name, p.partition_index)
                offset = self.start.get(tp, 0) if p.timestamp == -2 else self.end(tp) if p.timestamp == -1 else -1
                epoch = -1
                if tp in self.epochs and offset >= 0:
                    # the epoch of the record there, but at the end of the log that of the leader
                    known = [epoch for epoch, first in self.epochs[tp] if first <= offset]
                    epoch = self.epochs[tp][-1][0] if p.timestamp == -1 else known[-1]
                fields = {"error_code": 0, "offset": offset, "timestamp": -1, "leader_epoch": epoch}
                found.append(SimpleNamespace(partition_index=tp.partition, **fields))
            topics.append(SimpleNamespace(name=t.name, partitions=found))
        return SimpleNamespace(API_VERSION=7, topics=topics)


def _tp(part: FetchedPartition) -> TopicPartition:
    return TopicPartition(str(part.topic), part.partition)
