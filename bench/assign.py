"""Measures time and memory of the assignors, and how both grow with the size of the group.

    python -m bench.assign                     all parts: some minutes, most of them for kafka-python
    python -m bench.assign --part growth       only one part: peers, growth or functions
    python -m bench.assign --json FILE         also write the numbers to a file ("-": to standard output)

Each row is one call in its own process, for a stable group after one event:

    first      no member owns a partition yet
    join       the group has one member more
    leave      the group has one member less

The members of a group subscribe in one of three ways:

    equal      each member subscribes to all topics
    tiers      each member subscribes to 25, 50, 75 or 100 % of the topics: few distinct sets of subscribers
    random     each member subscribes to half of the topics: no two topics have the same subscribers, the hardest case

The columns of a row:

    function   seconds of the assignor alone; for kafka-python, of its executor without encoding and decoding
    compute    seconds with the checks of every partition that a leader makes
    cpu        CPU seconds of the same call, for machines with other load
    memory     how much the call raised the peak memory of the process; 0 if creating the group needed more

No time includes reading the group from ZooKeeper.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.types import TopicPartition

EVENTS = ("first", "join", "leave")
FUNCTIONS = ("naive", "range", "roundrobin", "sticky", "cooperative-sticky", "weighted", "rack-aware")
PEER = "kafka-python"
RACKS = ("a", "b", "c")
NUMBERS = ("function_s", "function_cpu_s", "compute_s", "compute_cpu_s", "memory_mb")
MEGABYTE = 1_000_000

Case = dict[str, Any]


def cases(parts: Iterable[str]) -> Iterator[Case]:
    """Yields the measured cases, in the order of the tables."""
    if "peers" in parts:
        for shape in ("equal", "random"):
            for event in EVENTS:
                for function in ("sticky", PEER):
                    yield case("peers", function, 100, 10, 1_000, shape, event)
    if "growth" in parts:
        for shape in ("equal", "tiers", "random"):
            for members, topics, partitions in ((10, 10, 100), (100, 100, 100), (1_000, 1_000, 100)):
                for event in EVENTS:
                    yield case("growth", "sticky", members, topics, partitions, shape, event)
    if "functions" in parts:
        for function in FUNCTIONS:
            for shape in ("equal", "random"):
                yield case("functions", function, 1_000, 100, 1_000, shape, "join")


def case(part: str, function: str, members: int, topics: int, each: int, shape: str, event: str) -> Case:
    return {
        "part": part,
        "function": function,
        "members": members,
        "topics": topics,
        "partitions": topics * each,
        "subscriptions": shape,
        "event": event,
    }


# -- one measurement, in its own process ---------------------------------------------------------------------------


def view_of(case: Case) -> GroupView:
    """Returns the group as its leader sees it right after the event."""
    rng = random.Random(7)
    topics = [f"topic-{number:04}" for number in range(case["topics"])]
    tiers = [frozenset(topics[: len(topics) * quarter // 4]) for quarter in (4, 3, 2, 1)]
    shapes: Mapping[str, Callable[[int], frozenset[str]]] = {
        "equal": lambda number: tiers[0],
        "tiers": lambda number: tiers[number % 4],
        "random": lambda number: frozenset(rng.sample(topics, len(topics) // 2)),
    }
    everyone = tuple(
        Member(
            id=f"m-{rng.getrandbits(64):016x}-{number:010}",
            name=f"worker-{number}",
            topics=shapes[case["subscriptions"]](number),
            weight=1.0 + number % 3,
            rack=RACKS[number % 3],
        )
        for number in range(case["members"] + 1)
    )
    partitions = dict.fromkeys(topics, case["partitions"] // case["topics"])
    racks: dict[TopicPartition, tuple[str | None, ...]] = {}
    if case["function"] == "rack-aware":
        every = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        racks = {each: (RACKS[each.partition % 3], RACKS[(each.partition + 1) % 3]) for each in every}
    before = everyone[:-1]
    if case["event"] == "first":
        return GroupView(before, partitions, {}, racks)
    used = "sticky" if case["function"] == PEER else case["function"]
    owned = compute(resolve(used), GroupView(before, partitions, {}, racks))
    if case["event"] == "join":
        return GroupView(everyone, partitions, owned, racks)
    stay = before[:-1]
    return GroupView(stay, partitions, {member.id: owned[member.id] for member in stay}, racks)


def kafka_python(view: GroupView) -> dict[str, list[tuple[str, list[int]]]]:
    """Returns the assignment of kafka-python's sticky assignor for the same group."""
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )

    class Cluster:
        partitions = {topic: set(range(count)) for topic, count in view.partitions.items()}

        def topics(self) -> set[str]:
            return set(self.partitions)

        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return self.partitions.get(topic)

    members = {
        member.id: StickyAssignorMemberMetadataV1(sorted(member.topics), list(view.owned.get(member.id, ())), 1)
        for member in view.members
    }
    executor = StickyAssignmentExecutor(Cluster(), members)
    executor.perform_initial_assignment()
    executor.balance()
    return {member: list(executor.get_final_assignment(member)) for member in members}


def measure(case: Case) -> Case:
    """Returns the case with its measurements. Megabytes have 10**6 bytes."""
    view = view_of(case)
    peer = case["function"] == PEER
    function: Callable[[GroupView], Any] = kafka_python if peer else resolve(case["function"])
    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = function(view)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    unit = 1 if sys.platform == "darwin" else 1024
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * unit / MEGABYTE
    found: Case = {**case, "function_s": seconds, "function_cpu_s": cpu, "memory_mb": memory}
    if peer:
        final = {
            member: frozenset(TopicPartition(topic, number) for topic, numbers in topics for number in numbers)
            for member, topics in result.items()
        }
    else:
        del result
        gc.collect()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        final = compute(resolve(case["function"]), view)
        found["compute_s"], found["compute_cpu_s"] = time.perf_counter() - begin, time.process_time() - begin_cpu
    counts = sorted(map(len, final.values()))
    found["fewest"], found["most"] = counts[0], counts[-1]
    topics = {member.id: member.topics for member in view.members}
    found["moves"] = sum(
        partition.topic in topics[member] and partition not in final[member]
        for member, parts in view.owned.items()
        for partition in parts
    )
    return found


# -- all of them ---------------------------------------------------------------------------------------------------


def run(case: Case, timeout_s: float) -> Case:
    command = [sys.executable, "-m", "bench.assign", "--one", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except subprocess.TimeoutExpired:
        return {**case, "function_s": None}
    return dict(json.loads(done.stdout))


def tables(rows: list[Case]) -> Iterator[Table]:
    for part, title in (
        ("peers", "sticky and kafka-python's StickyPartitionAssignor"),
        ("growth", "sticky, in groups of growing size"),
        ("functions", "each assignor, when one member joins"),
    ):
        some = [row for row in rows if row["part"] == part]
        if some:
            yield table(title, some)


def table(title: str, rows: list[Case]) -> Table:
    made = Table(title=title, title_justify="left")
    for name in ("function", "members", "partitions", "subscriptions", "event"):
        made.add_column(name, justify="right" if name in ("members", "partitions") else "left")
    for name in ("function s", "cpu", "compute s", "cpu", "memory MB", "counts", "moves", "ratio"):
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(
            row["function"],
            f"{row['members']:,}",
            f"{row['partitions']:,}",
            row["subscriptions"],
            row["event"],
            *(shown(row.get(name)) for name in NUMBERS),
            f"{row['fewest']}-{row['most']}" if "most" in row else "",
            str(row.get("moves", "")),
            ratio(row, rows),
        )
    return made


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def ratio(row: Case, rows: list[Case]) -> str:
    """Returns a ratio of CPU times: for `peers`, kafka-python to allocator; for `growth`, to the next smaller group."""

    def like(other: Case, *names: str) -> bool:
        return all(other[name] == row[name] for name in names)

    if row["part"] == "peers" and row["function"] == PEER:
        ours = next((o for o in rows if o["function"] != PEER and like(o, "subscriptions", "event")), None)
        if ours and row["function_s"] and ours["function_s"]:
            return f"{row['function_cpu_s'] / ours['function_cpu_s']:,.0f} x allocator"
    if row["part"] == "growth":
        less = [o for o in rows if like(o, "subscriptions", "event") and o["partitions"] * 100 == row["partitions"]]
        less += [o for o in rows if like(o, "subscriptions", "event") and o["partitions"] * 10 == row["partitions"]]
        if less and row["function_s"] and less[-1]["function_s"]:
            return f"{row['function_cpu_s'] / less[-1]['function_cpu_s']:.1f} x"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=("peers", "growth", "functions"), help="default: all")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file; - for standard output")
    parser.add_argument("--timeout", type=float, default=1_800.0, metavar="SECONDS", help="maximum time for one row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(json.loads(options.one))))
        return
    console = Console(stderr=options.json == "-", width=None if sys.stdout.isatty() else 150)
    rows = []
    for each in cases(options.part or ("peers", "growth", "functions")):
        rows.append(run(each, options.timeout))
        if options.json and options.json != "-":
            Path(options.json).write_text(
                json.dumps(rows, indent=1) + "\n"
            )  # after each row, so that an interrupt loses no rows
        console.print(f"[dim]{each['function']} {each['members']} x {each['partitions']} {each['event']}: done[/dim]")
    for made in tables(rows):
        console.print(made)
    if options.json == "-":
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
