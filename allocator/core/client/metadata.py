"""The metadata of the cluster: a snapshot that each response replaces, and when to read it.

Protocol: the Metadata API (https://kafka.apache.org/protocol#The_Messages_Metadata), v0 to v13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.tasks import settle, start_task
from allocator.core.client.errors import ErrorCode
from allocator.core.errors import AllocatorError, Closed
from allocator.core.settings.names import address_text

log = logging.getLogger(__name__)

ENDED = "this Kafka client was closed, or its task was cancelled by other code; create another one"
# responses before v1 do not mark internal topics
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class Broker(NamedTuple):
    """A broker and its address, with the fields in kafka-python's order."""

    node_id: Any
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)


class PartitionMetadata(NamedTuple):
    leader: int | None  # None: being elected
    leader_epoch: int | None  # None: brokers of this version do not report it reliably
    replicas: tuple[int, ...]


class TopicMetadata(NamedTuple):
    partitions: Mapping[int, PartitionMetadata]
    internal: bool
    topic_id: Any  # uuid.UUID from 2.8 on, else None


@dataclass(frozen=True)
class Metadata:
    """A snapshot of the cluster. `errors` maps each requested topic that no broker could describe to its error code."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    cluster_id: str | None = None
    controller: int | None = None
    complete: bool = False
    """Whether the last response described all topics."""

    def updated(self, response: Any, *, complete: bool) -> Metadata:
        """Returns this snapshot updated by `response`.

        If `complete`, the response describes all topics, so topics that it lacks were deleted.
        """
        brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics = {} if complete else dict(self.topics)
        errors = {} if complete else dict(self.errors)
        for described in response.topics:
            errors.pop(described.name, None)
            if described.error_code == 0:
                topics[described.name] = self._topic(described, response.API_VERSION)
                continue
            errors[described.name] = described.error_code
            if described.error_code == ErrorCode.LEADER_NOT_AVAILABLE and described.name in self.topics:
                # the topic still exists
                topics[described.name] = self.topics[described.name]
            else:
                topics.pop(described.name, None)
        return replace(
            self,
            brokers=brokers,
            topics=topics,
            errors=errors,
            cluster_id=response.cluster_id,
            controller=response.controller_id if response.controller_id != -1 else None,
            complete=complete,
        )

    def _topic(self, described: Any, version: int) -> TopicMetadata:
        topic_id = described.topic_id if version >= 10 else None
        if topic_id is not None and not topic_id.int:
            topic_id = None  # from a broker that is configured for a protocol version before 2.8
        before = self.topics.get(described.name)
        same_topic = before is not None and topic_id is not None and before.topic_id == topic_id
        partitions = {}
        for p in sorted(described.partitions, key=lambda p: int(p.partition_index)):
            leader = p.leader_id if p.leader_id >= 0 else None
            # brokers before 2.4 announce stale epochs (KAFKA-9212), and fence a client that uses them
            epoch = p.leader_epoch if version >= 9 and p.leader_epoch >= 0 else None
            new = PartitionMetadata(leader, epoch, tuple(p.replica_nodes))
            old = before.partitions.get(p.partition_index) if same_topic and before is not None else None
            if old is not None and old.leader_epoch is not None and epoch is not None and epoch < old.leader_epoch:
                new = old  # the broker does not know the latest election yet
            partitions[p.partition_index] = new
        internal = described.is_internal if version >= 1 else described.name in INTERNAL_TOPICS
        return TopicMetadata(partitions, internal, topic_id)

    def settled(self, wanted: frozenset[str] | None) -> bool:
        """Returns whether there are brokers, and all `wanted` topics with all leaders. None: all topics."""
        if not self.brokers or (wanted is None and not self.complete):
            return False
        names = self.topics.keys() if wanted is None else wanted
        return all(
            name in self.topics and all(p.leader is not None for p in self.topics[name].partitions.values())
            for name in names
        )


# Maximum pause between requests while a topic or a leader is missing. Higher: a new topic is found later; lower: more
# requests for a topic that never appears
INCOMPLETE_MAX_S = 2.0


class Refresher:
    """Runs `fetch` in its own task: on demand, at least every `max_age_s`, and soon again until `settled()`.

    Each `refresh` gets the result of a `fetch` that started after the call. Concurrent calls share it.
    """

    def __init__(
        self,
        fetch: Callable[[frozenset[str]], Awaitable[None]],
        settled: Callable[[], bool],
        max_age_s: float,
        retry_backoff_s: float,
    ) -> None:
        self._fetch = fetch
        self._settled = settled
        self._max_age_s = max_age_s
        self._retry_backoff_s = retry_backoff_s
        self._topics: set[str] = set()  # topics requested by the callers that wait for the next round
        self._next: asyncio.Future[None] | None = None  # the end of the next round, if anything waits for it
        self._demand: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._demand = asyncio.Event()
        if self._next is not None:
            self._demand.set()  # `refresh` was called before `start`, and waits
        self._task = start_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        """Called by `close`, and if other code has cancelled the task: no further round would end the calls."""
        self._closed = True
        if self._next is not None:
            settle(self._next, None, Closed(ENDED))

    async def refresh(self, topics: Iterable[str] | None) -> None:
        if self._closed:
            raise Closed(ENDED)
        self._topics.update(topics or ())
        await asyncio.shield(self._demand_round())

    def poke(self) -> None:
        """Requests a refresh without waiting for it. Called when a connection is lost."""
        if self._demand is not None and not self._closed:
            self._demand_round()

    def _demand_round(self) -> asyncio.Future[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._demand is not None:
            self._demand.set()
        return self._next

    async def _run(self) -> None:
        assert self._demand is not None
        backoff = Backoff(self._retry_backoff_s, INCOMPLETE_MAX_S)
        failing = False
        while True:
            wait = self._max_age_s
            if self._settled() and not failing:
                backoff.reset()
            else:
                wait = min(wait, backoff.next())
            timer = asyncio.get_running_loop().call_later(wait, self._demand.set)
            try:
                await self._demand.wait()
            finally:
                timer.cancel()
            self._demand.clear()
            done, self._next = self._next or asyncio.get_running_loop().create_future(), None
            topics, self._topics = frozenset(self._topics), set()
            try:
                await self._fetch(topics)
            except asyncio.CancelledError:
                settle(done, None, Closed(ENDED))
                raise
            except Exception as exc:
                # any other error is a bug: the callers get it, and the next round runs
                trace = None if isinstance(exc, AllocatorError) else exc
                log.log(logging.DEBUG if failing else logging.WARNING, "metadata: %s", exc, exc_info=trace)
                failing = True
                settle(done, None, exc)
                # limits callers that retry at once
                await asyncio.sleep(self._retry_backoff_s)
            else:
                failing = False
                settle(done, None)

    async def close(self) -> None:
        """Ends the task. Waiting calls of `refresh` raise `Closed`. Idempotent."""
        self._ended(None)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
