"""Members of allocator beside Kafka 0.8's own consumer and pykafka, and frozen members, on real servers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from allocator.testing import wait_until
from tests.groups.old_groups import OldGroup
from tests.stored import stored_offsets


def test_members_of_allocator_and_java_continue_from_each_others_offsets(
    group_of: Callable[[str], OldGroup], tmp_path: Path
) -> None:
    group = group_of("0.9.0.1")
    group.produce(60)
    own = group.allocator("consumers")
    group.claimed(1)
    group.all_read()
    java = group.java(tmp_path)
    group.claimed(2)
    group.produce(60)
    group.all_read()
    assert java.values
    own.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again = group.allocator("consumers")
    group.claimed(2)
    java.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again.stop()


@pytest.mark.long
@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1"])
@pytest.mark.parametrize("kind", ["java", "pykafka"])
def test_nothing_is_lost_when_members_of_both_kinds_are_killed(
    group_of: Callable[[str], OldGroup],
    tmp_path: Path,
    kind: str,
    version: str,
    record_property: Callable[[str, object], None],
) -> None:
    group = group_of(version)
    membership = "consumers" if kind == "java" else "pykafka"
    group.produce(60)
    own = [group.allocator(membership), group.allocator(membership)]
    group.claimed(2)
    group.all_read()
    other = group.java(tmp_path) if kind == "java" else group.pykafka()
    group.claimed(3)
    with group.producing():
        for _ in range(3):
            own.pop(0).kill()
            group.claimed(2)
            own.append(group.allocator(membership))
            group.claimed(3)
            other.kill()
            group.claimed(2)
            other = group.java(tmp_path) if kind == "java" else group.pykafka()
            group.claimed(3)
        wait_until(lambda: bool(other.values), 60, "the newest member to read something")
    group.all_read()
    assert group.overlaps(lambda first, second: first == second == "allocator") == {}
    print(f"{kind} {version}: {group.produced} records, {group.repeated()} repeated")
    record_property("repeated", group.repeated())
    for member in own:
        member.stop()


@pytest.mark.parametrize(
    "membership", ["kafka", *(pytest.param(name, marks=pytest.mark.long) for name in ("consumers", "kiel"))]
)
def test_a_frozen_member_sets_no_offset_back(group_of: Callable[[str], OldGroup], membership: str) -> None:
    group = group_of("3.9.1" if membership == "kafka" else "0.9.0.1")
    joins = {"joins": {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.3}} if membership == "kafka" else {}

    def committed() -> int:
        if membership != "kafka":
            return sum(group.in_zookeeper().values())
        found = stored_offsets(group.cluster.bootstrap, group.group, group.topic, group.partitions)
        return sum(at.offset for at in asyncio.run(found).values())

    group.produce(60)
    frozen, other = group.allocator(membership, **joins), group.allocator(membership, **joins)
    group.shared(frozen, other)
    with group.producing():
        group.all_read()
        frozen.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: len(other.held) == group.partitions, 30, "the other one to have everything")
        seen = len(other.values)
        wait_until(lambda: len(other.values) > seen + 100, 30, "the other one to go on")
    group.all_read()
    wait_until(lambda: committed() == group.produced, 30, "everything to be committed")
    before = len(frozen.output)
    frozen.process.send_signal(signal.SIGCONT)
    group.shared(frozen, other)
    # it may report records that it held; its listener knows that the partitions are lost, and it commits nothing
    woken = [line["what"] for line in frozen.output[before:]]
    assert "end" in woken
    assert woken[: woken.index("end")].count("got") <= 1
    assert committed() == group.produced
    frozen.stop()
    other.stop()
    assert committed() == group.produced
