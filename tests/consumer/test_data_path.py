"""Compares the data path in docs/architecture.md with the trace of one record.

A stop is an object of this project that takes the record over: its bytes, its decoded form, or the offset after it.
What an object does by calling itself is part of the same stop, also in a task of its own if no other object had the
record in between. A call that only computes is no stop: a property, a constructor, a function of a module, a method of
the record's own forms, and the queries in `QUERIES`.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kafka.protocol.consumer import FetchResponse as KafkaFetchResponse

import allocator
from allocator import Consumer, OffsetAndMetadata, TopicPartition
from allocator.core.client.fetch_messages import FetchedPartition, FetchResponse
from allocator.core.client.offset_commit import OffsetCommit
from allocator.core.client.response_reader import ResponseReader
from allocator.core.consumer.commit_call import CommitCall
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.buffer import Chunk
from allocator.core.fetch.decode import RecordSet
from allocator.core.offsets.pending_commit import PendingCommit
from allocator.handlers.lanes import Lane
from allocator.handlers.window import Unit
from allocator.testing import wait_until_async
from allocator.types import Record
from tests.client.fake_broker import MODERN, FakeBroker
from tests.fetch.fetch_encode import R, batch
from tests.offsets.offset_responses import commit_response, fetch_response

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PACKAGE = str(Path(allocator.__file__).parent)
MOST_STOPS = 12
MOST_STOPS_WITH_HANDLER = 18

P = TopicPartition("orders", 0)
MARK = b"a record on its way"
OFFSET = 1_234_567
NEXT = OFFSET + 1
NEXT_ON_THE_WIRE = struct.pack(">q", NEXT)
END = NEXT + 10  # the log end that the broker reports

# the forms in which a record travels; their own methods compute
FORMS = (
    FetchResponse,
    FetchedPartition,
    RecordSet,
    Chunk,
    Batch,
    Record,
    OffsetCommit,
    PendingCommit,
    CommitCall,
    Unit,
)
# the compiled decoder shows no calls, so ignore the one in Python too
DECODER = ("columns.py", "decode.py", "decode_plain.py", "record.py")
# these methods store nothing of the record
QUERIES = {
    "CommitMetadata.added",
    "GroupMember.must_own",
    "Fetcher.leader_epoch",
    "FetchSession.received",
    "FetchSession.parts",
    "PartitionBuffer.leader_epoch",
    "PartitionBuffer.precedes",
    "Planner.leader_epoch",
    "Admission.done",
    "Progress.done",
    "PartitionWorker.is_refused",
    "Progress.to_commit",
    "PartitionWorker.done",
    "Window.done_set",
    "Progress.leader_epoch",
    "SubscriptionState.leader_epoch",
}


class Commands(FakeBroker):
    """Has one record; keeps the offsets that are committed."""

    def __init__(self) -> None:
        handlers = {1: self._fetch, 8: self._commit, 9: self._committed}
        super().__init__(handlers, versions={**MODERN, 1: (0, 11)})
        self.topics = {P.topic: [1]}  # its leader
        self.committed: list[int] = []
        # the first response has no records: the consumer still has to connect for it
        self._responses = [b"", batch([R(0, MARK)], OFFSET)]
        self.over = asyncio.Event()

    async def _fetch(self, _: Any) -> Any:
        if not self._responses:
            await self.over.wait()
        records = self._responses.pop(0) if self._responses else b""
        kind = KafkaFetchResponse.FetchableTopicResponse
        data = kind.PartitionData(
            partition_index=P.partition, error_code=0, high_watermark=END, last_stable_offset=END,
            log_start_offset=0, aborted_transactions=[], preferred_read_replica=-1, records=records,
        )  # fmt: skip
        topic = kind(topic=P.topic, partitions=[data])
        return KafkaFetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic], version=11)

    def _commit(self, request: Any) -> Any:
        def store(partition: TopicPartition, at: OffsetAndMetadata) -> int:
            self.committed.append(at.offset)
            return 0

        return commit_response(request, store)

    def _committed(self, request: Any) -> Any:
        return fetch_response(request, [P], {P: OffsetAndMetadata(OFFSET, "", -1)})


class Trace:
    """The objects that the record passes, in order, until its offset is sent in a commit."""

    def __init__(self) -> None:
        self.stops: list[str] = []
        self._entered: set[FrameType] = set()  # kept, so that no other frame is taken for one of them
        self._owner: object = None  # of the latest stop
        self._delivered = False
        self._over = False

    def __enter__(self) -> Trace:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        if self._over or not in_package(frame):
            return
        if event == "call":
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(self._carries(frame.f_locals.get(name)) for name in names if name != "self"):
                self._came_to(frame)
                self._over = self._delivered and code.co_name == "send_now"
        elif event == "return" and self._carries(value):
            # before that, the offset is only the start of the next fetch
            self._delivered = self._delivered or isinstance(value, Batch)
            self._came_to(frame)
            if frame.f_back is not None and in_package(frame.f_back):
                self._came_to(frame.f_back)

    def _carries(self, value: Any) -> bool:
        return carries_record(value) or (self._delivered and carries_offset(value))

    def _came_to(self, frame: FrameType) -> None:
        """The stop is the call by which the object was entered, from another one."""
        owner = frame.f_locals.get("self")
        if owner is None or is_computing(frame.f_code, owner):
            return
        caller = frame.f_back
        while caller is not None:
            if in_package(caller):
                if caller.f_locals.get("self") is not owner:
                    break
                frame = caller
            caller = caller.f_back
        if frame not in self._entered:
            self._entered.add(frame)
            if owner is not self._owner:
                self.stops.append(name_of(frame.f_code, owner))
            self._owner = owner


def in_package(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(PACKAGE) and not name.endswith(DECODER)


def carries_record(value: Any) -> bool:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return MARK in bytes(value)
    if isinstance(value, FetchResponse):
        return any(part.records for part in value.parts)
    if isinstance(value, FetchedPartition):
        return bool(value.records)
    if isinstance(value, (tuple, list, deque)):
        return any(map(carries_record, value))
    if isinstance(value, Lane):
        return carries_record(value.units)
    return isinstance(value, (RecordSet, Chunk, Batch, Record, Unit))


def carries_offset(value: Any) -> bool:
    if isinstance(value, (bytes, bytearray)):
        return NEXT_ON_THE_WIRE in value
    if isinstance(value, OffsetCommit):
        return carries_offset(value.offsets)
    if isinstance(value, PendingCommit):
        return carries_offset(value.left)
    if isinstance(value, Mapping):
        return any(map(carries_offset, value.values()))
    if isinstance(value, (tuple, list)):  # an OffsetAndMetadata too
        return any(map(carries_offset, value))
    return isinstance(value, int) and value == NEXT


def is_computing(code: CodeType, owner: object) -> bool:
    name = code.co_name
    if isinstance(owner, (*FORMS, ResponseReader)) or name.startswith(("__", "<")):
        return True
    return isinstance(defined_in(owner, name)[1], property) or name_of(code, owner) in QUERIES


def defined_in(owner: object, name: str) -> tuple[type, Any]:
    return next(((kind, vars(kind)[name]) for kind in type(owner).__mro__ if name in vars(kind)), (type(owner), None))


def name_of(code: CodeType, owner: object) -> str:
    """As the page has it."""
    return f"{defined_in(owner, code.co_name)[0].__name__}.{code.co_name}"


def listed(title: str) -> list[str]:
    section = PAGE.read_text().split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)


async def test_a_record_takes_the_documented_path() -> None:
    async with Commands() as broker:
        consumer = Consumer(
            P.topic, brokers=broker.address, group="g", membership="fixed", auto_commit_interval_s=None, max_wait_s=0.1
        )
        with Trace() as trace:
            async with consumer:
                record = await consumer.getone(5)
                assert (record.offset, record.value) == (OFFSET, MARK)
                await consumer.commit()
                broker.over.set()
        assert broker.committed == [NEXT]
    assert trace.stops == listed("The data path")
    assert len(trace.stops) <= MOST_STOPS


async def test_a_record_through_a_handler_takes_the_documented_path() -> None:
    async with Commands() as broker:
        consumer = Consumer(P.topic, brokers=broker.address, group="g", membership="fixed", max_wait_s=0.1)
        handled: list[int] = []

        async def handle(record: Record) -> None:
            handled.append(record.offset)

        async with consumer:
            work = asyncio.ensure_future(consumer.process(handle, commit_interval_s=0.05))
            with Trace() as trace:
                await wait_until_async(lambda: broker.committed[-1:] == [NEXT], 30, "the commit")
            broker.over.set()
            work.cancel()
            await asyncio.wait({work})
        assert handled == [OFFSET]
    assert trace.stops == listed("Records through a handler")
    assert len(trace.stops) <= MOST_STOPS_WITH_HANDLER
