"""A group that follows load: what members report, when the leader acts, and what it may cost."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import allocator
from allocator import Consumer
from allocator.assignors import choose, load_report, resolve
from allocator.assignors.load_report import LoadMeter, LoadReport
from allocator.commands.command import KINDS, Command
from allocator.core.types import Partitions
from allocator.documents.checked import InvalidZnode
from allocator.errors import ConfigError
from allocator.operate.group_reader import describe
from allocator.operate.group_report import GroupReport, GroupState
from allocator.operate.what_if import Scenario, plan_of
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.decision import GroupDecision, GroupLoad, decide
from allocator.protocols.zookeeper.seats import FEATURE
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo
from allocator.protocols.zookeeper.znodes.following import DAY_MS, ImbalanceTimer, LoadHistory
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import LoadSource, Record, TopicPartition
from tests.constants import SetConstant
from tests.groups.members import plain_view

A, B = (f"m-{letter * 16}-{number:010}" for number, letter in enumerate("ab"))
NOW = 1_767_225_600_000
COUNTS = {"t": 6}


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", number) for number in numbers)


HOT = {TopicPartition("t", 0): 50.0} | dict.fromkeys(parts(1, 2, 3, 4, 5), 10.0)
HALVES = AssignmentDocument(1, 1, A, "load-records", {A: parts(0, 1, 2), B: parts(3, 4, 5)})


def info(name: str, strategies: tuple[str, ...] = ("load-records", "naive")) -> MemberInfo:
    return MemberInfo(
        name,
        "h",
        frozenset({"t"}),
        strategies=strategies,
        commands=tuple(KINDS),
        features=(FEATURE,),
        load_tolerance=1.1 if strategies[0].startswith("load-") else None,
    )


MEMBERS = {A: info("one"), B: info("two")}


async def decided(
    load: GroupLoad | None, *commands: Command, members: Mapping[str, MemberInfo] = MEMBERS, **document: Any
) -> GroupDecision:
    functions = {name: resolve(name) for name in ("load-records", "naive")}
    return await decide(members, COUNTS, HALVES.but(**document), commands, functions, plain_view, load)


def command(kind: str, **arguments: Any) -> Command:
    return Command.make(kind, arguments, who="alice", now_ms=NOW)


# -- the leader --------------------------------------------------------------------------------------------------------


async def test_commands_come_before_load() -> None:
    uneven = GroupLoad(HOT, True, NOW)
    assert (await decided(replace(uneven, uneven=False))).target == HALVES.owners
    assert (await decided(uneven, command("freeze"))).target == HALVES.owners
    assert (await decided(uneven, command("cordon", member="two"))).target == HALVES.owners
    pinned = command("pin", partitions={"t": "1"}, place={"member": "one"})
    assert (await decided(uneven, pinned)).target[A] == parts(0, 1)
    assert (await decided(uneven, command("evacuate", member="one"))).target[B] == parts(*range(6))


async def test_a_partition_stays_for_an_hour_however_often_the_group_and_its_loads_change() -> None:
    owners, history, moved_at = HALVES.owners, HALVES.load_history, dict[TopicPartition, int]()
    for minute in range(180):
        busy = (A, B)[minute % 2]
        loads = {p: 10.0 if p in owners[busy] else 0.1 for p in parts(*range(6))}
        load = GroupLoad(loads, minute % 3 == 0, NOW + 60_000 * minute)
        found = await decided(load, owners=owners, load_history=history)
        for partition in found.target[A] ^ owners[A]:
            assert minute - moved_at.get(partition, -60) >= 60
            moved_at[partition] = minute
        owners, history = dict(found.target), found.load_history or history
    assert moved_at


async def test_a_group_with_a_member_that_does_not_follow_load_uses_the_other_function() -> None:
    older = info("old", ("naive",))
    assert choose([(A, ("load-records", "naive")), (B, older.strategies)]) == ("naive", {})
    found = await decided(GroupLoad(HOT, True, NOW), members={A: info("one"), B: older})
    assert found.strategy == "naive"
    assert found.load_history is None


async def test_a_plan_of_an_unchanged_group_shows_what_load_will_move() -> None:
    reports = {A: LoadReport.of("records", {p: HOT[p] for p in parts(0, 1, 2)})}
    reports[B] = LoadReport.of("records", {p: HOT[p] for p in parts(3, 4, 5)})
    claims = {member: Claim(1, owned) for member, owned in HALVES.owners.items()}
    state = GroupState("g", MEMBERS, claims, HALVES, read_ms=NOW, loads=reports)
    plan = await plan_of(Scenario.of(state, COUNTS), plain_view)
    moves = {move.partition: move.target for move in plan.moves}
    assert moves.keys() == parts(1, 2)
    target = (await decided(GroupLoad(HOT, True, NOW))).target
    assert all(partition in target[member] for partition, member in moves.items() if member is not None)
    assert state.load is not None
    assert state.load.max_over_mean == 1.4
    assert GroupReport(state).to_json()["load"]["members"] == {A: 70.0, B: 30.0}
    assert GroupReport(state).headline().endswith("load max/mean 1.40")
    # a change of the group does not react to the imbalance, which must last first
    more = await plan_of(Scenario.of(state, COUNTS).weighing("two", 1.5), plain_view)
    assert not more.moves


def test_an_imbalance_has_to_last() -> None:
    timer = ImbalanceTimer(180.0)
    assert [timer.lasting(True, now) for now in (0.0, 179.0, 180.0, 181.0)] == [False, False, True, False]
    assert [timer.lasting(uneven, now) for uneven, now in ((True, 200.0), (False, 300.0), (True, 400.0))] == [False] * 3


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(-DAY_MS, DAY_MS)), max_size=20))
def test_moves_for_load_are_a_fraction_of_all_partitions_on_average(steps: list[tuple[int, int]]) -> None:
    """A group of 1 000 partitions: 50 a day, and four days' worth at once. Clocks of leaders may differ."""
    history, now, newest, moved = LoadHistory(), NOW, NOW, 0
    for number, passed in steps:
        now += passed
        newest = max(newest, now)
        number = min(number * 50, history.allowance(1000, now))
        moving = [TopicPartition("t", moved + n) for n in range(number)]
        history = history.with_moves(moving, 1000, now)
        moved += number
        assert history.resting(now) >= frozenset(moving)
        if all(passed >= 0 for _, passed in steps):
            assert moved <= 200 + 50 * (newest - NOW) / DAY_MS + 1


# -- the reports -------------------------------------------------------------------------------------------------------


def test_a_meter_returns_rates_once_it_has_measured_long_enough() -> None:
    now = 0.0
    meter = LoadMeter(lambda: now)
    busy, idle = TopicPartition("t", 0), TopicPartition("t", 1)
    found: dict[TopicPartition, float] = {}
    for number in range(8):
        found = meter.of_ends({busy: 300 * number, idle: 5})
        assert bool(found) == (number >= 2)
        now += 30.0
    assert found == pytest.approx({busy: 10.0, idle: 0.0})
    # the topic was created again and begins at 0; the meter drops partitions of other members
    assert meter.of_ends({busy: 0})[busy] < 10.0
    assert meter.of_ends({}) == {}
    for load in (1.0, 1.0, 1.0, 100.0):
        found = meter.of_loads({busy: load})
        now += 30.0
    assert 1.0 < found[busy] < 50.0  # smoothed


def test_a_meter_weighs_new_records_by_their_cost() -> None:
    """Two partitions get the same number of new records. The member processes half of them."""
    now = 0.0
    meter = LoadMeter(lambda: now)
    cheap, dear, idle, unread = (TopicPartition("t", number) for number in range(4))
    found: dict[TopicPartition, float] = {}
    for number in range(8):
        ends = {cheap: 300 * number, dear: 300 * number, idle: 5, unread: 300 * number}
        found = meter.of_work(ends, {cheap: (150 * number, 1.5 * number), dear: (150 * number, 150.0 * number)})
        now += 30.0
    assert found == pytest.approx({cheap: 0.1, dear: 10.0, idle: 0.0})
    # a returning partition is measured from its first record again, not from the old counts
    assert meter.of_work({dear: 300 * 8}, {dear: (10, 1.0)})[dear] < 10.0
    assert meter.of_work({}, {}) == {}


@pytest.mark.parametrize(
    "loads", ['{"t": 1}', '{"t": [[0, -1]]}', '{"t": [[0, NaN]]}', '{"t": [[1.5, 1]]}', '{"t": [[0]]}', "[]", "null"]
)
def test_a_wrong_report_is_refused_by_name(loads: str) -> None:
    data = zlib.compress(f'{{"format": 1, "source": "records", "loads": {loads}}}'.encode())
    with pytest.raises(InvalidZnode, match="/loads/m"):
        LoadReport.decode("/loads/m", data)


def test_a_report_is_written_again_when_the_loads_have_changed_notably() -> None:
    report = LoadReport.of("records", HOT)
    assert report.differs_notably(None)
    assert not LoadReport.of("records", {**HOT, TopicPartition("t", 1): 11.0}).differs_notably(report)
    assert LoadReport.of("records", {**HOT, TopicPartition("t", 1): 20.0}).differs_notably(report)
    assert LoadReport.of("records", {TopicPartition("t", 0): 50.0}).differs_notably(report)


# -- the setting -------------------------------------------------------------------------------------------------------


def following(source: LoadSource) -> Consumer:
    membership = allocator.ZooKeeper(follow_load=source)
    return Consumer("t", brokers="b:9092", group="g", zookeeper="z:2181", membership=membership)


def test_invalid_loads_are_refused() -> None:
    consumer = following("reported")
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="load = "):
            consumer.report_load(TopicPartition("t", 0), wrong)
    with pytest.raises(ConfigError, match="follow_load"):
        allocator.ZooKeeper(follow_load="lag")  # type: ignore[arg-type]


async def test_following_handler_time_needs_process() -> None:
    consumer = following("handler_s")
    for read in (consumer.getone, consumer.getmany, consumer.getbatch):
        with pytest.raises(ConfigError, match=r'follow_load = "handler_s".*use `process`, or'):
            await read()


# -- real servers ------------------------------------------------------------------------------------------------------


class Quick(allocator.ZooKeeper):
    """Follows load within seconds. An imbalance lasts longer than any response of the broker, so that a half-finished
    round of records is not taken for one."""

    def place(self) -> dict[str, Any]:
        return {**super().place(), "report_s": 0.3, "load_look_s": 0.5, "load_lasting_s": 3.0}


@pytest.fixture
def quick(set_constant: SetConstant, kafka_cluster: LocalCluster, group: str) -> Callable[..., Consumer]:
    """Returns consumers that know the load after a second."""
    set_constant(load_report, KNOWN_S=1.0)
    zookeeper = f"{kafka_cluster.zookeeper}/{group}"

    def consumer(topic: str, source: LoadSource) -> Consumer:
        membership = Quick(zookeeper, session_timeout_s=20.0, follow_load=source)
        return Consumer(topic, brokers=kafka_cluster.bootstrap, group=group, membership=membership)

    return consumer


@contextlib.asynccontextmanager
async def beside(*works: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def produce(cluster: LocalCluster, topic: str, records: list[Any]) -> None:
    while True:
        await asyncio.to_thread(cluster.produce, topic, records)
        await asyncio.sleep(0.2)


@pytest.mark.deadline(150)
async def test_the_leader_moves_others_away_from_a_hot_partition(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], quick: Callable[..., Consumer]
) -> None:
    topic = topic_factory(6)
    hot = TopicPartition(topic, 0)
    records = [(None, b"x", number) for number in range(6) for _ in range(10 if number else 50)]

    async def read(consumer: Consumer) -> None:
        async for _ in consumer:
            pass

    async with (
        quick(topic, "records") as one,
        quick(topic, "records") as two,
        beside(produce(kafka_cluster, topic, records), read(one), read(two)),
    ):
        await wait_until_async(
            lambda: (
                sorted((len(one.assignment()), len(two.assignment()))) == [1, 5]
                and hot in min(one.assignment(), two.assignment(), key=len)
            ),
            90.0,
            lambda: f"{sorted(one.assignment())}, {sorted(two.assignment())}",
        )


@pytest.mark.parametrize("source", ["bytes", "handler_s"])
async def test_members_report_the_work_of_each_partition(
    source: LoadSource,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    quick: Callable[..., Consumer],
) -> None:
    """Records of partition 0 are larger than those of partition 1, and their handler takes longer."""
    topic = topic_factory(2)
    records = [(None, b"x" * size, partition) for partition, size in ((0, 5000), (1, 100)) for _ in range(5)]

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.0 if record.partition else 0.05)

    async def reported() -> bool:
        state = await describe(zk, group)
        report = LoadReport(source) if state is None else next(iter(state.loads.values()), LoadReport(source))
        assert report.source == source
        heavy, light = (report.loads.get(TopicPartition(topic, number)) for number in (0, 1))
        return heavy is not None and light is not None and heavy > 5 * light

    zk = ZooKeeperClient(f"{kafka_cluster.zookeeper}/{group}")
    async with quick(topic, source) as consumer:
        await zk.connect()  # the consumer has created its root
        async with beside(produce(kafka_cluster, topic, records), consumer.process(handle)):
            await wait_until_async(reported, 60.0, "the report")
        await zk.close()
