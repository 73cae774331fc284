"""Type checks of a user's program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api
from repository import ROOT

PROGRAM = """
from __future__ import annotations

import asyncio
from collections.abc import Mapping

from allocator import (
    Batch,
    Consumer,
    ConsumerGroup,
    ConsumerGroupConfig,
    GroupedConsumer,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    RebalanceListener,
    SwitchingConsumer,
    TopicPartition,
)
from allocator.errors import AllocatorError
from allocator.types import MembershipName


class Told(RebalanceListener):
    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        print(len(partitions))


def done(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: AllocatorError | None) -> None:
    print(len(offsets), error)


async def serve(membership: MembershipName) -> int:
    seen = 0
    async with Consumer(
        brokers=["b:9092"],
        group="g",
        membership=membership,
        zookeeper="z:2181",
        offsets="both",
        auto_offset_reset=1_700_000_000_000,
        isolation_level="read_committed",
        group_protocol="consumer",
        value_deserializer=bytes.decode,
    ) as consumer:
        consumer.subscribe(["a", "b"], listener=Told())
        consumer.subscribe("a", "b")
        consumer.subscribe({"a"})
        batch: Batch | None = await consumer.getbatch(1.0)
        record: Record | None = await consumer.getone()
        for partition, records in (await consumer.getmany(0, max_records=5)).items():
            consumer.commit_async({partition: records[-1].offset + 1}, done)
        consumer.assign([("a", 0), TopicPartition("a", 1)])
        consumer.pause(consumer.assignment())
        ends: dict[TopicPartition, int] = await consumer.end_offsets(consumer.assignment())
        times: dict[TopicPartition, OffsetAndTimestamp | None] = await consumer.offsets_for_times({})
        numbers: set[int] | None = await consumer.partitions_for_topic("a")
        async for each in consumer:
            seen += len(each)
        print(batch, record, ends, times, numbers)
    return seen


async def others() -> None:
    async with SwitchingConsumer("a", brokers="b:9092", group="g", zookeeper="z:2181") as switching:
        print(await switching.getbatch(0))
    config = ConsumerGroupConfig(group="g", brokers="b:9092", topics=["a"], membership="kafka", start_offset="latest")
    async with ConsumerGroup(config) as group:
        generation = await group.next()
        for starts in generation.assignments.values():
            for number, offset in starts:
                print(number + offset)
    grouped = GroupedConsumer("b:9092", "g", "z:2181", membership="kiel")
    await grouped.close()


asyncio.run(serve("zookeeper"))
"""

TYPOS = """
from __future__ import annotations

from allocator import Consumer, ConsumerGroupConfig, GroupedConsumer

Consumer("t", brokers="b", group="g", membership="zookeper")  # wrong: membership
Consumer("t", brokers="b", group="g", offsets="kafak")  # wrong: offsets
Consumer("t", brokers="b", group="g", auto_offset_reset="erliest")  # wrong: auto_offset_reset
Consumer("t", brokers="b", group="g", isolation_level="committed")  # wrong: isolation_level
Consumer("t", brokers="b", group="g", group_protocol="next")  # wrong: group_protocol
Consumer("t", brokers="b")  # wrong: group
ConsumerGroupConfig(brokers="b", topics=["t"])  # wrong: group
ConsumerGroupConfig("g", "b", ["t"], membership="fixed")  # wrong: membership
GroupedConsumer("b", "g", "z", membership="kiell")  # wrong: membership
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of both programs."""
    directory = tmp_path_factory.mktemp("typed")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "typos.py").write_text(TYPOS)
    (directory / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT}\n")
    options = ["--strict", "--follow-imports=silent", "--config-file", str(directory / "mypy.ini")]
    cache = Path(ROOT, ".mypy_cache", "users")
    found, trouble, _ = api.run([*options, "--cache-dir", str(cache), *map(str, sorted(directory.glob("*.py")))])
    assert not trouble
    return found.splitlines()


def test_a_typed_program_has_no_faults(report: list[str]) -> None:
    assert not [line for line in report if "program.py" in line]


def test_a_typo_in_a_setting_is_found(report: list[str]) -> None:
    for number, line in enumerate(TYPOS.splitlines(), 1):
        said = " ".join(each for each in report if re.search(rf"typos\.py:{number}: ", each))
        wrong = line.partition("# wrong: ")[2]
        assert (f'"{wrong}"' in said) if wrong else not said, (line, said)
