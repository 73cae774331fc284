"""A mirror that is killed at any point writes each record once, whatever invisible offsets the old log has."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from allocator.core.aio.tasks import within
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.record import Record
from allocator.migrate.mirror import Mirror
from allocator.migrate.offset_map import OffsetTranslation, Run
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.positions import PartitionCopy, Target
from allocator.migrate.storage import OffsetStore
from allocator.migrate.tails import Tail, digest
from allocator.migrate.topics import TopicsDiffer
from allocator.producer.encoding import Encoded
from allocator.testing import produce, wait_until_async
from allocator.types import OffsetAndMetadata
from tests.migrate.mirroring import Pair, commit, contents, cut, killed, more, numbered, transactions

pytestmark = pytest.mark.deadline(180)

MakePair = Callable[..., Any]


async def crash(pair: Pair, copied: int) -> None:
    """Runs the mirror in a process that never commits until the new cluster has so many records, and kills it."""
    script = "import asyncio, sys; from allocator.migrate import Mirror, MirrorSettings; "
    script += f"asyncio.run(Mirror({replace(pair.settings, commit_interval_s=3600.0)!r}).run())"
    process = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", script])

    async def count() -> int:
        rows = (await contents(pair.new, pair.topic))[0]
        return int(rows[-1][0]) + 1 if rows else 0

    try:
        await wait_until_async(lambda: more(count, copied - 1), 60, "the records to come over")
    finally:
        killed(process)


def counters(mirror: Mirror) -> tuple[int, int, int]:
    return mirror.already_present, mirror.duplicated, mirror.records


async def test_records_behind_an_aborted_transaction_are_neither_written_twice_nor_skipped_after_a_crash(
    make_pair: MakePair, group: str
) -> None:
    pair = await make_pair(old_zookeeper=None)

    async def committed() -> int:
        async with KafkaClient(pair.old.bootstrap) as client:
            return (await GroupOffsets(client, group).fetch([pair.partition]))[pair.partition].offset

    await pair.fill(300, "first")
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, (b"aborted", 10))
    await pair.catch_up()
    assert await committed() >= 311
    service = f"{group}-service"
    await commit(pair.old, service, {pair.partition: 311})
    await pair.fill(100, "second")
    await crash(pair, 400)
    # the new cluster has the second records, but the map has no entry for them
    source, target = OffsetStore(pair.old.bootstrap, service), OffsetStore(pair.new.bootstrap, service)
    (row,) = (await copy_offsets(source, target, by="map", mirror=group)).rows
    assert (row.after, row.problem) == (300, "")
    assert counters(await pair.catch_up()) == (100, 0, 0)
    assert await pair.copied() == numbered("first", 300) + numbered("second", 100)
    # the new log ends with a record that the old one does not have, and no old record follows
    await pair.fill(10, "third")
    await crash(pair, 410)
    await asyncio.to_thread(produce, pair.new.bootstrap, pair.topic, [(b"k", b"other", 0)], version=pair.new.version)
    assert counters(await within(pair.catch_up(), 60)) == (10, 1, 0)
    assert await pair.copied() == [*numbered("first", 300), *numbered("second", 100), *numbered("third", 10), "other"]


@pytest.mark.long
async def test_a_cluster_that_sets_times_by_default_keeps_the_mirrored_ones_and_gets_each_record_once(
    make_pair: MakePair, cluster_factory: Any
) -> None:
    sets_times = {"log.message.timestamp.type": "LogAppendTime"}
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", broker_config=sets_times))
    pair = await make_pair(new=new, old_zookeeper=None)
    await pair.fill(100, "first")
    await pair.catch_up()
    await pair.fill(50, "second")
    await crash(pair, 150)
    assert counters(await pair.catch_up()) == (50, 0, 0)
    await pair.assert_equal()
    present = await pair.add_topic()
    await asyncio.to_thread(new.create_topic, present, 1)
    with pytest.raises(TopicsDiffer, match=r"message\.timestamp\.type=LogAppendTime: times would be lost"):
        await pair.catch_up()


@pytest.mark.parametrize("lost", [40, pytest.param(100, marks=pytest.mark.long)])
async def test_records_that_the_new_cluster_loses_after_a_crash_are_sent_again(lost: int, make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    await pair.fill(100, "first")
    await pair.catch_up()
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, (b"aborted", 10))
    second = "second" + 7000 * "x"  # a mirror merges smaller batches
    await pair.fill(100, second, batch_records=10)
    await crash(pair, 200)
    await asyncio.to_thread(cut, pair.new, pair.topic, 200 - lost)
    assert len(await pair.copied()) == 200 - lost
    assert counters(await pair.catch_up()) == (100 - lost, 0, lost)
    assert await pair.copied() == numbered("first", 100) + numbered(second, 100)
    assert (await pair.translation()).target(111) == 100


async def test_a_mirror_that_has_caught_up_ends_although_producers_continue(make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    await pair.fill(100)
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await pair.fill(10, "more")

    writing = asyncio.ensure_future(write())
    try:
        await within(pair.catch_up(), 30)
    finally:
        stop.set()
        await writing


class Crashing:
    """A mirror of one partition between two lists, with crashes.

    None in a list: an offset without a record. In the old log that is a marker, or an aborted, compacted or deleted
    record; in the new one a record that its cluster compacted or deleted.
    """

    def __init__(self) -> None:
        self.source: list[Record | None] = []
        self.copy: list[Record | None] = []
        self.written: list[Record] = []
        """All records that reached the new log and were not lost, including those that it deleted since."""
        self.map = OffsetTranslation([Run(0, 0)])
        self.committed = 0
        self.stored = Target(0).committed(0)
        self.unexpected = 0
        self.start()

    def start(self) -> None:
        """Continues after a crash, like `take_over`."""
        kept = Target.of(self.stored)
        assert kept is not None
        self.committed = kept.offset
        position, end = self.stored.offset, len(self.copy)
        records = deque((n, digest(row)) for n in range(kept.offset, end) if (row := self.copy[n]) is not None)
        tail = Tail(kept.offset, end, records)
        for at in range(position, len(self.source), 3):
            batch: Any = [each for each in self.source[at : at + 3] if each is not None]
            tail.match(batch)
        tail.finish(0)
        self.unexpected += tail.unexpected
        for run in (*self.map.corrected(end), *tail.runs):
            self.map.note(run)
        self.read = position if tail.next_source is None else tail.next_source
        self.position = PartitionCopy(self.read, tail.next_target, counted=end)
        own = max((n + 1 for n, row in enumerate(self.written) if row.offset >= 0), default=0)
        assert self.position.end <= own, "what others wrote behind the last copy counts as mirrored"
        self.sent: deque[tuple[Encoded, int]] = deque()

    def step(self, count: int) -> None:
        """Reads `count` offsets, and writes their records."""
        stop = min(self.read + count, len(self.source))
        here = [each for each in self.source[self.read : stop] if each is not None]
        if here:  # a consumer returns no batch without records
            runs = [(each.offset, n) for n, each in enumerate(here) if not n or here[n - 1].offset != each.offset - 1]
            encoded = Encoded(here[0].offset, stop, tuple(runs), len(here), 0, 0, 0, memoryview(b""))
            self.sent.append((encoded, len(self.copy)))
            self.copy += here
            self.written += here
        self.read = stop

    def acknowledge(self) -> None:
        if self.sent:
            encoded, target = self.sent.popleft()
            for source, before in encoded.runs:
                self.map.note(Run(source, target + before))
            self.unexpected += self.position.note(encoded, target)

    def commit(self) -> None:
        if not self.sent:
            self.position.pass_to(self.read)
        self.stored = self.position.commit

    def lose(self, keep: int) -> None:
        """The process crashes, and the new cluster loses the records from `keep` on, none of which is committed."""
        kept = Target.of(self.stored)
        assert kept is not None
        end = max(keep, kept.offset)
        while end > kept.offset and self.copy[end - 1] is None:  # brokers never delete the last record
            end -= 1
        del self.copy[end:]
        del self.written[end:]
        self.start()

    def check(self) -> None:
        """Mirrors the rest. Each record is there once, and the map skips none."""
        self.start()
        self.step(len(self.source))
        while self.sent:
            self.acknowledge()
        there = [each.offset for each in self.copy if each is not None and each.offset >= 0]
        assert len(there) == len(set(there))
        assert {each.offset for each in self.source if each is not None} <= {each.offset for each in self.written}
        for target, row in enumerate(self.copy):
            if row is not None and row.offset >= 0 and self.source[row.offset] is not None:
                found = self.map.target(row.offset)
                assert found is not None
                assert found <= target


HISTORY = ["write", "write", "hide", "step", "step", "ack", "commit", "crash", "lose"]


def live(data: st.DataObject, mirror: Crashing, steps: list[str]) -> None:
    """Draws a history of both logs and of the mirror."""
    value = 0
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(steps))
        count = data.draw(st.integers(1, 4))
        if step == "write":
            for _ in range(count):
                value += data.draw(st.integers(0, 1)) if "compact" not in steps else 1  # records may be equal
                mirror.source.append(Record("t", 0, len(mirror.source), 1, 0, b"k", b"%d" % value, []))
        elif step == "hide":
            mirror.source += [None] * count
        elif step == "step":
            mirror.step(count)
        elif step == "ack":
            mirror.acknowledge()
        elif step == "commit":
            mirror.commit()
        elif step == "lose":
            mirror.lose(data.draw(st.integers(0, len(mirror.copy))))
        elif step == "other":  # another producer
            mirror.copy.append(Record("t", 0, -1, 1, 0, b"other", b"%d" % len(mirror.copy), []))
            mirror.written.append(mirror.copy[-1])
        elif step == "compact":  # each cluster in its own time
            rows = data.draw(st.sampled_from([mirror.source, mirror.copy]))
            if rows:
                rows[data.draw(st.integers(0, len(rows) - 1))] = rows[-1] if len(rows) == 1 else None
                if rows is mirror.copy and rows[-1] is None:
                    rows[-1] = mirror.written[-1]
        else:
            mirror.start()


@tuned(max_examples=200)
@given(st.data())
def test_any_history_and_any_crash_write_each_record_once(data: st.DataObject) -> None:
    mirror = Crashing()
    live(data, mirror, HISTORY)
    mirror.check()
    assert mirror.written == [each for each in mirror.source if each is not None]
    assert mirror.unexpected == 0


@tuned(max_examples=200)
@given(st.data())
def test_any_compaction_and_other_producers_and_any_crash_write_each_record_once(data: st.DataObject) -> None:
    """A record is written again only if the new cluster has deleted its copy."""
    mirror = Crashing()
    live(data, mirror, [*HISTORY, "compact", "compact", "other"])
    mirror.check()


@pytest.mark.parametrize(("deleted", "kept", "present", "unexpected"), [(10, 10, 2, 0), (12, 10, 2, 0), (9, 0, 2, 10)])
def test_records_that_the_old_cluster_deleted_after_a_crash_are_not_lost(
    deleted: int, kept: int, present: int, unexpected: int
) -> None:
    rows = [Record("t", 0, n, 1, 0, b"k", b"%d" % n, []) for n in range(12)]
    tail = Tail(0, 12, deque((n, digest(row)) for n, row in enumerate(rows)))
    batch: Any = rows[10:]
    tail.match(batch)
    assert tail.finish(deleted) == kept
    assert (tail.present, tail.unexpected) == (present, unexpected)


def test_a_commit_names_its_target_and_other_metadata_names_none() -> None:
    for target in (Target(5), Target(5, "one")):
        for source_id in (None, "12345678-1234-1234-1234-123456789012"):
            assert Target.of(target.committed(7, source_id)) == target
    for text in ("", "generation 1 member one", "mirrored 7 to x", "mirrored 7 to 5 or so", "mirrored 8 to 5"):
        assert Target.of(OffsetAndMetadata(7, text, -1)) is None
    assert Target.of(None) is None
