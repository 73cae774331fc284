"""Type checks of a user's programs, by mypy and by pyright."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kafka
import kafka.structs
import pytest
from mypy import api
from repository import ROOT

from allocator import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

PROGRAM = """
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from sqlite3 import Connection
from typing import NamedTuple

from allocator import (
    Allocation,
    Batch,
    Consumer,
    ConsumerGroup,
    ConsumerGroupConfig,
    Fixed,
    Generation,
    GroupedConsumer,
    GroupOrders,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    RebalanceListener,
    RecordsLost,
    SingleConsumer,
    SwitchingConsumer,
    TopicPartition,
    ZooKeeper,
)
from allocator.operate.dead_letters import DeadLetterQueue
from allocator.errors import AllocatorError
from allocator.sinks import SqliteSink
from allocator.types import MembershipName


class Told(RebalanceListener):
    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        reveal_type(partitions)
        for topic, number in partitions:
            print(topic.upper(), number + 1)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        print(len(partitions))

    def on_records_lost(self, loss: RecordsLost) -> None:
        reveal_type(loss.partition)
        reveal_type((loss.position, loss.first, loss.why))


class Heard:  # no subclass
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None: ...
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None: ...


class TheirPartition(NamedTuple):  # another client's
    topic: str
    partition: int


class TheirOffset(NamedTuple):
    offset: int
    metadata: str


def done(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: AllocatorError | None) -> None:
    for partition, offset in offsets.items():
        print(partition.topic.upper(), offset.offset + 1, error)


def handle(record: Record) -> None:
    print(record.offset)


def store(connection: Connection, batch: Batch) -> None:
    connection.executemany("INSERT INTO orders VALUES (?)", [(record.offset,) for record in batch])


async def serve(membership: MembershipName) -> int:
    seen = 0
    consumer = Consumer("t", brokers="b:9092", group="g", membership=Fixed([("t", 0)]), listener=Heard())
    async with Consumer(
        brokers=["b:9092"],
        group="g",
        membership=ZooKeeper(root="/x") if membership == "zookeeper" else membership,
        zookeeper="z:2181",
        offsets="both",
        auto_offset_reset=1_700_000_000_000,
        isolation_level="read_committed",
        value_deserializer=bytes.decode,
    ) as consumer:
        reveal_type(consumer)
        consumer.subscribe(["a", "b"], listener=Told())
        consumer.subscribe("a", "b")
        consumer.subscribe({"a"})
        consumer.assign([("a", 0), TopicPartition("a", 1), TheirPartition("a", 2)])
        reveal_type(consumer.subscription())
        reveal_type(consumer.assignment())
        reveal_type(consumer.paused())
        reveal_type(consumer.unreachable())
        reveal_type(consumer.lag())

        # records
        batch: Batch | None = await consumer.getbatch(1.0)
        reveal_type(batch)
        record = await consumer.getone()
        reveal_type(record)
        if batch is not None and record is not None:
            reveal_type((batch.topic, batch.partition, batch.fence, batch.high_watermark, batch[0], batch[1:]))
            reveal_type((record.topic, record.partition, record.offset, record.timestamp, record.fence))
            reveal_type(record.headers)
            reveal_type(record.key)  # a key
            reveal_type(record.value)  # a value
        for partition, records in (await consumer.getmany(0, max_records=5)).items():
            reveal_type(partition)
            reveal_type(records)
            reveal_type(partition.topic)
            reveal_type(partition[1])
            consumer.commit_async({partition: records[-1].offset + 1}, done)
        async for each in consumer:
            reveal_type(each)
            seen += len(each)
        await consumer.process(handle, ordering="key")

        # offsets
        consumer.seek(("t", 0), 5)
        consumer.seek(TopicPartition("t", 0), OffsetAndMetadata(5))
        consumer.seek(TheirPartition("t", 0), TheirOffset(5, "m"))
        committed = await consumer.committed(("t", 0))
        reveal_type(committed)
        if committed is not None:
            consumer.seek(("t", 0), committed)
            reveal_type((committed.offset, committed.metadata, committed.leader_epoch))
        await consumer.commit()
        await consumer.commit({("t", 0): (5, "m")})
        await consumer.commit({("t", 0): 5, TopicPartition("t", 1): (5,), TheirPartition("t", 2): (5, None, 3)})
        theirs: dict[TheirPartition, TheirOffset] = {}
        await consumer.commit(theirs)
        ours: dict[TopicPartition, OffsetAndMetadata] = {}
        await consumer.commit(ours)
        consumer.commit_async({("t", 0): OffsetAndMetadata(5, "m")}, lambda offsets, error: print(offsets, error))
        reveal_type(await consumer.position(("t", 0)))
        reveal_type(consumer.fence(("t", 0)))
        reveal_type(consumer.high_watermark(("t", 0)))
        reveal_type(consumer.topic_id(("t", 0)))
        consumer.report_load(("t", 0), 0.5)
        consumer.pause(consumer.assignment())
        consumer.pause(("t", 0), TopicPartition("t", 1))
        consumer.resume([("t", 0)], {TopicPartition("t", 1)})
        await consumer.seek_to_beginning()
        reveal_type(await consumer.seek_to_committed(("t", 0), [("t", 1)]))
        reveal_type(await consumer.end_offsets(consumer.assignment()))
        reveal_type(await consumer.beginning_offsets([("t", 0)]))
        times = await consumer.offsets_for_times({("t", 0): 1_700_000_000_000})
        reveal_type(times)
        found = times[TopicPartition("t", 0)]
        if found is not None:
            reveal_type((found.offset, found.timestamp, found.leader_epoch))
        reveal_type(await consumer.partitions_for_topic("a"))
        reveal_type(await consumer.topics())
        reveal_type(await consumer.next_owners(("t", 0)))
        reveal_type(await consumer.former_owners([("t", 0)]))
        reveal_type(consumer.losses)

        # values of both libraries are equal, so either is a key
        ends: dict[TopicPartition, int] = await consumer.end_offsets([("t", 0)])
        print(ends[TopicPartition("t", 0)])
        number: OffsetAndTimestamp | None = found
        print(number)
    return seen


async def read(generation: Generation, offset: int) -> str:
    await generation.commit({"a": {0: offset}})
    return "done"


async def others() -> None:
    async with SwitchingConsumer("a", brokers="b:9092", group="g", zookeeper="z:2181") as switching:
        reveal_type(await switching.getbatch(0))
        reveal_type(await switching.committed(("a", 0)))
        reveal_type(switching.assignment())
        await switching.commit({("a", 0): 5})
    config = ConsumerGroupConfig(group="g", brokers="b:9092", topics=["a"], membership="kafka", start_offset="latest")
    async with ConsumerGroup(config) as group:
        generation = await group.next()
        reveal_type(generation)
        reveal_type(generation.partitions)
        for topic, starts in generation.assignments.items():
            for number, offset in starts:
                reveal_type((topic, number, offset))
                reveal_type(generation.start(read(generation, offset)))
    async with GroupOrders("z:2181", "g") as orders:
        await orders.pin([("a", 0)], "member-1")
        reveal_type(await orders.pause([TopicPartition("a", 0)], why="maintenance"))
        for each in await orders.list():
            reveal_type(each)
            reveal_type(each.order.partitions)
    async with Allocation(["x"], group="g", zookeeper="z:2181", on_assigned=lambda names: print(len(names))) as held:
        reveal_type(held.held)
    sink = SqliteSink("orders.db")
    async with Consumer("a", brokers="b:9092", group="g", zookeeper="z:2181", sink=sink) as consumer:
        async for batch in consumer:
            await sink.write_async(batch, store)
            sink.write(batch[0], lambda connection, record: connection.execute("VALUES (?)", (record.offset + 1,)))
    reveal_type(sink.offsets("g"))
    async with DeadLetterQueue("a.failed", "b:9092") as letters:
        async for letter in letters.read():
            reveal_type((letter.place, letter.original, letter.error, letter.record))
    grouped = GroupedConsumer("b:9092", "g", "z:2181", membership="kiel")
    reveal_type(grouped.allocation)
    reveal_type(await grouped.consume("a"))  # values
    await grouped.close()
    single = SingleConsumer("b:9092")
    reveal_type(await single.consume("a"))  # values


asyncio.run(serve("zookeeper"))
asyncio.run(others())
"""
TYPOS = """
from __future__ import annotations

from allocator import Consumer, ConsumerGroupConfig, GroupedConsumer, Kafka
from allocator import Consumers  # wrong: Consumers

Consumer("t", brokers="b", group="g", membership="zookeper")  # wrong: membership
Consumer("t", brokers="b", group="g", offsets="kafak")  # wrong: offsets
Consumer("t", brokers="b", group="g", auto_offset_reset="erliest")  # wrong: auto_offset_reset
Consumer("t", brokers="b", group="g", isolation_level="committed")  # wrong: isolation_level
Consumer("t", brokers="b", group="g", membership=Kafka(group_protocol="next"))  # wrong: group_protocol
Consumer("t", brokers="b")  # wrong: group
ConsumerGroupConfig(brokers="b", topics=["t"])  # wrong: group
ConsumerGroupConfig("g", "b", ["t"], membership="fixed")  # wrong: membership
GroupedConsumer("b", "g", "z", membership="kiell")  # wrong: membership
"""


REVEALS = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "reveal_type(" in line]
ANY_IS_RIGHT = {n for n in REVEALS if re.search("# (a )?(key|value)s?$", PROGRAM.splitlines()[n - 1])}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typed")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "typos.py").write_text(TYPOS)
    return directory


@pytest.fixture(scope="module")
def report(programs: Path) -> list[str]:
    """What mypy says of both programs."""
    (programs / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT}\n")
    options = ["--strict", "--follow-imports=silent", "--config-file", str(programs / "mypy.ini")]
    cache = Path(ROOT, ".mypy_cache", "users")
    found, trouble, _ = api.run([*options, "--cache-dir", str(cache), *map(str, sorted(programs.glob("*.py")))])
    assert not trouble
    return found.splitlines()


@pytest.fixture(scope="module")
def pyrights_report(programs: Path) -> list[dict[str, Any]]:
    """What pyright says of both programs. Its wheels bring Node.js, so it needs no network."""
    (programs / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return found


def without_any(revealed: Mapping[int, list[str]]) -> None:
    """Checks what a type checker has revealed, by line: all of it, and Any only for keys and values."""
    assert sorted(revealed) == REVEALS
    wrong = {line: said for line, said in revealed.items() if re.search("Any|Unknown", " ".join(said))}
    assert wrong.keys() <= ANY_IS_RIGHT, {line: wrong[line] for line in wrong.keys() - ANY_IS_RIGHT}


def test_a_typed_program_has_no_faults(report: list[str]) -> None:
    assert not [line for line in report if "program.py" in line and ": error:" in line]


def test_mypy_reveals_any_for_keys_and_values_alone(report: list[str]) -> None:
    revealed = defaultdict(list)
    for line in report:
        said = re.fullmatch(r'.*program\.py:(\d+): note: Revealed type is "(.*)"', line)
        if said is not None:
            revealed[int(said[1])].append(said[2])
    without_any(revealed)


def test_pyright_finds_no_fault_in_a_typed_program(pyrights_report: list[dict[str, Any]]) -> None:
    faults = [each for each in pyrights_report if each["severity"] != "information"]
    assert not [each for each in faults if each["file"].endswith("program.py")]


def test_pyright_reveals_any_for_keys_and_values_alone(pyrights_report: list[dict[str, Any]]) -> None:
    revealed = defaultdict(list)
    for each in pyrights_report:
        if each["severity"] == "information" and each["file"].endswith("program.py"):
            revealed[each["range"]["start"]["line"] + 1].append(each["message"])
    without_any(revealed)


def test_a_typo_in_a_setting_is_found(report: list[str]) -> None:
    for number, line in enumerate(TYPOS.splitlines(), 1):
        said = " ".join(each for each in report if re.search(rf"typos\.py:{number}: ", each))
        wrong = line.partition("# wrong: ")[2]
        assert (f'"{wrong}"' in said) if wrong else not said, (line, said)


def test_pyright_finds_the_same_typos(pyrights_report: list[dict[str, Any]]) -> None:
    for number, line in enumerate(TYPOS.splitlines()):
        said = [
            each["message"]
            for each in pyrights_report
            if each["file"].endswith("typos.py") and each["range"]["start"]["line"] == number
        ]
        wrong = line.partition("# wrong: ")[2]
        assert (f'"{wrong}"' in " ".join(said)) if wrong else not said, (line, said)


# -- at run time ------------------------------------------------------------------------------------------------------


PAIRS = [
    pytest.param(TopicPartition("t", 3), kafka.TopicPartition("t", 3), id="TopicPartition"),
    pytest.param(OffsetAndMetadata(5, "m", 2), kafka.OffsetAndMetadata(5, "m", 2), id="OffsetAndMetadata"),
    pytest.param(OffsetAndMetadata(5), kafka.OffsetAndMetadata(5), id="defaults"),
    pytest.param(OffsetAndTimestamp(5, 9, None), kafka.structs.OffsetAndTimestamp(5, 9, None), id="OffsetAndTimestamp"),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_values_equal_those_of_kafka_python(ours: Any, theirs: Any) -> None:
    assert (ours == theirs, theirs == ours, hash(ours) == hash(theirs)) == (True, True, True)
    assert {ours: 1}[theirs] == {theirs: 1}[ours] == 1
    assert repr(ours) == repr(theirs)
    assert ours == tuple(theirs)


@pytest.mark.parametrize("ours", [pair.values[0] for pair in PAIRS])
def test_values_are_pickled_and_copied(ours: Any) -> None:
    again = pickle.loads(pickle.dumps(ours))
    assert (again, type(again)) == (ours, type(ours))
    assert copy.deepcopy(ours) == ours


def test_methods_of_kafka_python_accept_our_values() -> None:
    assert issubclass(TopicPartition, kafka.TopicPartition)
    assert issubclass(OffsetAndMetadata, kafka.OffsetAndMetadata)


@pytest.mark.parametrize("kind", [TopicPartition, OffsetAndMetadata])
def test_type_checkers_see_the_fields_that_kafka_python_has(kind: Any) -> None:
    trees = [ast.parse(Path(ROOT, "allocator", "core", name).read_text()) for name in ("types.py", "record.py")]
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    (declared,) = (n for n in classes if n.name == kind.__name__)
    fields = [each for each in declared.body if isinstance(each, ast.AnnAssign)]
    assert tuple(ast.unparse(each.target) for each in fields) == kind._fields
    defaults = {ast.unparse(each.target): ast.literal_eval(each.value) for each in fields if each.value is not None}
    assert defaults.items() <= kind._field_defaults.items()
