"""A Spark standalone cluster of real processes on this machine, and a driver on it.

Each worker has a loopback address of its own: Spark starts no copy of a slow task on the host of the first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from allocator.spark.sessions import java_home
from allocator.testing.java import find_java
from allocator.testing.ports import PortLease
from allocator.testing.waiting import wait_until
from tests.spark.spark_settings import JVM

HOME = Path(pyspark.__file__).parent


class Standalone:
    """A master and workers of one core each; their output is in files under `root`."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        self.environment = {
            **os.environ,
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",  # else the launcher looks for a source tree
            "PYSPARK_PYTHON": python,
        }
        self._ports = PortLease()
        self.port = self._ports.take()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        self._daemon("master", "127.0.0.1", "master.Master", "--port", str(self.port))
        for number in range(workers):
            work = ("-c", "1", "-m", "600m", "-d", str(self.root / f"work-{number}"), self.url)
            self.workers.append(self._daemon(f"worker-{number}", f"127.0.0.{number + 1}", "worker.Worker", *work))
        for number in range(workers):
            log = self.root / f"worker-{number}.log"
            wait_until(lambda log=log: "Successfully registered" in log.read_text(), 300, f"{log} to register")

    def driver(self, script: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a driver process; its first argument is the master's address."""
        return self.process("driver", sys.executable, str(script), self.url, *arguments)

    def kill(self, worker: int) -> None:
        self.workers[worker].send_signal(signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._ports.release()

    def log(self, name: str = "driver") -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def result(self) -> Any:
        """Returns what the driver printed after RESULT, as JSON."""
        (found,) = [line for line in self.log().splitlines() if line.startswith("RESULT ")]
        return json.loads(found.split(" ", 1)[1])

    def _daemon(self, name: str, host: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = str(Path(self.environment["JAVA_HOME"]) / "bin" / "java")
        classes = ("-Xmx256m", *JVM.split(), "-cp", f"{HOME}/jars/*", f"org.apache.spark.deploy.{main}")
        options = ("--host", host, "--webui-port", "0")
        return self.process(name, java, *classes, *options, *arguments, SPARK_LOCAL_IP=host)

    def process(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with open(self.root / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                cwd=self.root,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


def rows_of(directory: Path) -> dict[int, list[int]]:
    """Returns the offsets of each partition in the files rows/batch=N of a stream."""
    found: dict[int, list[int]] = {}
    try:
        for file in sorted(directory.glob("rows/*/*.parquet")):
            for row in pq.read_table(file).to_pylist():
                found.setdefault(row["partition"], []).append(row["offset"])
    except FileNotFoundError:
        return {}  # the stream writes a batch again
    return {partition: sorted(found[partition]) for partition in sorted(found)}


@contextlib.contextmanager
def standalone(root: Path, workers: int = 2, python: str = sys.executable) -> Iterator[Standalone]:
    """`python` runs the executors and the driver's planning processes."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", find_java(oldest=17).home)
        cluster = Standalone(root, python)
        try:
            cluster.start(workers)
            yield cluster
        finally:
            cluster.stop()
