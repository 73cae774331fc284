"""Daemon processes for tests: a topic, a group, settings, and the handled records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster, produce, wait_until
from allocator.types import TopicPartition

ROOT = Path(__file__).parents[2]
HANDLERS = "tests.daemon.handlers_under_test"
COMMAND = [sys.executable, "-m", "allocator.cli"]


class Setup:
    """One topic, one group, and the daemons on them."""

    def __init__(self, cluster: LocalCluster, zookeeper: str, topic: str, group: str, directory: Path) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.topic = topic
        self.group = group
        self.done_file = directory / "done"
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []
        self.filled = 0
        self._done: list[dict[str, Any]] = []
        self._read = 0

    def config(self, function: str = "plain", **sections: dict[str, Any]) -> Path:
        settings: dict[str, dict[str, Any]] = {
            "kafka": {"brokers": self.cluster.bootstrap.split(",")},
            "zookeeper": {"hosts": self.zookeeper, "session_timeout_s": 15},
            "group": {"name": self.group, "topics": [self.topic]},
            "handler": {"target": f"{HANDLERS}:{function}", "retries": 2, "retry_backoff_s": 0.01},
            "consume": {"prefetch_bytes": 8000, "max_wait_s": 0.05},
        }
        for name, values in sections.items():
            settings.setdefault(name, {}).update(values)
        lines = []
        for name, values in settings.items():
            given = {key: value for key, value in values.items() if value is not None}
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
        path = self.directory / f"config-{len(list(self.directory.glob('config-*')))}.toml"
        path.write_text("\n".join(lines))
        return path

    def environ(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "DONE_FILE": str(self.done_file),
            **more,
        }

    def run(self, config: Path, *, create: bool = True, **environ: str) -> subprocess.Popen[str]:
        """Starts a daemon, which may create the chroot with `create`."""
        log = open(self.directory / f"log-{len(self.processes)}", "w")  # noqa: SIM115 - the process writes to it
        process = subprocess.Popen(
            [*COMMAND, "run", str(config), *(["--create"] if create else [])],
            env=self.environ(**environ),
            stderr=log,
            text=True,
            cwd=self.directory,
            # under nohup, child processes would ignore it too
            preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
        )
        log.close()
        self.processes.append(process)
        return process

    def check(self, config: Path, *options: str, **environ: str) -> Result:
        """Runs `--check` in a thread, because the thread of the caller may have an event loop."""
        with ThreadPoolExecutor(1) as threads:
            arguments = ["run", str(config), "--check", *options]
            return threads.submit(CliRunner().invoke, main, arguments, env=environ).result(60)

    def fill(self, count: int) -> None:
        """Produces `count` more records, evenly over the partitions, with increasing numbers as values."""
        produce(self.cluster.bootstrap, self.topic, [str(self.filled + n).encode() for n in range(count)])
        self.filled += count

    def done(self) -> list[dict[str, Any]]:
        """Returns the handled records. Reads only new lines, because tests call it often."""
        if self.done_file.exists():
            with self.done_file.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
            self._read += len(whole)
            self._done += [json.loads(line) for line in whole.splitlines()]
        return self._done

    def logs(self, number: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / f"log-{number}").read_text().splitlines()]

    def wait_done(self, count: int | None = None, timeout_s: float = 60) -> None:
        """Waits until `count` records are handled, by default all."""
        wanted = self.filled if count is None else count

        def enough() -> bool:
            assert any(process.poll() is None for process in self.processes), self.logs(len(self.processes) - 1)
            return len(self.done()) >= wanted and len({entry["value"] for entry in self.done()}) >= wanted

        wait_until(enough, timeout_s, f"{wanted} records to be handled")

    def busy_until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits, and produces records if few are left, so that a fast machine does not run out of them."""

        def met() -> bool:
            if len(self.done()) > self.filled - 150:
                self.fill(300)
            return condition()

        wait_until(met, 60, what)

    def both_at_work(self) -> None:
        self.busy_until(lambda: len({entry["pid"] for entry in self.done()}) == 2, "both to take part")

    async def committed(self) -> dict[int, int]:
        async with KafkaClient(self.cluster.bootstrap) as client:
            await client.refresh([self.topic])
            wanted = [TopicPartition(self.topic, p) for p in client.partitions(self.topic) or ()]
            found = await GroupOffsets(client, self.group).fetch(wanted)
        return {partition.partition: offset.offset for partition, offset in found.items()}


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(30)


@pytest.fixture
def make(
    topic_factory: Callable[..., str], group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Setup]]:
    setups: list[Setup] = []

    def setup(partitions: int = 1, cluster: LocalCluster | None = None, zookeeper: str | None = None) -> Setup:
        where = cluster if cluster is not None else request.getfixturevalue("kafka_cluster")
        topic = topic_factory(partitions, cluster=where)
        setups.append(Setup(where, zookeeper or f"{where.zookeeper}/{group}", topic, group, tmp_path))
        return setups[-1]

    yield setup
    for each in setups:
        for process in each.processes:
            process.kill()
            process.wait()
            with contextlib.suppress(FileNotFoundError):
                print((tmp_path / f"log-{each.processes.index(process)}").read_text()[-5000:])
