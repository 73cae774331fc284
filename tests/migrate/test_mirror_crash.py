"""A mirror that is killed at any point writes each record once, whatever invisible offsets the old log has."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import Producer as Confluent
from hypothesis import given
from hypothesis import settings as tuned
from hypothesis import strategies as st
from mirroring import contents, killed, more, settings

from allocator.client.client import KafkaClient
from allocator.migrate.mirror import Mirror
from allocator.migrate.positions import PartitionPosition, Target
from allocator.migrate.tails import Tail, digest
from allocator.offsets.group_offsets import GroupOffsets
from allocator.producer.encode import Encoded
from allocator.record import Record
from allocator.testing import produce, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(180)


def abort(bootstrap: str, topic: str, count: int) -> None:
    producer = Confluent({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(count):
        producer.produce(topic, key=b"k", value=b"aborted %d" % n, partition=0)
    producer.flush(30)
    producer.abort_transaction(30)


async def test_records_behind_an_aborted_transaction_are_not_written_twice_after_a_crash(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    new = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    partition = TopicPartition(topic, 0)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)

    async def fill(name: str, count: int) -> None:
        rows = [(b"k%d" % n, f"{name} {n}".encode(), 0) for n in range(count)]
        await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version)

    async def reached(offset: int) -> bool:
        async with KafkaClient(old.bootstrap) as client:
            found = (await GroupOffsets(client, group).fetch([partition])).get(partition)
        return found is not None and found.offset >= offset

    await fill("first", 300)
    await asyncio.to_thread(abort, old.bootstrap, topic, 10)
    await Mirror(chosen).run(until_caught_up=True)
    assert await reached(311)
    await fill("second", 100)
    script = "import asyncio, sys; from allocator.migrate.mirror import Mirror, MirrorSettings; "
    script += f"asyncio.run(Mirror({replace(chosen, commit_interval_s=3600.0)!r}).run())"
    process = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", script])
    try:

        async def copied() -> int:
            return len((await contents(new, topic))[0])

        await wait_until_async(lambda: more(copied, 399), 60, "the records to come over")
    finally:
        killed(process)
    mirror = Mirror(chosen)
    await mirror.run(until_caught_up=True)
    assert [row[3] for row in (await contents(new, topic))[0]] == [
        f"{name} {n}".encode() for name, count in (("first", 300), ("second", 100)) for n in range(count)
    ]
    assert (mirror.already_present, mirror.duplicated, mirror.records) == (100, 0, 0)


@dataclass(frozen=True)
class Fetched:
    """A batch: the offsets from `at` to `next_offset`, with the visible records among them."""

    records: tuple[Record, ...]
    next_offset: int

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def from_offset(self, offset: int) -> Fetched:
        return replace(self, records=tuple(each for each in self.records if each.offset >= offset))


class Crashing:
    """A mirror of one partition between two lists, with crashes."""

    def __init__(self) -> None:
        self.source: list[Record | None] = []  # None: a marker, or an aborted, compacted or deleted record
        self.copy: list[Record] = []
        self.stored = Target(0).committed(0)
        self.strange = 0
        self.start()

    def start(self) -> None:
        kept = Target.of(self.stored)
        assert kept is not None
        tail = deque((n, digest(self.copy[n])) for n in range(kept.offset, len(self.copy)))
        end = len(self.copy)
        self.read = self.stored.offset
        self.position = PartitionPosition(self.stored.offset, kept.offset, end, Tail(tail) if tail else None)
        self.sent: deque[tuple[Encoded, int]] = deque()

    def step(self, count: int) -> None:
        """Reads `count` offsets, and writes the records of which the new log has no copy."""
        stop = min(self.read + count, len(self.source))
        here = tuple(each for each in self.source[self.read : stop] if each is not None)
        if here:  # a consumer gives no batch without records
            batch: Any = Fetched(here, stop)
            tail = self.position.tail
            rest = tuple(self.position.skip_present(batch))
            if tail is not None:
                self.strange += tail.skipped_now + (tail.left if tail.over else 0)
            if rest:
                runs = ((rest[0].offset, 0),)
                encoded = Encoded(rest[0].offset, stop, runs, len(rest), 0, 0, 0, memoryview(b""))
                self.sent.append((encoded, len(self.copy)))
                self.copy += rest
        self.read = stop

    def acknowledge(self) -> None:
        if self.sent:
            self.strange += self.position.note(*self.sent.popleft())

    def commit(self) -> None:
        if not self.sent:
            self.position.pass_to(self.read)
        self.stored = self.position.stored.committed(self.position.acked)


@tuned(max_examples=500)
@given(st.data())
def test_any_history_and_any_crash_write_each_record_once(data: st.DataObject) -> None:
    mirror = Crashing()
    value = 0
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["write", "write", "hide", "step", "step", "ack", "commit", "crash"]))
        count = data.draw(st.integers(1, 4))
        if step == "write":
            value += data.draw(st.integers(0, 1))  # records may be equal
            offset = len(mirror.source)
            mirror.source += [Record("t", 0, offset + n, 1, 0, b"k", b"%d" % value, []) for n in range(count)]
        elif step == "hide":
            mirror.source += [None] * count
        elif step == "step":
            mirror.step(count)
        elif step == "ack":
            mirror.acknowledge()
        elif step == "commit":
            mirror.commit()
        else:
            mirror.start()
    mirror.start()
    mirror.step(len(mirror.source))
    assert mirror.copy == [each for each in mirror.source if each is not None]
    assert mirror.strange == 0


@given(st.sets(st.integers(0, 19)), st.integers(0, 20))
def test_records_that_compaction_removes_after_a_crash_do_not_repeat_the_others(gone: set[int], written: int) -> None:
    rows = [Record("t", 0, n, 1, 0, b"k%d" % n, b"v", []) for n in range(20)]
    mirror = Crashing()
    mirror.source += rows[:written]
    mirror.step(20)
    mirror.source[:] = [None if n in gone else row for n, row in enumerate(rows)]
    mirror.start()
    mirror.step(20)
    assert mirror.copy == [row for n, row in enumerate(rows) if n < written or n not in gone]


@pytest.mark.parametrize(
    "text", ["", "generation 1 member one", "mirrored 7 to x", "mirrored 7 to 5 or so", "mirrored 8 to 5"]
)
def test_other_metadata_names_no_target(text: str) -> None:
    assert Target.of(OffsetAndMetadata(7, text, -1)) is None
    assert Target.of(None) is None


def test_a_commit_names_its_target() -> None:
    source = "12345678-1234-1234-1234-123456789012"
    for target in (Target(5), Target(5, "one")):
        for source_id in (None, source):
            assert Target.of(target.committed(7, source_id)) == target
