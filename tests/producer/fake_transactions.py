"""A coordinator of transactions for the cluster in memory. A result names the record that it is of."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from allocator.errors import BrokerError
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.consumer.fake_kafka import ClientOfMember, GroupCluster, Log
from tests.fetch.fetch_encode import R, batch

OUT = TopicPartition("out", 0)
LOADING, NOT_LEADER, OLD_EPOCH, NO_TRANSACTION, UNSTABLE = 14, 6, 47, 48, 88
SEQUENCE = slice(53, 57)  # of a record batch
KINDS = ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")
RESULT = re.compile(rb"<(\d+)\.(\d+)>")  # of which record, and in which era of its partition it was delivered


class Open:
    """The transactions of one transactional id."""

    def __init__(self, number: int) -> None:
        self.number, self.epoch, self.is_open, self.ended = number, -1, False, ""
        self.sequences: set[bytes] = set()
        self.forget()

    def forget(self) -> None:
        self.results: list[tuple[int, int]] = []
        self.offset: tuple[TopicPartition, OffsetAndMetadata, Log] | None = None
        self.begun: dict[TopicPartition, int] = {}


class TransactionCluster(GroupCluster):
    """Each record has a number of its own as its value. `ends` is called with each transaction that is committed.

    `faults_of` {kind of request: faults of the next ones}: "refused" (retriable), "lost", "unanswered" (it arrives, and
    its response does not), "late" (it arrives after its time limit).
    """

    def __init__(self, ids: bool) -> None:
        super().__init__(ids)
        self.leaders[OUT] = 0
        self.writers: dict[str, Open] = {}
        self.numbers: dict[Log, dict[int, int]] = defaultdict(dict)
        """The number of each record that a log has now, by its offset."""
        self.faults_of: dict[str, list[str]] = defaultdict(list)
        self.ends: Callable[[Open], None] = lambda _: None
        self.eras: dict[TopicPartition, int] = defaultdict(int)
        self.places: list[int] = []
        """The offset of each record that there ever was, by its number."""

    def create(self, partitions: Iterable[TopicPartition], *, kept: bool = False) -> None:
        for tp in partitions:
            self.epochs[tp] = [(0, 0)]
        super().create(partitions, kept=kept)

    def produce(self, tp: TopicPartition, count: int, kind: str = "plain", poison: int | None = None) -> None:
        log, base = self.content[tp], self.end(tp)
        records = []
        for at in range(count):
            self.numbers[log][base + at] = len(self.places)
            records.append(R(at, b"%d" % len(self.places)))
            self.places.append(base + at)
        self.append_raw(tp, batch(records, base, epoch=self.leader_epoch(tp) or 0), count)
        log.end = self.end(tp)
        log.visible += range(base, log.end)

    def cut(self, tp: TopicPartition, part: float) -> int:
        """An unclean election: the log loses some of its last batches. Returns its end."""
        log, bases = self.content[tp], [base for base, _, _ in self.logs[tp]]
        log.end = max([self.end(tp), *bases][int(part * len(bases))], log.start)
        self.logs[tp] = [entry for entry in self.logs[tp] if entry[1] <= log.end]
        newest = self.epochs[tp][-1][0] + 1
        self.epochs[tp] = [*(each for each in self.epochs[tp] if each[1] < log.end), (newest, log.end)]
        log.visible = [each for each in log.visible if each < log.end]
        self.numbers[log] = {at: number for at, number in self.numbers[log].items() if at < log.end}
        self._tell()
        return log.end


class TransactionClient(ClientOfMember):
    cluster: TransactionCluster

    def was_sent(self, request: Any) -> bool:
        return True

    async def send(self, node: Any, request: Any, timeout_s: float | None = None) -> Any:
        kind = type(request).__name__.partition("Request")[0]
        if kind not in KINDS:
            assert kind != "OffsetCommit", "a commit outside of a transaction"
            return await super().send(node, request, timeout_s)
        cluster = self.cluster
        faults = cluster.faults_of[kind]
        fault = faults.pop(0) if faults else ""
        handled = getattr(self, f"_{kind}")
        # what the request belongs to when it is sent; it arrives also if the caller is cancelled
        arrival = asyncio.ensure_future(
            self._arrives(handled, request, fault, dict(cluster.content), dict(cluster.eras))
        )
        self._commits.add(arrival)
        arrival.add_done_callback(self._arrived)
        await asyncio.sleep(cluster.latency_s)
        if fault == "refused":
            return _response(NOT_LEADER if kind == "Produce" else LOADING)
        if fault:
            raise BrokerError("no response", retriable=True)
        return _response(*await asyncio.shield(arrival))

    async def _arrives(self, handled: Any, request: Any, fault: str, logs: Any, eras: Any) -> Any:
        await asyncio.sleep(1.0 if fault == "late" else self.cluster.latency_s / 2)
        if fault in ("refused", "lost"):
            return (0,)
        writer = self.cluster.writers.setdefault(_id(request), Open(len(self.cluster.writers)))
        if (writer.number, writer.epoch) != _identity(request) and handled != self._InitProducerId:
            return (OLD_EPOCH,)
        return handled(writer, request, logs, eras), writer.number, writer.epoch

    def _InitProducerId(self, writer: Open, request: Any, logs: Any, eras: Any) -> int:
        writer.forget()  # aborts the open transaction
        writer.sequences.clear()
        writer.epoch, writer.is_open, writer.ended = writer.epoch + 1, False, ""
        return 0

    def _AddPartitionsToTxn(self, writer: Open, request: Any, logs: Any, eras: Any) -> int:
        if not writer.is_open:
            writer.forget()
            writer.is_open, writer.begun = True, eras
        return 0

    _AddOffsetsToTxn = _AddPartitionsToTxn

    def _Produce(self, writer: Open, request: Any, logs: Any, eras: Any) -> int:
        data = _batch(request)
        if not writer.is_open:
            return NO_TRANSACTION
        if data[SEQUENCE] not in writer.sequences:
            writer.sequences.add(data[SEQUENCE])
            writer.results += [(int(number), int(era)) for number, era in RESULT.findall(data)]
        return 0

    def _TxnOffsetCommit(self, writer: Open, request: Any, logs: Any, eras: Any) -> int:
        if not writer.is_open:
            return NO_TRANSACTION
        (topic,) = request.topics
        (part,) = topic.partitions
        at = TopicPartition(topic.name, part.partition_index)
        offset = OffsetAndMetadata(part.committed_offset, part.committed_metadata, part.committed_leader_epoch)
        writer.offset = at, offset, logs[at]
        return 0

    def _EndTxn(self, writer: Open, request: Any, logs: Any, eras: Any) -> int:
        how = "commit" if request.committed else "abort"
        if not writer.is_open:
            return 0 if how == writer.ended else NO_TRANSACTION
        if request.committed:
            self.cluster.ends(writer)
            if writer.offset is not None and writer.offset[0] in self.cluster.leaders:
                self.cluster.committed[writer.offset[0]] = writer.offset[1]
        writer.is_open, writer.ended, writer.offset = False, how, None
        return 0

    def fetched(self, request: Any) -> Any:
        response = super().fetched(request)
        pending = {each.offset[0] for each in self.cluster.writers.values() if each.offset is not None}
        for topic in response.topics:
            for part in topic.partitions:
                if request.require_stable and TopicPartition(topic.name, part.partition_index) in pending:
                    part.error_code = UNSTABLE
        return response


def _id(request: Any) -> str:
    return str(getattr(request, "v3_and_below_transactional_id", None) or request.transactional_id)


def _identity(request: Any) -> tuple[int, int]:
    if hasattr(request, "topic_data"):
        data = _batch(request)
        return int.from_bytes(data[43:51], "big"), int.from_bytes(data[51:53], "big")
    before = "v3_and_below_" if hasattr(request, "v3_and_below_producer_id") else ""
    return getattr(request, f"{before}producer_id"), getattr(request, f"{before}producer_epoch")


def _batch(request: Any) -> bytes:
    (topic,) = request.topic_data
    (part,) = topic.partition_data
    return bytes(part.records)


def _response(code: int, number: int = -1, epoch: int = -1) -> Any:
    """The fields of the responses to all kinds of requests."""
    part = SimpleNamespace(partition_error_code=code, error_code=code, index=0, base_offset=0, log_append_time_ms=-1)
    topic = SimpleNamespace(name=OUT.topic, results_by_partition=[part], partitions=[part], partition_responses=[part])
    lists = ("results_by_topic_v3_and_below", "topics", "responses")
    return SimpleNamespace(
        error_code=code, producer_id=number, producer_epoch=epoch, **{name: [topic] for name in lists}
    )
