"""Record batches to the new cluster: in order, each once, several under way.

Protocol: Produce v3 to v12 with one record batch of v2 for a partition, InitProducerId (KIP-98). The producer's id and
the sequence numbers make a batch that is sent again count once, and one that overtook another one be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Optional

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import for_code
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.producer.encode import Encoded
from allocator.tasks import BackgroundTasks, wait_for_event
from allocator.types import TopicPartition

__all__ = ["ProduceQueue", "Producer", "SequenceLost", "append"]

log = logging.getLogger(__name__)

MAX_VERSION: Final = 12  # in later ones topics go by id
OLDEST: Final = 3  # the first that takes record batches of v2
# Brokers remember so many batches of a producer for a partition: with more of them under way, one that is sent again
# might not be known any more
UNDER_WAY: Final = 5
# of one request. More: fewer of them; less: the other partitions of the leader wait for less
REQUEST_BYTES: Final = 4 << 20
# whether sending is allowed again
ASK_AGAIN_S: Final = 0.1

OUT_OF_ORDER_SEQUENCE, DUPLICATE_SEQUENCE, PRODUCER_EPOCH, UNKNOWN_PRODUCER = 45, 46, 47, 59
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
LOST: Final = frozenset((DUPLICATE_SEQUENCE, PRODUCER_EPOCH, UNKNOWN_PRODUCER))

Acked = Callable[[TopicPartition, Encoded, int], None]


class SequenceLost(AllocatorError):
    """The brokers have forgotten the sequence of this producer, or someone has taken it over: a new one goes on."""

    retriable = True


@dataclass
class _Item:
    encoded: Encoded
    sequence: int
    target: Optional[int] = None


@dataclass
class ProduceQueue:
    """What is to be sent of one partition, and what is under way, in order."""

    producer: int
    epoch: int
    sequence: int = 0
    waiting: deque[_Item] = field(default_factory=deque)
    sent: deque[_Item] = field(default_factory=deque)
    asked: int = 0  # requests without an answer yet
    most: int = 1  # under way: brokers take any sequence for the first batch of a producer they do not know
    broken: bool = False
    resume_at: float = 0.0
    tries: int = 0


class Producer:
    """The producing half of a mirror.

    Guarantee: `acked` is called for the batches of a partition in their order, once each, with the offset that the
    first record has on all replicas in sync; a batch that was not acknowledged is sent until it is. Nothing is sent
    while `may_send` says no: who was frozen, and wakes up replaced, writes nothing behind its successor. Memory is
    bounded by `room`, which the caller awaits before each `put`.

    Use it within `async with`; what cannot be mended (a batch too large, no permission) ends the scope with its error.
    """

    def __init__(
        self,
        client: KafkaClient,
        acked: Acked,
        may_send: Callable[[], bool],
        *,
        buffer_bytes: int = 64 << 20,
        timeout_s: float = 30.0,
    ) -> None:
        self._client = client
        self._acked = acked
        self._may_send = may_send
        self._buffer_bytes = buffer_bytes
        self._timeout_s = timeout_s
        self._lanes: dict[TopicPartition, ProduceQueue] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._ready: dict[TopicPartition, None] = {}  # those that have something to send, in turn
        self._wait_s: float | None = None
        self._held = 0
        self._over = False
        self._news: asyncio.Event
        self._progress: asyncio.Event

    async def run(self, tasks: BackgroundTasks) -> None:
        """Sends until cancelled; `tasks` has the requests. Caller: the mirror."""
        try:
            while True:
                self._news.clear()
                while self._send(tasks):
                    pass
                await wait_for_event(self._news, self._wait_s)
        finally:
            self._over = True  # nobody may wait for what will not be sent
            self._progress.set()

    def open(self) -> None:
        """Caller: the mirror, on its loop."""
        self._news, self._progress = asyncio.Event(), asyncio.Event()
        version = self._client.api_version(ProduceRequest)
        if version is None or version < OLDEST or self._client.api_version(InitProducerIdRequest) is None:
            raise ConfigError(
                f"the new cluster is Kafka {'.'.join(map(str, self._client.broker_version))}; a mirror writes record "
                "batches of format v2, which takes 0.11 or newer"
            )

    async def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These will be sent to. A producer of their own: nothing that is under way from before can be mixed up."""
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        answer = await self._client.send_any(request, self._timeout_s)
        while answer.error_code:
            error = for_code(answer.error_code, "the new cluster gives no producer id")
            if not error.retriable:
                raise error
            log.debug("%s", error)  # a coordinator that has just started
            await asyncio.sleep(self._client.retry_backoff_s)
            answer = await self._client.send_any(request, self._timeout_s)
        for partition in partitions:
            self._lanes[partition] = ProduceQueue(answer.producer_id, answer.producer_epoch)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """What is not acknowledged of these is forgotten."""
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                self._held -= sum(item.encoded.size for item in (*lane.waiting, *lane.sent))
        self._progress.set()

    async def room(self, size: int) -> None:
        """Returns when there is room for so many bytes more."""
        while self._held and self._held + size > self._buffer_bytes:
            self._progress.clear()
            await self._progress.wait()

    def lane(self, partition: TopicPartition) -> ProduceQueue | None:
        """What `put` takes, as long as the partition is not dropped; another one when it is added again."""
        return self._lanes.get(partition)

    def put(self, partition: TopicPartition, lane: ProduceQueue | None, encoded: Encoded) -> bool:
        """To be sent after what was put before; False if the partition was dropped since `lane` was asked for.

        It may be ours again by now, and begin elsewhere: what was read before would come in the middle of that.
        """
        if lane is None or self._lanes.get(partition) is not lane:
            return False
        lane.waiting.append(_Item(encoded, lane.sequence))
        lane.sequence = (lane.sequence + encoded.records) & 0x7FFFFFFF
        self._ready[partition] = None
        self._held += encoded.size
        self._news.set()
        return True

    def idle(self, partition: TopicPartition) -> bool:
        """Whether everything of it is acknowledged."""
        lane = self._lanes.get(partition)
        return lane is None or not (lane.waiting or lane.sent)

    async def drained(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns when everything of these is acknowledged, or nothing is sent any more."""
        wanted = list(partitions)
        while not (self._over or all(map(self.idle, wanted))):
            self._progress.clear()
            await self._progress.wait()

    # -- sending --------------------------------------------------------------------------------------------------

    def _send(self, tasks: BackgroundTasks) -> bool:
        """One request to each leader that may get one; False if none may, and in `_wait_s` when to look again."""
        if self._ready and not self._may_send():
            self._wait_s = ASK_AGAIN_S
            return False
        now = asyncio.get_running_loop().time()
        chosen: dict[int, dict[TopicPartition, _Item]] = defaultdict(dict)
        sizes: dict[int, int] = defaultdict(int)
        later: list[float] = []
        for partition in list(self._ready):
            lane = self._lanes.get(partition)
            if lane is None or not lane.waiting:
                del self._ready[partition]
                continue
            leader = self._client.leader(partition)
            if leader is None or now < lane.resume_at:
                later.append(max(self._client.retry_backoff_s, lane.resume_at - now))
                continue
            if lane.broken or self._under_way[leader] >= UNDER_WAY or len(lane.sent) >= lane.most:
                continue
            item = lane.waiting[0]
            if sizes[leader] and sizes[leader] + item.encoded.size > REQUEST_BYTES:
                continue
            sizes[leader] += item.encoded.size
            chosen[leader][partition] = lane.waiting.popleft()
            lane.sent.append(item)
            lane.asked += 1
            self._ready[partition] = self._ready.pop(partition)  # its turn comes again after the others'
        for leader, items in chosen.items():
            self._under_way[leader] += 1
            tasks.start(self._exchange(leader, items, {each: self._lanes[each] for each in items}), "produce")
        self._wait_s = min(later, default=None)
        return bool(chosen)

    async def _exchange(
        self, leader: int, items: dict[TopicPartition, _Item], lanes: dict[TopicPartition, ProduceQueue]
    ) -> None:
        codes: dict[TopicPartition, tuple[int, int]] = {}
        why: AllocatorError | None = None
        try:
            stamped = {
                partition: item.encoded.stamped(lanes[partition].producer, lanes[partition].epoch, item.sequence)
                for partition, item in items.items()
            }
            answer = await self._client.send(leader, _produce(stamped, self._timeout_s), self._timeout_s + 5.0)
        except BrokerError as error:
            if not error.retriable:
                raise
            why = error
        else:
            codes = {
                TopicPartition(topic.name, part.index): (part.error_code, part.base_offset)
                for topic in answer.responses
                for part in topic.partition_responses
            }
        finally:
            self._under_way[leader] -= 1
            self._news.set()
        failed = False
        for partition, item in items.items():
            lane = lanes[partition]
            lane.asked -= 1
            if self._lanes.get(partition) is not lane:
                continue  # dropped meanwhile
            code, base = codes.get(partition, (-1, -1))
            if code == 0:
                item.target, lane.tries, lane.most = base, 0, UNDER_WAY
            else:
                failed = True
                where = f"{partition.topic}:{partition.partition}"
                self._note_failure(where, lane, item, why or for_code(code, where))
            self._settle(partition, lane)
        self._progress.set()
        if failed:
            # the leader may have moved; if nobody answers, the next try shows it
            with contextlib.suppress(AllocatorError):
                await self._client.refresh()

    def _note_failure(self, where: str, lane: ProduceQueue, item: _Item, error: AllocatorError) -> None:
        code = getattr(error, "code", None)
        first = bool(lane.sent) and lane.sent[0] is item
        if code in LOST or (code == OUT_OF_ORDER_SEQUENCE and first and not lane.broken):
            raise SequenceLost(f"{where}: {error}; goes on from what is committed, as a new producer")
        if not error.retriable and code not in (OUT_OF_ORDER_SEQUENCE, NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise BrokerError(
                f"the new cluster refuses old offsets {item.encoded.first} to {item.encoded.next - 1} of {where} "
                f"({item.encoded.size} bytes): {error}; nothing is skipped, correct it and start again",
                code=code,
            )
        lane.broken = True
        lane.tries += 1
        log.log(logging.WARNING if lane.tries in (1, 10) else logging.DEBUG, "%s: sent again: %s", where, error)

    def _settle(self, partition: TopicPartition, lane: ProduceQueue) -> None:
        while lane.sent and lane.sent[0].target is not None:
            item = lane.sent.popleft()
            self._held -= item.encoded.size
            assert item.target is not None
            self._acked(partition, item.encoded, item.target)
        if lane.broken and not lane.asked:
            # in their order again; those acknowledged out of turn are known to the broker and count once
            lane.waiting.extendleft(reversed(lane.sent))
            for item in lane.sent:
                item.target = None
            lane.sent.clear()
            lane.broken = False
            backoff = min(self._client.retry_backoff_s * 2 ** min(lane.tries, 5), 3.0)
            lane.resume_at = asyncio.get_running_loop().time() + backoff
            self._ready[partition] = None


async def append(client: KafkaClient, partition: TopicPartition, encoded: Encoded, timeout_s: float = 30.0) -> int:
    """One record batch by itself: the offset of its first record. It may stand there twice if an answer was lost.

    Raises BrokerError.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    where = f"{partition.topic}:{partition.partition}"
    while True:
        leader = client.leader(partition)
        error = BrokerError(f"{where} has no leader", retriable=True)
        if leader is not None:
            try:
                answer = await client.send(leader, _produce({partition: encoded.stamped(-1, -1, -1)}, timeout_s))
            except BrokerError as failed:
                error = failed
            else:
                (found,) = (part for topic in answer.responses for part in topic.partition_responses)
                if not found.error_code:
                    return int(found.base_offset)
                error = for_code(found.error_code, where)
        if not error.retriable or asyncio.get_running_loop().time() > deadline:
            raise error
        await asyncio.sleep(client.retry_backoff_s)
        with contextlib.suppress(AllocatorError):  # if nobody answers, the next try shows it
            await client.refresh([partition.topic])


def _produce(records: dict[TopicPartition, bytes], timeout_s: float) -> Any:
    topics: dict[str, list[Any]] = defaultdict(list)
    data = ProduceRequest.TopicProduceData
    for partition, encoded in records.items():
        topics[partition.topic].append(data.PartitionProduceData(index=partition.partition, records=encoded))
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=int(timeout_s * 1000),
        topic_data=[data(name=name, partition_data=parts) for name, parts in topics.items()],
        max_version=MAX_VERSION,
    )
