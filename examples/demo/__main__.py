"""Starts servers and members, causes faults, shows the group live, and checks the guarantees."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import accelerated
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.operate.group_reader import describe
from allocator.operate.group_report import GroupState
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster
from allocator.types import TopicPartition

from .check import Claim, History, verify

TOPIC, GROUP = "demo", "demo"
SESSION_TIMEOUT_S = 4.0
RECORD_BYTES = 100
COMMIT_WINDOW_S = 1.5  # the members commit every 0.5 s, and a commit may be slow on a busy machine


@dataclass
class Member:
    """One process of the group."""

    name: str
    journal: Path
    process: asyncio.subprocess.Process
    fate: str = "running"


@dataclass
class Demo:
    """One run of the demo: its servers, members and events."""

    options: argparse.Namespace
    cluster: LocalCluster
    directory: Path
    console: Console
    members: dict[str, Member] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)
    events: list[tuple[str, float]] = field(default_factory=list)
    produced: dict[int, int] = field(default_factory=dict)
    note: str = ""
    state: GroupState | None = None
    committed: dict[int, int] = field(default_factory=dict)
    processed: dict[int, int] = field(default_factory=dict)
    """Partition -> distinct records in the members' journals."""

    async def run(self) -> bool:
        zk = ZooKeeperClient(self.cluster.zookeeper)
        client = KafkaClient(self.cluster.bootstrap)
        await zk.connect()
        await client.connect()
        offsets = GroupOffsets(client, GROUP)
        watching = asyncio.ensure_future(self.watch(zk, offsets))
        try:
            with Live(console=self.console, refresh_per_second=8, get_renderable=self.render, transient=False):
                await self.play()
            self.console.print()
            await self.read_back(zk, offsets)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            for member in self.members.values():
                if member.process.returncode is None:
                    member.process.kill()
                    await member.process.wait()
            await offsets.close()
            await client.close()
            await zk.close()
        if not watching.cancelled():
            watching.result()
        return self.report()

    # -- the play ------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        half = self.options.records // 2
        self.say(f"producing the first {half} records")
        await self.produce(half)
        for name in ("ada", "bob", "cyd"):
            await self.start(name)
        await self.until(lambda: self.owned() == {"ada": 8, "bob": 8, "cyd": 8}, "three members with 8 partitions each")
        self.happened("three members have started")
        await self.until(lambda: sum(self.committed.values()) > half // 5, "a fifth of them to be processed")

        self.say("kill -9 of bob")
        self.killed["bob"] = time.monotonic()
        self.members["bob"].process.send_signal(signal.SIGKILL)
        self.happened(f"bob is killed (session timeout {SESSION_TIMEOUT_S:g} s)")
        await self.members["bob"].process.wait()
        self.members["bob"].fate = "killed"
        producing = asyncio.ensure_future(self.produce(self.options.records - half))
        await self.until(lambda: self.owned() == {"ada": 12, "cyd": 12}, "ada and cyd to own bob's partitions")

        self.say("dan joins")
        self.happened("dan joins")
        await self.start("dan")
        await self.until(lambda: self.owned() == {"ada": 8, "cyd": 8, "dan": 8}, "dan to own 8 partitions")

        self.say("ada, the leader, leaves cleanly")
        await self.until(lambda: sum(self.committed.values()) > half, "half of the records to be processed")
        self.happened("ada, the leader, leaves")
        await self.stop("ada")
        await self.until(lambda: self.owned() == {"cyd": 12, "dan": 12}, "cyd and dan to own ada's partitions")

        self.happened("the rest is processed")
        self.say("producing and processing the rest")
        await producing
        await self.until(lambda: self.committed == self.produced, "everything to be processed", timeout_s=180)
        self.say("the last two leave")
        await asyncio.gather(self.stop("cyd"), self.stop("dan"))

    async def start(self, name: str) -> None:
        journal = self.directory / f"{name}.jsonl"
        arguments = {
            "brokers": self.cluster.bootstrap,
            "zookeeper": self.cluster.zookeeper,
            "group": GROUP,
            "topic": TOPIC,
            "name": name,
            "journal": str(journal),
            "session-timeout-s": str(SESSION_TIMEOUT_S),
            "rate": str(self.options.rate),
            "record-bytes": str(RECORD_BYTES),
        }
        words = [word for key, value in arguments.items() for word in (f"--{key}", value)]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "examples.demo.member", *words, stdout=log, stderr=log
            )
        self.members[name] = Member(name, journal, process)

    async def stop(self, name: str) -> None:
        member = self.members[name]
        member.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(member.process.wait(), 60)
        member.fate = "left"

    async def produce(self, count: int) -> None:
        first = sum(self.produced.values())
        filler = b"." * (RECORD_BYTES - 12)
        total = self.options.partitions

        def work() -> None:
            done = self.cluster.produce(
                TOPIC, ((None, b"%012d" % n + filler, n % total) for n in range(first, first + count))
            )
            for partition, number in done.items():
                self.produced[partition] = self.produced.get(partition, 0) + number

        await asyncio.get_running_loop().run_in_executor(None, work)

    def say(self, text: str) -> None:
        self.note = text
        if not self.console.is_terminal:
            self.console.print(f"· {text}")

    def happened(self, text: str) -> None:
        self.events.append((text, time.monotonic()))

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            for member in self.members.values():
                code = member.process.returncode
                if member.fate == "running" and code is not None:
                    log = (self.directory / f"{member.name}.log").read_text()[-2000:]
                    raise SystemExit(f"{member.name} ended with code {code}:\n{log}")
            if time.monotonic() > end:
                raise SystemExit(f"waited {timeout_s:g} s for {what}; the group stood at {self.owned()}")
            await asyncio.sleep(0.02)

    # -- the view ------------------------------------------------------------------------------------------------

    async def watch(self, zk: ZooKeeperClient, offsets: GroupOffsets) -> None:
        while True:
            await self.read_back(zk, offsets)
            await asyncio.sleep(0.1)

    async def read_back(self, zk: ZooKeeperClient, offsets: GroupOffsets) -> None:
        self.state = await describe(zk, GROUP)
        partitions = [TopicPartition(TOPIC, number) for number in range(self.options.partitions)]
        found = await offsets.fetch(partitions)
        self.committed = {p.partition: value.offset for p, value in found.items() if value.offset > 0}

    def owned(self) -> dict[str, int]:
        if self.state is None:
            return {}
        counts = {info.name: 0 for info in self.state.members.values()}
        for member in self.state.owners.values():
            if member in self.state.members:
                counts[self.state.members[member].name] += 1
        return counts

    def render(self) -> Group:
        table = Table(title=f"group {GROUP!r}, generation {self.state.generation if self.state else 0}")
        for heading in ("member", "state", "partitions", "lag"):
            table.add_column(heading, justify="right" if heading == "lag" else "left", no_wrap=True)
        names = {key: info.name for key, info in self.state.members.items()} if self.state else {}
        claimed = self.state.owners if self.state else {}
        owners = {p.partition: names.get(member, member) for p, member in claimed.items()}
        for member in self.members.values():
            mine = sorted(partition for partition, owner in owners.items() if owner == member.name)
            lag = sum(self.produced.get(p, 0) - self.committed.get(p, 0) for p in mine)
            table.add_row(member.name, member.fate, " ".join(map(str, mine)), f"{lag:,}")
        free = [p for p in range(self.options.partitions) if p not in owners]
        total = sum(self.produced.values())
        done = sum(self.committed.values())
        footer = f"produced {total:,}  committed {done:,}  lag {total - done:,}  without owner {len(free)}"
        return Group(table, footer, f"[bold]{self.note}[/bold]")

    # -- the proof -----------------------------------------------------------------------------------------------

    def report(self) -> bool:
        history = History.read({m.name: m.journal for m in self.members.values()}, self.killed)
        moves = Table(title="rebalances", title_justify="left")
        moves.add_column("event")
        moves.add_column("until every moved partition had begun with its new owner", justify="right")
        for (text, when), (_, following) in zip(self.events[1:-1], self.events[2:]):
            settled = history.settled(when, following)
            moves.add_row(text, "never" if settled is None else f"{(settled - when) * 1000:,.0f} ms")
        self.console.print(moves)
        claims = verify(history, self.produced, self.committed, window_s=COMMIT_WINDOW_S)
        self.processed = {partition: len(counts) for partition, counts in history.processed().items()}
        held = show(self.console, "what was promised, and what is found", claims)
        return held and sum(self.produced.values()) == self.options.records


def show(console: Console, title: str, claims: Iterable[Claim]) -> bool:
    """Whether all of them hold."""
    table = Table(title=title, title_justify="left")
    for heading in ("promise", "found", ""):
        table.add_column(heading)
    held = True
    for claim in claims:
        table.add_row(claim.text, claim.found, "[green]holds[/green]" if claim.holds else "[red]FAILS[/red]")
        held &= claim.holds
    console.print(table)
    return held


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rate", type=float, default=20_000, help="records per second of each member")
    parser.add_argument("--spark", action="store_true", help="also count, archive and audit the topic with Spark")
    parser.add_argument("--kafka", default="3.9.1", help="version of the broker")
    options = parser.parse_args(arguments)
    options.partitions = 24
    return options


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    console = Console()
    console.print(
        f"decoder: {'compiled' if accelerated else 'plain (docs/install.md tells how to get the compiled one)'}"
    )
    console.print(f"starting ZooKeeper and Kafka {options.kafka} ...")
    try:
        return play(options, console)
    except AllocatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def play(options: argparse.Namespace, console: Console) -> int:
    """Runs the demo. Returns the exit code: 0 if every promise holds."""
    with tempfile.TemporaryDirectory(prefix="allocator-demo-") as directory, LocalCluster(options.kafka) as cluster:
        cluster.create_topic(TOPIC, options.partitions)
        demo = Demo(options, cluster, Path(directory), console)
        held = asyncio.run(demo.run())
        if options.spark:
            from . import pipeline  # needs zk-partition-allocator[spark]

            console.print("\nreading it all once more, with Spark ...")
            claims = pipeline.run(cluster.bootstrap, TOPIC, GROUP, demo.processed, Path(directory) / "archive")
            held &= show(console, "what the pipeline finds", claims)
    console.print("[green]every promise holds[/green]" if held else "[red]a promise is broken[/red]")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
