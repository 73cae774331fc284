"""Producers, services and a mirror that are cut over while they run, and their records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from allocator.errors import AllocatorError, BrokersUnavailable, Closed
from allocator.migrate.cutover import Cutover, CutoverFailed
from allocator.migrate.mirror import Mirror
from allocator.operate.switching import ChoiceWatcher, SwitchingConsumer
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster, produce, wait_until_async
from tests.joining import joined
from tests.migrate.mirroring import contents, killed, mirroring, settings

__all__ = ["World", "command", "mirror_checked"]


@contextlib.contextmanager
def command(plan: Path, *options: str, errors: Any = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `allocator cutover` in its own process. `errors` is the file for its errors."""
    argv = [sys.executable, "-m", "allocator.cli", "cutover", str(plan), *options]
    process = subprocess.Popen(argv, stderr=errors)
    try:
        yield process
    finally:
        killed(process)


async def mirror_checked(plan: Path, *, fail_back: bool = False) -> None:
    """Waits until the cutover's first step finds that the mirror has started with every partition."""

    async def checked() -> bool:
        try:
            await Cutover(plan, fail_back=fail_back).run(until="check")
        except (CutoverFailed, BrokersUnavailable):  # on a busy machine, brokers respond late
            return False
        return True

    await wait_until_async(checked, 60, "the mirror to start with every partition")


class World:
    """One topic and one group that move from `old` to `new`."""

    def __init__(self, old: LocalCluster, new: LocalCluster, topic: str, group: str, directory: Path) -> None:
        self.old, self.new, self.topic, self.group = old, new, topic, group
        self.zookeeper = f"{old.zookeeper}/{group}"
        self.written: dict[str, list[int]] = {"old": [], "new": []}
        self.seen: Counter[int] = Counter()
        self.places: dict[int, list[tuple[str | None, int, int]]] = {}
        """Number -> the brokers, partition and offset of each time that a service read it."""
        self.read_from: set[str | None] = set()
        self.path = directory / "plan.toml"
        self.partitions: list[int] | None = None
        """The partitions to which producers write; None: the key chooses the partition."""
        self.options: dict[str, Any] = {}
        """More settings of the services."""
        self.last = 0
        self._number = 0

    def plan(self, **cutover: Any) -> Path:
        """The file, with producers that watch their znode."""
        sections = {
            "cutover": {
                "groups": [self.group],
                "topics": [self.topic],
                "zookeeper": self.zookeeper,
                "mirror": f"{self.group}-mirror",
                "audit": False,
                **cutover,
            },
            "old": {"brokers": self.old.bootstrap},
            "new": {"brokers": self.new.bootstrap},
            "producers": {"znode": "/producers"},
            "wait": {"quiet_s": 1.0, "freeze_s": 60.0, "verify_s": 60.0, "drain_s": 60.0, "producers_s": 60.0},
        }
        lines = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        self.path.write_text("\n".join(lines))
        return self.path

    def mirror(self, **options: Any) -> Mirror:
        """The mirror to the new cluster."""
        chosen = {"topics": [self.topic], "zookeeper": self.zookeeper, **options}
        return Mirror(settings(self.old, self.new, f"{self.group}-mirror", **chosen))

    def mirror_back(self, **options: Any) -> Mirror:
        """The mirror to the old cluster."""
        chosen = {"topics": [self.topic], "zookeeper": self.zookeeper, "back_of": f"{self.group}-mirror", **options}
        return Mirror(settings(self.new, self.old, f"{self.group}-mirror-back", **chosen))

    @contextlib.asynccontextmanager
    async def ready(self, plan: Path) -> AsyncIterator[None]:
        """Like `running`; the block starts once services read the old cluster and the cutover may start."""
        async with self.running():
            await wait_until_async(lambda: sum(self.seen.values()) > 100, 90, "services to read the old cluster")
            await mirror_checked(plan)
            yield

    @contextlib.asynccontextmanager
    async def running(self, services: int = 2, mirror: bool = True) -> AsyncIterator[None]:
        """Runs a producer, services and the mirror during the block."""
        stop = asyncio.Event()
        tasks = [asyncio.ensure_future(self._serve(stop)) for _ in range(services)]
        tasks.append(asyncio.ensure_future(self._write(stop)))
        try:
            if mirror:
                async with mirroring(self.mirror()):
                    yield
            else:
                yield
        finally:
            stop.set()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def write(self, side: LocalCluster, count: int, partitions: list[int] | None = None) -> list[int]:
        """Produces the next numbers to this cluster."""
        numbers = list(range(self._number, self._number + count))
        self._number += count
        rows = [(b"k%d" % (n % 7), b"%d" % n, partitions[n % len(partitions)] if partitions else None) for n in numbers]
        await asyncio.to_thread(produce, side.bootstrap, self.topic, rows, version=side.version)
        self.written["new" if side is self.new else "old"] += numbers
        return numbers

    async def reads(self, side: str) -> None:
        """Waits until services read the cluster `side` again, and all that was written to it until then."""
        brokers = {"old": self.old, "new": self.new}[side].bootstrap
        self.read_from.clear()
        await wait_until_async(lambda: brokers in self.read_from, 60, f"services to read the {side} cluster")
        await wait_until_async(lambda: len(self.written[side]) > 100, 60, f"producers to write to the {side} cluster")
        self.last = self.written[side][-1]
        await wait_until_async(lambda: self.seen[self.last], 60, "the last record to be read")

    async def assert_exact(self) -> None:
        """Services have read each number up to `last`, and none more often than the producer wrote it.

        The producer is not idempotent: it writes again what a broker has not acknowledged.
        """
        assert [n for n in self.written["old"] + self.written["new"] if not self.seen[n] and n <= self.last] == []
        several = {number for number, count in self.seen.items() if count > 1}
        produced: Counter[int] = Counter()
        for side, cluster in (("old", self.old), ("new", self.new)) if several else ():
            wanted = several.intersection(self.written[side])
            for rows in (await contents(cluster, self.topic)).values():
                produced.update(number for number in (int(row[3]) for row in rows) if number in wanted)
        assert {n: self.places[n] for n in several if self.seen[n] > produced[n]} == {}

    async def _serve(self, stop: asyncio.Event) -> None:
        async with SwitchingConsumer(
            self.topic,
            **joined(
                brokers=self.old.bootstrap,
                group=self.group,
                zookeeper=self.zookeeper,
                session_timeout_s=20.0,  # no service dies; a session that ends causes duplicates
                auto_commit_interval_s=0.5,
                **self.options,
            ),
        ) as consumer:
            while not stop.is_set():
                try:
                    batch = await consumer.getbatch(0.2)
                except Closed:
                    raise
                except AllocatorError:
                    continue
                if batch is not None:
                    self.read_from.add(consumer.brokers)
                    for record in batch:
                        number = int(record.value)
                        self.seen[number] += 1
                        place = (consumer.brokers, record.partition, record.offset)
                        self.places.setdefault(number, []).append(place)

    async def _write(self, stop: asyncio.Event) -> None:
        watcher = ChoiceWatcher(ZooKeeperClient(self.zookeeper), "/producers")
        await watcher.start()
        try:
            while not stop.is_set():
                await asyncio.sleep(0.25)
                choice = watcher.current
                if choice is None or choice.frozen:
                    continue
                side = self.new if choice.brokers == self.new.bootstrap else self.old
                await self.write(side, 20, self.partitions)
        finally:
            await watcher.close()
