"""The offset map never skips records, and stays small."""

from __future__ import annotations

import asyncio
import uuid
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allocator.core.client.client import KafkaClient
from allocator.migrate.offset_map import (
    MOST_RUNS,
    SPAN,
    BadOffsetMap,
    Entry,
    Incarnation,
    OffsetMap,
    OffsetTranslation,
    Route,
    Run,
    Switch,
    pack,
    unpack,
)
from allocator.migrate.topics import same_topic
from allocator.testing import LocalCluster
from allocator.types import TopicPartition
from tests.migrate.mirroring import transactions

PARTITION = TopicPartition("orders", 3)


def test_an_ordinary_partition_needs_one_run() -> None:
    known = OffsetTranslation()
    assert known.extend(Run(100, 0), 1)
    assert not any(known.extend(Run(100 + n, n), 7) for n in range(1, 500, 7))
    assert known.runs == [Run(100, 0)]
    assert [known.target(source) for source in (99, 100, 250, 10_000)] == [None, 0, 150, 9_900]


def test_a_map_that_begins_in_the_middle_tells_nothing_of_offsets_before_it() -> None:
    """The new log may have the records before it, whatever the old log has."""
    known = OffsetTranslation([Run(5, 20)])
    assert [known.start(source) for source in (0, 4, 5, 7)] == [None, None, 20, 22]
    assert OffsetTranslation([Run(5, 0)]).start(3) == 0
    assert OffsetTranslation().start(3) is None


class Mirrored:
    """A mirror of one partition between two logs, whose map may begin in the middle. Either log loses its first records
    at any time."""

    def __init__(self) -> None:
        self.old: list[bool] = []
        """Whether an old offset has a record."""
        self.new: list[int | None] = []
        """The old offset of each new record; None: another record."""
        self.old_start = self.new_start = self.position = 0
        self.gone: set[int] = set()
        """Records that the old log lost before this mirror got them. It reports them."""
        self.wrote: set[int] = set()
        """The old offsets of the records that this mirror wrote."""
        self.map = OffsetTranslation([Run(0, 0)])

    def grows(self, step: str, count: int) -> bool:
        """Takes a step in which a log grows. Returns False for another one."""
        if step in ("write", "hide"):
            self.old += [step == "write"] * count
        elif step == "strangers":
            self.new += [None] * count
        elif step == "mirror":
            self.mirror(count)
        else:
            return False
        return True

    def mirror(self, count: int) -> None:
        stop = min(self.position + count, len(self.old))
        batch = [n for n in range(self.position, stop) if self.old[n]]
        for _, piece in groupby(enumerate(batch), lambda each: each[1] - each[0]):
            records = [n for _, n in piece]
            self.map.extend(Run(records[0], len(self.new)), len(records))
            self.new += records
            self.wrote |= {*records}
        self.position = stop

    def begin_at(self, position: int) -> None:
        """Continues there, like `take_over` with `--append`."""
        first = max(position, self.old_start)
        if self.map.target(position) is None:
            self.map.note(Run(first, len(self.new)))
        self.position = first

    def restart(self, lost: int) -> None:
        """The new log lost its last records, and the mirror continues with `--restart`."""
        del self.new[max(self.new_start, len(self.new) - lost) :]
        self.map = OffsetTranslation()
        self.begin_at(self.old_start)

    def check_others(self) -> None:
        """A cutover is not refused for records that the mirror wrote once."""
        own = {n for n in self.wrote.intersection(self.new) if n < self.position}
        ends = [(self.position, len(self.new)), (len(self.old), len(self.new))]
        assert self.map.others(0, ends) <= len(self.new) - len(own), self.map.runs

    def check(self) -> None:
        self.check_others()
        copies = {n: at for at, n in enumerate(self.new) if at >= self.new_start and n is not None}
        for source in range(self.position + 1):
            found = self.map.start(source)
            if found is not None:
                skipped = {n for n, at in copies.items() if source <= n < self.position and at < found}
                assert skipped <= self.gone, f"a group at {source} starts at {found}: {self.map.runs}"


class Lossy(Mirrored):
    """Either log loses its last records. The mirror continues at its last commit, or where the old log was cut."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = (0, 0)

    def lose(self, count: int) -> None:
        end = max(self.committed[1], len(self.new) - count)
        del self.new[end:]
        for run in self.map.corrected(end):
            self.map.note(run)
        self.position = self.committed[0]
        for at, n in enumerate(self.new[self.committed[1] :], self.committed[1]):
            if n is not None:
                self.map.extend(Run(n, at), 1)
                self.position = n + 1

    def cut(self, count: int) -> None:
        """`--recreated continue`: other records follow in the old log, and in the new one behind all copies."""
        at, end = max(0, self.position - count), len(self.new)
        if at < self.position:
            del self.old[at:]
            self.new = [None if n is None or n >= at else n for n in self.new]
            later = [run for run in self.map.runs if run.source > at]
            for run in (Run(at, end), *(Run(run.source, end, exact=False) for run in later)):
                self.map.note(run)
            self.position, self.committed = at, (at, end)

    def check_back(self) -> None:
        """A group that has read the new log up to some offset goes back, once all is mirrored again."""
        self.mirror(len(self.old))
        self.check_others()
        for target in range(len(self.new) + 1):
            for found in (self.map.source(target), OffsetTranslation(self.map.inverse().runs).start(target)):
                if found is not None:
                    skipped = [n for n in self.new[target:] if n is not None and n < found]
                    assert not skipped, f"a group at {target} goes back to {found}: {self.map.runs}"


LOSSES = ["write", "write", "mirror", "mirror", "hide", "strangers", "commit", "lose"]


@given(
    st.lists(st.tuples(st.sampled_from(LOSSES), st.integers(1, 6)))
    | st.lists(st.tuples(st.sampled_from([*LOSSES, "cut"]), st.integers(1, 6)))
)
@example([("write", 3), ("mirror", 3), ("strangers", 1), ("write", 1), ("mirror", 1), ("lose", 6)])
@example([("hide", 3), ("write", 2), ("mirror", 5), ("cut", 3), ("write", 4)])
@example([("write", 4), ("mirror", 2), ("mirror", 6), ("strangers", 3), ("cut", 2), ("cut", 4), ("write", 4)])
@example([("write", 4), ("mirror", 4), ("strangers", 2), ("write", 5), ("mirror", 1), ("lose", 6), ("strangers", 4)])
def test_no_rollback_skips_a_record_after_a_log_has_lost_its_last_ones(history: list[tuple[str, int]]) -> None:
    model = Lossy()
    for step, count in history:
        if model.grows(step, count):
            pass
        elif step == "commit":
            model.committed = model.position, len(model.new)
        elif step == "lose":
            model.lose(count)
        else:
            model.cut(count)
    model.check_back()


STEPS = ["write", "write", "mirror", "mirror", "hide", "strangers", "delete old", "delete new"]


@given(st.lists(st.tuples(st.sampled_from([*STEPS, "new map", "restart", "other mirror", "back"]), st.integers(1, 6))))
@example([("write", 5), ("mirror", 5), ("new map", 1), ("delete old", 5)])
@example([("write", 5), ("mirror", 5), ("delete old", 2), ("restart", 2)])
@example([("write", 5), ("mirror", 5), ("delete old", 2), ("other mirror", 1), ("restart", 6)])
def test_no_start_skips_a_record_that_the_new_log_has(history: list[tuple[str, int]]) -> None:
    model = Mirrored()
    for step, count in history:
        if model.grows(step, count):
            pass
        elif step == "delete old":
            model.old_start = min(model.old_start + count, len(model.old))
            model.gone |= {*range(model.position, model.old_start)}
            model.position = max(model.position, model.old_start)
        elif step == "delete new":
            model.new_start = min(model.new_start + count, len(model.new))
        elif step == "new map":
            model.map = OffsetTranslation()
            model.begin_at(model.position)
        elif step == "restart":
            model.restart(count)
        elif step == "other mirror":
            model.new += [n for n in range(model.old_start, len(model.old)) if model.old[n]]
        else:
            model.begin_at(max(0, model.position - count))
        model.check()


def test_a_topic_with_many_gaps_has_a_small_map_that_skips_no_record() -> None:
    """Every second record was compacted away, one record in a batch."""
    known, count = OffsetTranslation(), 30_000
    added = [run for n in range(count) for run in known.extend(Run(2 * n, n), 1)]
    assert added == known.runs
    assert len(added) <= (MOST_RUNS + 1) * count // SPAN + 1
    assert sum(len(pack(Entry(PARTITION, Incarnation(), [run]))[1]) for run in added) < 25 * len(added)
    again = OffsetTranslation(added)
    for wanted in range(0, 2 * count, 77):
        found = again.target(wanted)
        assert found is not None
        assert 0 <= (wanted + 1) // 2 - found <= SPAN
        back = again.source((wanted + 1) // 2)
        assert back is not None
        assert 0 <= wanted + 1 - back <= 2 * SPAN


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=30), st.data())
def test_a_reader_at_a_translated_offset_gets_every_record_from_there_on(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Gaps in old offsets, foreign records between new ones, and inexact runs."""
    known, where, source, target = OffsetTranslation(), {}, 0, 0
    for gap, strangers in steps:
        source, target = source + gap, target + strangers
        where[source] = target
        known.note(Run(source, target, data.draw(st.booleans())))
        source, target = source + 1, target + 1
    wanted = data.draw(st.integers(min(where), max(where)))
    found = known.target(wanted)
    assert found is not None
    assert all(at >= found for old, at in where.items() if old >= wanted)
    back = data.draw(st.integers(min(where.values()), max(where.values())))
    found = known.source(back)
    assert found is not None
    assert all(old >= found for old, at in where.items() if at >= back)


class Piece(NamedTuple):
    """Records whose old offsets follow each other: those that a mirror notes at once."""

    source: int
    target: int
    count: int

    def before(self, source: int) -> int:
        """The number of its records before an old offset."""
        return min(max(0, source - self.source), self.count)

    def after(self, target: int) -> int:
        """The number of its records at or after a new offset."""
        return min(max(0, self.target + self.count - target), self.count)

    def between(self, source: int, target: int) -> int:
        """The number of its records before the old offset and at or after the new one; negative: the other way."""
        return self.before(source) + self.after(target) - self.count


def read_by_version_0(runs: list[Run]) -> list[Run]:
    """What a mirror of the first version keeps of the runs in a map."""
    kept: list[Run] = []
    for run in runs:
        if kept and not kept[-1].exact and 0 <= run.target - kept[-1].target < SPAN:
            continue
        dense = len(kept) >= MOST_RUNS and 0 <= run.target - kept[-MOST_RUNS].target < SPAN
        kept.append(Run(run.source, run.target, run.exact and not dense))
    return kept


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5) | st.just(0),
            st.integers(0, 3) | st.just(0) | st.integers(0, 3000),
            st.integers(1, 3) | st.integers(1, 200) | st.integers(1, 5000),
        ),
        min_size=1,
        max_size=60,
    )
)
@example([(2, 0, 1)] * 12 + [(1, 0, 60_000)])
def test_a_map_is_small_and_at_most_a_span_of_records_off(history: list[tuple[int, int, int]]) -> None:
    """Any batches, gaps in the old offsets, and records of other producers in the new log."""
    known, pieces, source, target = OffsetTranslation(), [], 7, 0
    for gap, strangers, count in history:
        source, target = source + gap, target + strangers
        pieces.append(Piece(source, target, count))
        known.extend(Run(source, target), count)
        source, target = source + count, target + count
    gaps = sum(gap for gap, _, _ in history[1:])
    others = sum(strangers for _, strangers, _ in history[1:])
    assert others - gaps <= known.others(7, [(source, target)]) <= others
    exact = [run.target for run in known.runs if run.exact]
    for targets, most in ((exact, MOST_RUNS), ([run.target for run in known.runs], MOST_RUNS + 1)):
        assert all(last - first >= SPAN for first, last in zip(targets, targets[most:]))
    assert read_by_version_0(known.runs) == OffsetTranslation(known.runs).runs == known.runs
    edges = {each.source + n for each in (*pieces, *known.runs) for n in (-1, 0, 1)}
    edges |= {each.source + each.count + n for each in pieces for n in (-1, 0)}
    for wanted in sorted(edges):
        if pieces[0].source <= wanted < source:
            found = known.target(wanted)
            assert found is not None
            again = [each.between(wanted, found) for each in pieces]
            assert min(again) >= 0  # none is skipped
            assert sum(again) <= SPAN
    for each in (*pieces, *known.runs):
        back = known.source(each.target)
        assert back is not None
        there = [piece.between(back, each.target) for piece in pieces]
        assert max(there) <= 0
        assert sum(there) >= -SPAN


async def test_a_large_batch_after_small_transactions_is_mapped_closely(make_pair: Any) -> None:
    pair = await make_pair("3.9.1")
    parts = [(b"small", 1)] * 12 + [(b"large", 5000)]
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, *parts)
    await pair.catch_up()
    known, first = await pair.translation(), 2 * 12  # each small one has a marker
    for n in range(0, 5000, 100):
        found = known.target(first + n)
        assert found is not None
        assert 0 <= 12 + n - found <= SPAN, n


def test_an_entry_is_read_as_it_was_written() -> None:
    runs = [Run(5, 0), Run(9, 2, exact=False), Run(40, 30)]
    plain = Entry(PARTITION, Incarnation(), runs)
    assert unpack(*pack(plain)) == plain
    assert pack(plain)[0] == b'{"topic":"orders","partition":3,"from":5}'  # the format for mirrors of any version
    for entry in (
        Entry(PARTITION, Incarnation(), runs[1:]),
        Entry(PARTITION, Incarnation(0, "one"), runs),
        Entry(PARTITION, Incarnation(0, "two"), runs),
        Entry(PARTITION, Incarnation(2), runs),
        Entry(PARTITION, Incarnation(1, "two"), []),
    ):
        assert unpack(*pack(entry)) == entry
        assert pack(entry)[0] != pack(plain)[0]  # compaction keeps both


@pytest.mark.parametrize("data", [b"", b"[" * 50_000, b"[[1e999,1]]", b"[[" + b"9" * 5000 + b",1]]", b"[[NaN,1]]"])
def test_an_entry_that_no_mirror_wrote_is_refused(data: bytes) -> None:
    key, value = pack(Entry(PARTITION, Incarnation(), [Run(5, 0)]))
    for pair in ((data, value), (key, data)):
        with pytest.raises(BadOffsetMap, match="invalid entry of an offset map"):
            unpack(*pair)


def test_the_map_of_a_recreated_topic_has_no_entry_of_the_former_topic() -> None:
    known = OffsetMap(KafkaClient("127.0.0.1:1"), KafkaClient("127.0.0.1:2"), "map")
    former, late = Entry(PARTITION, Incarnation(0, "one"), [Run(0, 0), Run(50, 40)]), Run(60, 45)
    known.learn(former)
    assert known.recreated(PARTITION, "one") is None
    assert "was one" in str(known.recreated(PARTITION, "two"))
    known.learn(Entry(PARTITION, Incarnation(1, "two"), [Run(0, 100)]))
    assert known.positions(PARTITION).runs == [Run(0, 100)]
    known.learn(Entry(PARTITION, former.incarnation, [late]))  # from a process that does not know the new topic yet
    assert known.positions(PARTITION).runs == [Run(0, 100)]
    assert known.incarnation(PARTITION) == Incarnation(1, "two")
    known.learn(Entry(PARTITION, Incarnation(1), [Run(7, 110)]))
    assert known.incarnation(PARTITION) == Incarnation(1, "two")


def test_a_group_starts_before_the_first_record_of_others_that_copies_follow() -> None:
    known = OffsetMap(KafkaClient("127.0.0.1:1"), KafkaClient("127.0.0.1:2"), "map")

    def learn(run: Run, switch: Switch | None = None, other: int | None = None) -> None:
        entry = Entry(PARTITION, Incarnation(), [] if other else [run], Route(), switch, other)
        assert unpack(*pack(entry)) == entry
        known.learn(entry)

    def starts(*sources: int, copied: tuple[int, int]) -> list[int | None]:
        return [known.start(PARTITION, each, copied).offset for each in sources]

    learn(Run(0, 0))
    assert starts(5, 10, 12, copied=(10, 10)) == [5, 10, 10]
    # six records of others at 10, and a copy of old offset 10 behind them
    learn(Run(10, 16))
    learn(Run(10, 16), other=10)
    assert starts(5, 10, 11, copied=(11, 17)) == [5, None, None]
    assert known.start(PARTITION, 10, (11, 17)).skips
    learn(Run(11, 17), Switch(1, 11, 17))
    assert starts(5, 10, 11, 13, copied=(13, 19)) == [5, 10, 10, 10]
    assert known.start(PARTITION, 13, (13, 19)).again == 3
    assert not known.start(PARTITION, 10, (13, 19)).again
    # the producers have come back, and the mirror in the other direction has ended at new offset 30
    learn(Run(40, 30), Switch(2, 40, 30, "begun"))
    assert starts(40, 45, copied=(50, 41)) == [30, 35]
    learn(Run(45, 36))
    learn(Run(45, 36), other=35)
    assert starts(40, 44, 45, 50, copied=(50, 41)) == [30, 34, 35, 35]
    for state in "moved", "ended", "left":  # an older record of others stays the first one
        learn(Run(50, 41), Switch(3, 50, 41, state))
        assert starts(40, 44, 45, 50, 60, copied=(60, 60)) == [30, 34, 35, 35, 35]


def test_ids_of_different_kinds_cannot_be_compared() -> None:
    """After an upgrade of the brokers, a topic that was known by its znode has an id of its own."""
    for one, other, same in (
        ("znode-17", "znode-17", True),
        ("znode-17", "znode-18", False),
        ("znode-17", "fc5Xb1mTSwe", None),
        ("one", "two", False),
        (None, "two", None),
        ("one", None, None),
    ):
        assert same_topic(one, other) is same


async def test_runs_that_were_not_written_are_forgotten_with_the_partition(kafka_cluster: LocalCluster) -> None:
    """Another process may have mirrored these records to other offsets since."""
    other = TopicPartition("orders", 4)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        name = f"map-{uuid.uuid4().hex}"
        former, heir, reader = (OffsetMap(client, client, name) for _ in range(3))
        await former.open(1)
        former.note(PARTITION, Run(0, 0))
        former.note(other, Run(0, 0))
        await former.flush()
        former.note(PARTITION, Run(100, 170))
        former.note(other, Run(10, 5))
        former.forget([PARTITION, other])
        former.note(other, Run(20, 7))
        await heir.open()
        heir.note(PARTITION, Run(100, 90))
        await heir.flush()
        await former.flush()
        await former.refresh()
        await reader.open()
        for each in (former, heir, reader):
            assert each.positions(PARTITION).runs == [Run(0, 0), Run(100, 90)]
        assert reader.positions(other).runs == [Run(0, 0), Run(20, 7)]
