"""Runs the members of a group, each in its own process, and produces the load."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from allocator.testing import ClusterError, LocalCluster

__all__ = ["Group", "Load", "Member", "Settings"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Settings:
    """Settings of a run. All peers that have a setting get the same value. Times are in seconds."""

    members: int = 5
    partitions: int = 20
    session_timeout_s: float = 3.0
    commit_s: float = 0.5
    work_s: float = 0.001
    """How long a member processes each record."""
    rate: float = 300.0
    """Records per second, over all partitions."""
    keys: int = 8
    """Number of keys in each partition."""
    kafka: str = "3.9.1"
    brokers: int = 3
    zookeepers: int = 3
    tick_ms: int = 200
    calm_s: float = 2.0
    """Time of steady load between two faults."""


@dataclass
class Member:
    """A member process. After a restart, it is a new member with its own journal."""

    name: str
    journal: Path
    log: Path
    process: subprocess.Popen[bytes]
    killed: float | None = None
    _read: int = 0
    _events: list[dict[str, Any]] = field(default_factory=list)
    _owned: set[int] = field(default_factory=set)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the process, waits until it has ended, and stores the time."""
        self.process.kill()
        self.process.wait()
        self.killed = time.monotonic()

    def owns(self) -> set[int]:
        """Returns the partitions that the member owns according to its journal."""
        self.events()
        return self._owned

    def events(self) -> list[dict[str, Any]]:
        """Returns the events that the journal has so far."""
        if self.journal.exists():
            with self.journal.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
            self._read += len(whole)
            for event in map(json.loads, whole.splitlines()):
                self._events.append(event)
                if event["what"] == "own":
                    self._owned.update(event["partitions"])
                elif event["what"] in ("revoked", "lost"):
                    self._owned.difference_update(event["partitions"])
        return self._events


@dataclass
class Group:
    """The members of a run: `members` should be running; `all` also includes those that were stopped."""

    peer: str
    cluster: LocalCluster
    settings: Settings
    directory: Path
    topic: str
    name: str
    python: str = sys.executable
    path: str = ""
    """Additional PYTHONPATH entries, for members that run in another Python."""
    members: list[Member] = field(default_factory=list)
    all: list[Member] = field(default_factory=list)
    _counted: dict[str, int] = field(default_factory=dict)
    _seen: dict[int, set[int]] = field(default_factory=dict)

    def __enter__(self) -> Group:
        for _ in range(self.settings.members):
            self.add()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.all:
            if member.alive:
                member.signal(signal.SIGCONT)
                member.kill()

    def add(self) -> Member:
        name = f"m{len(self.all):02d}"
        journal, log = self.directory / f"{name}.jsonl", self.directory / f"{name}.log"
        settings = {
            "name": name,
            "journal": str(journal),
            "brokers": self.cluster.bootstrap,
            "zookeeper": self.cluster.zookeeper,
            "group": self.name,
            "topic": self.topic,
            "partitions": self.settings.partitions,
            "session_timeout_s": self.settings.session_timeout_s,
            "commit_s": self.settings.commit_s,
            "work_s": self.settings.work_s,
            "kafka": self.settings.kafka,
        }
        root = str(HERE.parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [self.path, root]))}
        program = str(HERE / "members" / f"{self.peer}.py")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.python, program, json.dumps(settings)], stdout=output, stderr=output, env=environment, cwd=root
            )
        member = Member(name, journal, log, process)
        self.members.append(member)
        self.all.append(member)
        return member

    def kill(self, member: Member) -> None:
        member.kill()
        self.members.remove(member)

    def shared(self) -> bool:
        """Returns whether every member owns a partition."""
        return all(member.owns() for member in self.members)

    def ended(self) -> list[Member]:
        """Returns the members that ended by themselves."""
        return [member for member in self.members if not member.alive]

    def leave(self, member: Member, timeout_s: float = 30.0) -> bool:
        """Stops a member with SIGTERM. Returns False if it did not end within `timeout_s` and was killed."""
        self.members.remove(member)
        member.signal(signal.SIGTERM)
        try:
            member.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            member.kill()
            return False
        return True

    def processed(self) -> dict[int, int]:
        """Returns the number of distinct processed records of each partition."""
        for member in self.all:
            events = member.events()
            for event in events[self._counted.get(member.name, 0) :]:
                if event["what"] == "did":
                    self._seen.setdefault(event["partition"], set()).add(event["offset"])
            self._counted[member.name] = len(events)
        return {partition: len(offsets) for partition, offsets in self._seen.items()}


class Load:
    """A thread that produces records at a steady rate, round robin over the partitions. Resends refused records."""

    def __init__(self, cluster: LocalCluster, topic: str, settings: Settings) -> None:
        self._cluster, self._topic, self._settings = cluster, topic, settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.sent = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)

    def _run(self) -> None:
        began = time.monotonic()
        pause_s = max(0.1, self._settings.partitions / self._settings.rate)
        try:
            while not self._stop.wait(pause_s):
                due = int((time.monotonic() - began) * self._settings.rate)
                # after an interruption, keep the rate steady instead of catching up at once
                count = min(due - self.sent, int(self._settings.rate / 2))
                began += max(0.0, (due - self.sent - count) / self._settings.rate)
                records = [
                    (
                        b"%d" % (number // self._settings.partitions % self._settings.keys),
                        b"%010d" % number,
                        number % self._settings.partitions,
                    )
                    for number in range(self.sent, self.sent + count)
                ]
                with contextlib.suppress(ClusterError):
                    self._cluster.produce(self._topic, records, timeout_s=20.0)
                    self.sent += count
        except Exception as error:  # noqa: BLE001 - the run reports it
            self.error = error
