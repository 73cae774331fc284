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
from confluent_kafka import Consumer as Reader
from confluent_kafka import Producer as Confluent
from confluent_kafka import TopicPartition as Partition
from hypothesis import given
from hypothesis import settings as tuned
from hypothesis import strategies as st
from mirroring import contents, cut, killed, more, settings, translation

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
from allocator.testing import LocalCluster, produce, wait_until, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(180)


def abort(bootstrap: str, topic: str, count: int) -> None:
    reader, at = Reader({"bootstrap.servers": bootstrap, "group.id": "none"}), Partition(topic, 0)
    before = reader.get_watermark_offsets(at, 30)[1]
    producer = Confluent({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(count):
        producer.produce(topic, key=b"k", value=b"aborted %d" % n, partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    # the coordinator writes the marker behind its response
    wait_until(lambda: reader.get_watermark_offsets(at, 30)[1] > before + count, 30, "the marker")
    reader.close()


class Scene:
    """A mirror of one partition, in a process that never commits and is killed."""

    def __init__(self, old: LocalCluster, new: LocalCluster, topic: str, group: str) -> None:
        self.old, self.new, self.topic, self.group = old, new, topic, group
        self.settings = settings(old, new, group, topics=[topic], old_zookeeper=None)

    async def fill(self, name: str, count: int, keys: int = 1000) -> None:
        rows = [(b"k%d" % (n % keys), f"{name} {n}".encode(), 0) for n in range(count)]
        await asyncio.to_thread(
            produce, self.old.bootstrap, self.topic, rows, version=self.old.version, batch_records=10
        )

    async def copied(self) -> list[str]:
        return [row[3].decode() for row in (await contents(self.new, self.topic))[0]]

    async def crash(self, copied: int) -> None:
        """Runs the mirror until the new cluster has so many records, and kills it."""
        script = "import asyncio, sys; from allocator.migrate import Mirror, MirrorSettings; "
        script += f"asyncio.run(Mirror({replace(self.settings, commit_interval_s=3600.0)!r}).run())"
        process = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", script])
        try:

            async def count() -> int:
                rows = (await contents(self.new, self.topic))[0]
                return int(rows[-1][0]) + 1 if rows else 0

            await wait_until_async(lambda: more(count, copied - 1), 60, "the records to come over")
        finally:
            killed(process)


def numbered(name: str, count: int) -> list[str]:
    return [f"{name} {n}" for n in range(count)]


async def scene(
    cluster_factory: Any,
    topic_factory: Callable[..., str],
    group: str,
    config: dict[str, str] | None = None,
    **options: Any,
) -> Scene:
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", **options))
    new = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    return Scene(old, new, await asyncio.to_thread(topic_factory, 1, 1, config, old), group)


async def test_records_behind_an_aborted_transaction_are_not_written_twice_after_a_crash(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    world = await scene(cluster_factory, topic_factory, group)
    partition = TopicPartition(world.topic, 0)

    async def reached(offset: int) -> bool:
        async with KafkaClient(world.old.bootstrap) as client:
            found = (await GroupOffsets(client, group).fetch([partition])).get(partition)
        return found is not None and found.offset >= offset

    await world.fill("first", 300)
    await asyncio.to_thread(abort, world.old.bootstrap, world.topic, 10)
    await Mirror(world.settings).run(until_caught_up=True)
    assert await reached(311)
    await world.fill("second", 100)
    await world.crash(400)
    mirror = Mirror(world.settings)
    await mirror.run(until_caught_up=True)
    assert await world.copied() == numbered("first", 300) + numbered("second", 100)
    assert (mirror.already_present, mirror.duplicated, mirror.records) == (100, 0, 0)
    # the new log ends with a record that the old one does not have, and no old record follows
    await world.fill("third", 10)
    await world.crash(410)
    await asyncio.to_thread(produce, world.new.bootstrap, world.topic, [(b"k", b"other", 0)], version=world.new.version)
    mirror = Mirror(world.settings)
    await within(mirror.run(until_caught_up=True), 60)
    assert await world.copied() == [*numbered("first", 300), *numbered("second", 100), *numbered("third", 10), "other"]
    assert (mirror.already_present, mirror.duplicated, mirror.records) == (10, 1, 0)


async def test_after_a_crash_a_copy_by_map_skips_no_record_behind_an_aborted_transaction(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """The records behind it are on the new cluster, and their entry of the map is not."""
    world = await scene(cluster_factory, topic_factory, group)
    partition, service = TopicPartition(world.topic, 0), f"{group}-service"
    await world.fill("first", 300)
    await asyncio.to_thread(abort, world.old.bootstrap, world.topic, 10)
    await Mirror(world.settings).run(until_caught_up=True)
    async with KafkaClient(world.old.bootstrap) as client:
        await client.refresh()
        await GroupOffsets(client, service).commit({partition: OffsetAndMetadata(311, "", -1)})
    await world.fill("second", 100)
    await world.crash(400)
    source, target = OffsetStore(world.old.bootstrap, service), OffsetStore(world.new.bootstrap, service)
    (row,) = (await copy_offsets(source, target, by="map", mirror=group)).rows
    assert (row.after, row.problem) == (300, "")


async def test_a_cluster_that_sets_times_by_default_keeps_the_mirrored_ones_and_gets_each_record_once(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    sets_times = {"log.message.timestamp.type": "LogAppendTime"}
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1"))
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", broker_config=sets_times))
    world = Scene(old, new, await asyncio.to_thread(topic_factory, 1, 1, None, old), group)
    await world.fill("first", 100)
    await Mirror(world.settings).run(until_caught_up=True)
    await world.fill("second", 50)
    await world.crash(150)
    mirror = Mirror(world.settings)
    await mirror.run(until_caught_up=True)
    assert (mirror.already_present, mirror.duplicated, mirror.records) == (50, 0, 0)
    assert await contents(new, world.topic) == await contents(old, world.topic)
    present = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, present, 1)
    with pytest.raises(TopicsDiffer, match=r"message\.timestamp\.type=LogAppendTime: times would be lost"):
        await Mirror(replace(world.settings, group=f"{group}-2", topics=[present])).run(until_caught_up=True)


@pytest.mark.parametrize("lost", [40, 100])
async def test_records_that_the_new_cluster_loses_after_a_crash_are_sent_again(
    lost: int, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    world = await scene(cluster_factory, topic_factory, group)
    await world.fill("first", 100)
    await Mirror(world.settings).run(until_caught_up=True)
    await asyncio.to_thread(abort, world.old.bootstrap, world.topic, 10)
    await world.fill("second", 100)
    await world.crash(200)
    await asyncio.to_thread(cut, world.new, world.topic, 200 - lost)
    assert len(await world.copied()) == 200 - lost
    mirror = Mirror(world.settings)
    await mirror.run(until_caught_up=True)
    assert await world.copied() == numbered("first", 100) + numbered("second", 100)
    assert (mirror.already_present, mirror.duplicated, mirror.records) == (100 - lost, 0, lost)
    assert (await translation(mirror.settings, TopicPartition(world.topic, 0))).target(111) == 100


async def test_a_mirror_that_has_caught_up_ends_although_producers_continue(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    world = await scene(cluster_factory, topic_factory, group)
    await world.fill("first", 100)
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await world.fill("more", 10)

    writing = asyncio.ensure_future(write())
    try:
        await within(Mirror(world.settings).run(until_caught_up=True), 30)
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
        """All records that the new log was given and did not lose, also those that it deleted since."""
        self.map = OffsetTranslation([Run(0, 0)])
        self.committed = 0
        self.stored = Target(0).committed(0)
        self.unexpected = 0
        self.start()

    def start(self) -> None:
        """After a crash: what `take_over` does."""
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
        self.position = PartitionCopy(self.read, end)
        self.sent: deque[tuple[Encoded, int]] = deque()

    def step(self, count: int) -> None:
        """Reads `count` offsets, and writes their records."""
        stop = min(self.read + count, len(self.source))
        here = [each for each in self.source[self.read : stop] if each is not None]
        if here:  # a consumer gives no batch without records
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


@tuned(max_examples=500)
@given(st.data())
def test_any_history_and_any_crash_write_each_record_once(data: st.DataObject) -> None:
    mirror = Crashing()
    live(data, mirror, HISTORY)
    mirror.check()
    assert mirror.written == [each for each in mirror.source if each is not None]
    assert mirror.unexpected == 0


@tuned(max_examples=500)
@given(st.data())
def test_any_compaction_and_other_producers_and_any_crash_write_each_record_once(data: st.DataObject) -> None:
    """A record is written again only if the new cluster has deleted its copy."""
    mirror = Crashing()
    live(data, mirror, [*HISTORY, "compact", "compact", "other"])
    mirror.check()


@pytest.mark.parametrize(
    ("deleted", "kept", "present", "unexpected"),
    [(10, 10, 2, 0), (12, 10, 2, 0), (9, 0, 2, 10)],
)
def test_records_that_the_old_cluster_deleted_after_a_crash_are_not_lost(
    deleted: int, kept: int, present: int, unexpected: int
) -> None:
    rows = [Record("t", 0, n, 1, 0, b"k", b"%d" % n, []) for n in range(12)]
    tail = Tail(0, 12, deque((n, digest(row)) for n, row in enumerate(rows)))
    batch: Any = rows[10:]
    tail.match(batch)
    assert tail.finish(deleted) == kept
    assert (tail.present, tail.unexpected) == (present, unexpected)


def test_records_without_a_written_predecessor_do_not_count_as_deleted() -> None:
    """Another producer's record behind a gap, and nothing of the mirror."""
    rows: Any = [Record("t", 0, n, 1, 0, b"k", b"%d" % n, []) for n in range(12)]
    tail = Tail(0, 6, deque([(5, b"of another producer")]))
    tail.match(rows)
    assert tail.finish(0) == 0
    assert (tail.next_source, tail.present, tail.unexpected) == (None, 0, 1)


def test_a_commit_names_its_target_and_other_metadata_names_none() -> None:
    for target in (Target(5), Target(5, "one")):
        for source_id in (None, "12345678-1234-1234-1234-123456789012"):
            assert Target.of(target.committed(7, source_id)) == target
    for text in ("", "generation 1 member one", "mirrored 7 to x", "mirrored 7 to 5 or so", "mirrored 8 to 5"):
        assert Target.of(OffsetAndMetadata(7, text, -1)) is None
    assert Target.of(None) is None
