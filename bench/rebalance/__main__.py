"""Measures the time from a leave, a join or a crash until the new owners read every moved partition."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import uuid
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

from .. import former
from .arithmetic import Outcome, Summary, quietest, summarize
from .group import Group, Unsettled
from .peers import FORMER, KIP848, PEERS
from .report import Case, as_json, markdown, table
from .settings import EVENTS, Settings

TICK_MS = 100


async def commit_zero(settings: Settings) -> None:
    """Commits offset 0 for all partitions, so that the first owners also start at a committed offset."""
    client = KafkaClient(settings.bootstrap)
    await client.connect()
    try:
        offsets = GroupOffsets(client, settings.group)
        zero = OffsetAndMetadata(0, "", -1)
        await offsets.commit({TopicPartition(settings.topic, number): zero for number in settings.all})
        await offsets.close()
    finally:
        await client.close()


def run_peer(
    peer: str, settings: Settings, members: int, cluster: LocalCluster, options: argparse.Namespace, console: Console
) -> dict[str, Summary]:
    if peer == FORMER:
        former.build()
    settings = replace(settings, group=f"bench-{uuid.uuid4().hex[:8]}")
    asyncio.run(commit_zero(settings))
    outcomes: dict[str, list[Outcome]] = {}
    with Group(
        peer,
        settings,
        members,
        options.processes,
        [node.pid for node in cluster.nodes if node.pid],
        timeout_s=options.timeout_s,
        quiet=options.quiet,
        quiet_wait_s=options.quiet_wait_s,
        seed=options.seed,
    ) as group:
        took = group.begin()
        console.print(f"  {peer}: {members} members own {settings.partitions} partitions after {took:.1f} s")
        for number in range(1, 1 + options.repeat * (1 if options.quiet >= 1 else 3)):
            for event, outcome in group.round(tuple(options.events)):
                console.print(
                    f"  {peer}: {event}: last partition {outcome.last_s * 1000:,.0f} ms, median "
                    f"{outcome.median_s * 1000:,.0f} ms, {outcome.moved} moved, {outcome.stopped} stopped without "
                    f"moving, other processes used {outcome.foreign:.0%} of the machine"
                )
                outcomes.setdefault(event, []).append(outcome)
            if number >= options.repeat and all(enough(found, options) for found in outcomes.values()):
                break
    return {event: summarize(quietest(found, options.quiet, options.repeat)) for event, found in outcomes.items()}


def enough(found: list[Outcome], options: argparse.Namespace) -> bool:
    """Returns whether `repeat` outcomes had less load from other processes than `quiet`."""
    return len([outcome for outcome in found if outcome.foreign <= options.quiet]) >= int(options.repeat)


def run_case(
    cluster: LocalCluster, members: int, partitions: int, options: argparse.Namespace, console: Console
) -> Case:
    topic = f"rebalance-{members}-{partitions}"
    console.print(f"{members} members, {partitions} partitions")
    cluster.create_topic(topic, partitions, timeout_s=300)
    cluster.produce(topic, ((None, b"." * 100, number) for number in range(partitions)), timeout_s=120)
    settings = Settings(
        cluster.bootstrap,
        cluster.zookeeper,
        "",
        partitions,
        topic,
        session_timeout_s=options.session_timeout_s,
        heartbeat_s=options.heartbeat_s,
    )
    results: dict[str, dict[str, Summary]] = {event: {} for event in options.events}
    failures: dict[str, str] = {}
    for peer in options.peers:
        try:
            found = run_peer(peer, settings, members, cluster, options, console)
        except (Unsettled, RuntimeError, ValueError) as error:
            console.print(f"  [red]{peer}: {error}[/red]")
            failures[peer] = str(error)
            continue
        for event in options.events:
            if event in found:
                results[event][peer] = found[event]
    cluster.delete_topic(topic, timeout_s=300)
    return Case(members, partitions, results, failures)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.rebalance", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--partitions", type=int, nargs="+", default=[24, 1000])
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS))
    parser.add_argument(
        "--peers", nargs="+", choices=list(PEERS), help="clients to compare (default: all that the brokers support)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each event")
    parser.add_argument("--session-timeout-s", type=float, default=6.0)
    parser.add_argument("--heartbeat-s", type=float, default=2.0, help="heartbeat interval in Kafka's own groups")
    parser.add_argument("--processes", type=int, default=3, help="number of processes for the members that stay")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="how long to wait until the group is stable")
    parser.add_argument("--heap", default="768m", help="heap of the broker; 5000 partitions need 2g")
    parser.add_argument("--kafka", default="3.9.1")
    parser.add_argument(
        "--quiet",
        type=float,
        default=1.0,
        help="delay each event until other processes use less than this part of the machine (0 to 1), and repeat "
        "disturbed events, up to three times --repeat",
    )
    parser.add_argument("--quiet-wait-s", type=float, default=60.0, help="maximum delay for --quiet")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random waits before the events")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--markdown", action="store_true", help="also print the table in Markdown")
    options = parser.parse_args(arguments)
    old = int(options.kafka.partition(".")[0]) < 4
    if options.peers is None:
        options.peers = [peer for peer in PEERS if not (old and peer in KIP848)]
    if old and set(options.peers) & set(KIP848):
        parser.error(f"Kafka {options.kafka} has no KIP-848 groups; pass --kafka {NEWEST}")
    if min(options.members) < 2:
        parser.error("a group needs at least 2 members for partitions to move")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    broker = {
        "group.min.session.timeout.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
        "zookeeper.session.timeout.ms": 18_000,
        "log.index.size.max.bytes": 65_536,  # saves memory: the broker maps two files of this size for each partition
    }
    if set(options.peers) & set(KIP848):
        broker.update(
            {
                "group.consumer.min.heartbeat.interval.ms": 100,
                "group.consumer.heartbeat.interval.ms": int(options.heartbeat_s * 1000),
                "group.consumer.min.session.timeout.ms": 1000,
                "group.consumer.session.timeout.ms": int(options.session_timeout_s * 1000),
            }
        )
    cases = []
    console.print(f"starting ZooKeeper (tick {TICK_MS} ms) and Kafka {options.kafka} ...")
    with LocalCluster(
        options.kafka, broker_config=broker, heap=options.heap, zookeeper_heap="256m", tick_ms=TICK_MS
    ) as cluster:
        for partitions in options.partitions:
            for members in options.members:
                cases.append(run_case(cluster, members, partitions, options, console))
    console.print(table(cases, options.repeat))
    if options.markdown:
        print(markdown(cases))
    if options.json is not None:
        shared = {
            "kafka": options.kafka,
            "session_timeout_s": options.session_timeout_s,
            "heartbeat_s": options.heartbeat_s,
            "tick_ms": TICK_MS,
            "repeat": options.repeat,
            "processes": options.processes,
            "cores": os.cpu_count(),
            "quiet": options.quiet,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(cases, shared), indent=1) + "\n")
    return 1 if any(case.failures for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
