"""Runs a group under load on real servers, with faults from a seed, and returns the result."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from allocator.testing import LocalCluster, WaitTimeout, wait_until
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import kafka_release

from .check import Verdict, check, repeated_in, standstill
from .faults import ALL, FAULTS
from .group import Group, Load, Settings
from .history import Fault, History, read

__all__ = ["Figure", "Outcome", "run", "start_cluster"]

Say = Callable[[str], None]

PATIENCE_S = 60.0  # minimum deadline for the recovery after a fault; a loaded machine needs long


@dataclass(frozen=True)
class Figure:
    """The cost of one fault: the longest standstill of a partition, and the number of duplicates."""

    fault: Fault
    standstill_s: float
    duplicates: int


@dataclass
class Outcome:
    peer: str
    kafka: str
    seed: int
    history: History
    verdict: Verdict
    figures: list[Figure]
    problems: list[str] = field(default_factory=list)
    """Problems beside the verdict: members that ended by themselves, records that were not processed in time."""

    @property
    def holds(self) -> bool:
        return self.verdict.holds and not self.problems

    def table(self) -> str:
        lines = [f"{'fault':26} {'runs':>4} {'standstill s: median':>21} {'worst':>6} {'duplicates':>11}"]
        for kind in dict.fromkeys(figure.fault.kind for figure in self.figures):
            of_kind = [figure for figure in self.figures if figure.fault.kind == kind]
            times = [figure.standstill_s for figure in of_kind]
            repeated = sum(figure.duplicates for figure in of_kind)
            lines.append(f"{kind:26} {len(of_kind):4} {median(times):21.2f} {max(times):6.2f} {repeated:11}")
        return "\n".join(lines)


def start_cluster(settings: Settings) -> LocalCluster:
    """Returns a cluster that expires sessions quickly. Except with KRaft, its servers are behind proxies."""
    return LocalCluster(
        settings.kafka,
        brokers=settings.brokers,
        zookeepers=settings.zookeepers,
        proxied=not kafka_release(settings.kafka).kraft,
        tick_ms=settings.tick_ms,
        heap="256m",
        broker_config={"min.insync.replicas": 2, "unclean.leader.election.enable": "false"},
    )


def run(
    cluster: LocalCluster,
    settings: Settings,
    seed: int,
    seconds: float,
    directory: Path,
    *,
    peer: str = "ours",
    kinds: Sequence[str] = tuple(FAULTS),
    python: str = sys.executable,
    path: str = "",
    say: Say = print,
) -> Outcome:
    """Applies all faults of `kinds` in random order, again and again for `seconds`, and checks the history.

    Writes the events to `history.jsonl` in `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    topic = name = f"faults-{peer}-{seed}-{time.time_ns() % 10**9}"
    cluster.create_topic(topic, settings.partitions, min(3, settings.brokers))
    if peer == "kiel_member":
        commit_zero(cluster, topic, name, settings)
    chance = random.Random(seed)
    faults: list[Fault] = []
    problems: list[str] = []
    group = Group(peer, cluster, settings, directory, topic, name, python, path)
    with group, Load(cluster, topic, settings) as load:
        try:
            wait_until(lambda: len(group.processed()) == settings.partitions, 60, "every partition to be processed")
            wait_until(group.shared, 60, "every member to own a partition")
            until = time.monotonic() + seconds
            order: list[str] = []
            while time.monotonic() < until or len(faults) < len(kinds):
                if not order:
                    order = chance.sample(list(kinds), len(kinds))
                kind = order.pop()
                begin = time.monotonic()
                whom = ALL[kind](group, chance)
                faults.append(Fault(kind, whom, begin, time.monotonic()))
                recover(group, problems, kind)
                time.sleep(settings.calm_s * chance.uniform(0.5, 1.5))
                say(f"  {peer}: {kind}: {whom}, {faults[-1].end - begin:.1f} s, then {time.monotonic() - begin:.1f} s")
        except (WaitTimeout, IndexError) as error:
            problems.append(f"{type(error).__name__}: {error}")
        load.end()
        if load.error is not None:
            problems.append(f"the load stopped: {load.error!r}")
        ended = time.monotonic()
        ends = end_offsets(cluster, topic, settings)
        try:
            wait_until(
                lambda: group.processed() == {p: end for p, end in ends.items() if end},
                60,
                lambda: f"all of {ends} to be processed; at present {group.processed()}",
                interval_s=0.5,
            )
        except WaitTimeout as error:
            problems.append(str(error))
        for member in tuple(group.members):
            if not group.leave(member):
                problems.append(f"{member.name} did not leave within 30 s of SIGTERM")
    files = {member.name: member.journal for member in group.all}
    died = {member.name: member.killed for member in group.all if member.killed is not None}
    history = read(files, died, ends, last_commits(files), faults)
    verdict = check(history)
    starts = [*(fault.begin for fault in faults[1:]), ended]
    figures = [
        Figure(fault, standstill(history, fault, following), repeated_in(history, fault.begin, following))
        for fault, following in zip(faults, starts)
    ]
    outcome = Outcome(peer, settings.kafka, seed, history, verdict, figures, problems)
    write(outcome, group, directory)
    return outcome


def recover(group: Group, problems: list[str], kind: str) -> None:
    """Waits until every partition makes progress and every member owns a partition.

    Adds a timeout, and members that ended by themselves, to `problems`. Replaces these members.
    """
    before = group.processed()

    def stuck() -> list[int]:
        return sorted(p for p, count in group.processed().items() if count <= before.get(p, 0))

    try:
        wait_until(
            lambda: not stuck() and group.shared(),
            max(PATIENCE_S, 12 * group.settings.session_timeout_s),
            "the group",
            interval_s=0.2,
        )
    except WaitTimeout:
        idle = [member.name for member in group.members if not member.owns()]
        problems.append(f"after {kind!r}, partitions {stuck()} make no progress, and members {idle} own nothing")
    for member in group.ended():
        code = member.process.returncode
        problems.append(f"{member.name} ended by itself with code {code} after {kind!r}; see {member.log}")
        member.killed = time.monotonic()  # an upper bound: no journal has the end of a crashed member
        group.members.remove(member)
        group.add()


def pinned_version(kafka: str) -> tuple[int, ...] | None:
    """Returns the `api_version` for kafka-python, which cannot detect brokers before 0.10."""
    version = tuple(int(part) for part in kafka.split("."))
    return version[:3] if version < (0, 10) else None


def commit_zero(cluster: LocalCluster, topic: str, group: str, settings: Settings) -> None:
    """Commits offset 0 in ZooKeeper. Without committed offsets, kiel retries forever with brokers from 0.8.2 on."""
    with zookeeper_client(cluster.zookeeper) as zk:
        for partition in range(settings.partitions):
            zk.create(f"/consumers/{group}/offsets/{topic}/{partition}", b"0", makepath=True)


def end_offsets(cluster: LocalCluster, topic: str, settings: Settings) -> dict[int, int]:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), api_version=pinned_version(settings.kafka))
    try:
        wanted = [TopicPartition(topic, number) for number in range(settings.partitions)]
        return {p.partition: end for p, end in consumer.end_offsets(wanted).items()}
    finally:
        consumer.close()


def last_commits(files: dict[str, Path]) -> dict[int, int]:
    found: dict[int, tuple[float, int]] = {}
    for file in files.values():
        for line in file.read_text().splitlines() if file.exists() else []:
            event = json.loads(line)
            if event["what"] == "commit":
                for key, offset in event["offsets"].items():
                    found[int(key)] = max(found.get(int(key), (0.0, 0)), (event["at"], offset))
    return {partition: offset for partition, (_, offset) in found.items()}


def write(outcome: Outcome, group: Group, directory: Path) -> None:
    """Writes the verdict, then the events of all members and all faults in chronological order."""
    events = [{**event, "member": member.name} for member in group.all for event in member.events()]
    events += [{"at": fault.begin, "what": "fault", **asdict(fault)} for fault in outcome.history.faults]
    with (directory / "history.jsonl").open("w") as file:
        head = {"peer": outcome.peer, "seed": outcome.seed, "ends": dict(outcome.history.ends)}
        file.write(json.dumps({**head, "verdict": str(outcome.verdict), "problems": outcome.problems}) + "\n")
        for event in sorted(events, key=lambda event: event["at"]):
            file.write(json.dumps(event) + "\n")
