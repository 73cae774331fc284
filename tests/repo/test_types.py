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
from typing import Any, NamedTuple

import kafka
import kafka.structs
import pytest
from mypy import api

from allocator import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.repo.repository import ROOT

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
    DeliveryFailed,
    Fixed,
    Generation,
    GroupedConsumer,
    GroupCommands,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Producer,
    Record,
    RebalanceListener,
    RecordMetadata,
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


class Notified(RebalanceListener):
    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        reveal_type(partitions)
        for topic, number in partitions:
            print(topic.upper(), number + 1)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        print(len(partitions))

    def on_records_lost(self, loss: RecordsLost) -> None:
        reveal_type(loss.partition)
        reveal_type((loss.position, loss.first, loss.why))


class Unrelated:  # no subclass
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None: ...
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None: ...


class ForeignPartition(NamedTuple):  # another client's
    topic: str
    partition: int


class ForeignOffset(NamedTuple):
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
    consumer = Consumer("t", brokers="b:9092", group="g", membership=Fixed([("t", 0)]), listener=Unrelated())
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
        consumer.subscribe(["a", "b"], listener=Notified())
        consumer.subscribe("a", "b")
        consumer.subscribe({"a"})
        consumer.assign([("a", 0), TopicPartition("a", 1), ForeignPartition("a", 2)])
        reveal_type((consumer.subscription(), consumer.assignment(), consumer.paused()))
        reveal_type((consumer.unreachable(), consumer.lag(), consumer.losses))

        # records
        batch: Batch | None = await consumer.getbatch(1.0)
        record = await consumer.getone()
        reveal_type((batch, record))
        if batch is not None and record is not None:
            reveal_type((batch.topic, batch.partition, batch.fence, batch.high_watermark, batch[0], batch[1:]))
            reveal_type((record.topic, record.partition, record.offset, record.timestamp, record.fence))
            reveal_type(record.headers)
            reveal_type(record.key)  # a key
            reveal_type(record.value)  # a value
        for partition, records in (await consumer.getmany(0, max_records=5)).items():
            reveal_type((partition, records, partition.topic, partition[1]))
            consumer.commit_async({partition: records[-1].offset + 1}, done)
        async for each in consumer:
            reveal_type(each)
            seen += len(each)
        await consumer.process(handle, ordering="key")

        # offsets
        consumer.seek(("t", 0), 5)
        consumer.seek(TopicPartition("t", 0), OffsetAndMetadata(5))
        consumer.seek(ForeignPartition("t", 0), ForeignOffset(5, "m"))
        reveal_type(committed := await consumer.committed(("t", 0)))
        if committed is not None:
            consumer.seek(("t", 0), committed)
            reveal_type((committed.offset, committed.metadata, committed.leader_epoch))
        await consumer.commit()
        await consumer.commit({("t", 0): (5, "m")})
        await consumer.commit({("t", 0): 5, TopicPartition("t", 1): (5,), ForeignPartition("t", 2): (5, None, 3)})
        foreign: dict[ForeignPartition, ForeignOffset] = {}
        await consumer.commit(foreign)
        own: dict[TopicPartition, OffsetAndMetadata] = {}
        await consumer.commit(own)
        consumer.commit_async({("t", 0): OffsetAndMetadata(5, "m")}, lambda offsets, error: print(offsets, error))
        reveal_type((await consumer.position(("t", 0)), consumer.fence(("t", 0))))
        reveal_type((consumer.high_watermark(("t", 0)), consumer.topic_id(("t", 0))))
        consumer.report_load(("t", 0), 0.5)
        consumer.pause(consumer.assignment())
        consumer.pause(("t", 0), TopicPartition("t", 1))
        consumer.resume([("t", 0)], {TopicPartition("t", 1)})
        await consumer.seek_to_beginning()
        reveal_type(await consumer.seek_to_committed(("t", 0), [("t", 1)]))
        reveal_type((await consumer.end_offsets(consumer.assignment()), await consumer.beginning_offsets([("t", 0)])))
        times = await consumer.offsets_for_times({("t", 0): 1_700_000_000_000})
        reveal_type(times)
        found = times[TopicPartition("t", 0)]
        if found is not None:
            reveal_type((found.offset, found.timestamp, found.leader_epoch))
        reveal_type((await consumer.partitions_for_topic("a"), await consumer.topics()))
        reveal_type((await consumer.next_owners(("t", 0)), await consumer.former_owners([("t", 0)])))

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
        reveal_type((await switching.getbatch(0), await switching.committed(("a", 0)), switching.assignment()))
        await switching.commit({("a", 0): 5})
    config = ConsumerGroupConfig(group="g", brokers="b:9092", topics=["a"], membership="kafka", start_offset="latest")
    async with ConsumerGroup(config) as group:
        generation = await group.next()
        reveal_type((generation, generation.partitions))
        for topic, starts in generation.assignments.items():
            for number, offset in starts:
                reveal_type((topic, number, offset))
                reveal_type(generation.start(read(generation, offset)))
    async with GroupCommands("z:2181", "g") as orders:
        await orders.pin([("a", 0)], "member-1")
        reveal_type(await orders.pause([TopicPartition("a", 0)], why="maintenance"))
        for each in await orders.list():
            reveal_type((each, each.command.partitions))
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


async def write(record: Record) -> RecordMetadata:
    async with Producer(
        brokers=["b:9092"], acks=1, compression="lz4", value_serializer=str.encode, partitioner=lambda key, all: all[0]
    ) as producer:
        future = await producer.send("a", "text", key=record.key, headers=record.headers, timestamp=record.timestamp)
        reveal_type((future, await producer.partitions_for("a")))
        many = await producer.send_many("a", ["x", "y"], [b"k", None], partition=0, headers=[("h", None)])
        reveal_type(many)
        await producer.flush()
        try:
            at = await producer.send_and_wait("a", None, b"k")
        except DeliveryFailed as failed:
            reveal_type((failed.partition, failed.records, failed.maybe_written, failed.retriable, failed.error))
            raise
        reveal_type((at, at.topic, at.partition, at.offset, at.timestamp))
        return await future


asyncio.run(serve("zookeeper"))
asyncio.run(others())
"""
TYPOS = """
from __future__ import annotations

from allocator import Consumer, ConsumerGroupConfig, GroupedConsumer, Kafka, Producer
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
Producer(brokers="b", acks="al")  # wrong: acks
Producer(brokers="b", compression="snapy")  # wrong: compression
"""


REVEALS = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "reveal_type(" in line]
ANY_IS_RIGHT = {n for n in REVEALS if re.search("# (a )?(key|value)s?$", PROGRAM.splitlines()[n - 1])}


class Report(NamedTuple):
    """What a type checker says: file and line -> faults, and line of program.py -> revealed types."""

    faults: Mapping[tuple[str, int], list[str]]
    revealed: Mapping[int, list[str]]


def by_mypy(programs: Path) -> Report:
    (programs / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT}\n")
    options = ["--strict", "--follow-imports=silent", "--config-file", str(programs / "mypy.ini")]
    cache = Path(ROOT, ".mypy_cache", "users")
    found, trouble, _ = api.run([*options, "--cache-dir", str(cache), *map(str, sorted(programs.glob("*.py")))])
    assert not trouble
    report = Report(defaultdict(list), defaultdict(list))
    for file, line, kind, text in re.findall(r"(\w+\.py):(\d+): (error|note): (.*)", found):
        revealed = re.fullmatch('Revealed type is "(.*)"', text)
        if revealed is not None:
            report.revealed[int(line)].append(revealed[1])
        elif kind == "error":
            report.faults[file, int(line)].append(text)
    return report


def by_pyright(programs: Path) -> Report:
    """pyright's wheels bring Node.js, so it needs no network."""
    (programs / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = Report(defaultdict(list), defaultdict(list))
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        file, line = Path(each["file"]).name, each["range"]["start"]["line"] + 1
        if each["severity"] == "information":
            report.revealed[line].append(each["message"])
        else:
            report.faults[file, line].append(each["message"])
    return report


@pytest.fixture(
    scope="module", params=[by_mypy, pytest.param(by_pyright, marks=pytest.mark.long)], ids=["mypy", "pyright"]
)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    directory = tmp_path_factory.mktemp("typed")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "typos.py").write_text(TYPOS)
    found: Report = request.param(directory)
    return found


def test_a_typed_program_has_no_faults(report: Report) -> None:
    assert not {place: texts for place, texts in report.faults.items() if place[0] == "program.py"}


def test_only_keys_and_values_have_the_type_any(report: Report) -> None:
    assert sorted(report.revealed) == REVEALS
    wrong = {line for line, texts in report.revealed.items() if re.search("Any|Unknown", " ".join(texts))}
    assert wrong <= ANY_IS_RIGHT, {line: report.revealed[line] for line in wrong - ANY_IS_RIGHT}


def test_a_typo_in_a_setting_is_found(report: Report) -> None:
    for number, line in enumerate(TYPOS.splitlines(), 1):
        texts = " ".join(report.faults.get(("typos.py", number), ()))
        wrong = line.partition("# wrong: ")[2]
        assert (f'"{wrong}"' in texts) if wrong else not texts, (line, texts)


# -- at run time ------------------------------------------------------------------------------------------------------


PAIRS = [
    pytest.param(TopicPartition("t", 3), kafka.TopicPartition("t", 3), id="TopicPartition"),
    pytest.param(OffsetAndMetadata(5, "m", 2), kafka.OffsetAndMetadata(5, "m", 2), id="OffsetAndMetadata"),
    pytest.param(OffsetAndMetadata(5), kafka.OffsetAndMetadata(5), id="defaults"),
    pytest.param(OffsetAndTimestamp(5, 9, None), kafka.structs.OffsetAndTimestamp(5, 9, None), id="OffsetAndTimestamp"),
]


@pytest.mark.parametrize(("value", "of_kafka_python"), PAIRS)
def test_values_equal_those_of_kafka_python(value: Any, of_kafka_python: Any) -> None:
    assert value == of_kafka_python == value
    assert hash(value) == hash(of_kafka_python)
    assert {value: 1}[of_kafka_python] == {of_kafka_python: 1}[value] == 1
    again = pickle.loads(pickle.dumps(value))
    assert (again, type(again)) == (value, type(value))
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("kind", [TopicPartition, OffsetAndMetadata])
def test_type_checkers_see_the_fields_that_kafka_python_has(kind: Any) -> None:
    assert issubclass(kind, getattr(kafka, kind.__name__)), "methods of kafka-python accept it"
    trees = [ast.parse(Path(ROOT, "allocator", "core", name).read_text()) for name in ("types.py", "record.py")]
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    (declared,) = (n for n in classes if n.name == kind.__name__)
    fields = [each for each in declared.body if isinstance(each, ast.AnnAssign)]
    assert tuple(ast.unparse(each.target) for each in fields) == kind._fields
    defaults = {ast.unparse(each.target): ast.literal_eval(each.value) for each in fields if each.value is not None}
    assert defaults.items() <= kind._field_defaults.items()
