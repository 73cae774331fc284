"""Runs a group of one peer, causes the events, and measures how long the group takes to recover."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType

from .arithmetic import Outcome, balanced, measure
from .journal import Entry
from .load import Load
from .peers import OVER_ZOOKEEPER
from .settings import Settings
from .worker import Worker

__all__ = ["Group", "Unsettled"]


class Unsettled(Exception):
    """The group did not become stable in time."""


class Group:
    """Members in a few processes. The one member that leaves, joins and crashes has its own process."""

    def __init__(
        self,
        peer: str,
        settings: Settings,
        members: int,
        processes: int,
        servers: Iterable[int],
        *,
        timeout_s: float,
        quiet: float = 1.0,
        quiet_wait_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._peer = peer
        self._settings = settings
        self._timeout_s = timeout_s
        self._random = random.Random(seed)
        self._stay = [Worker(peer, settings) for _ in range(min(processes, members - 1))]
        self._mover = Worker(peer, settings)
        self._members = members
        self._pids = {*servers, self._mover.pid, *(worker.pid for worker in self._stay)}
        self._load = Load(lambda: tuple(self._pids))
        self._quiet, self._quiet_wait_s = quiet, quiet_wait_s
        self._number = 0
        self._dead: dict[str, list[Entry]] = {}
        self._gone: set[str] = set()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in [*self._stay, self._mover]:
            worker.end()

    def begin(self) -> float:
        """Starts all members. Returns the seconds until they own all partitions evenly."""
        began = time.monotonic()
        for number in range(self._members - 1):
            self._stay[number % len(self._stay)].start(f"member-{number:03d}")
        self._join()
        return self._rest() - began

    def round(self, events: tuple[str, ...]) -> Iterator[tuple[str, Outcome]]:
        """Causes the events, with a join after each leave and crash, and yields (event, outcome)."""
        if "leave" in events or "crash" not in events:
            yield "leave", self._measured(self._leave)
            yield "join", self._measured(self._join)
        if "crash" in events:
            yield "crash", self._measured(self._crash)
            yield "join", self._measured(self._join)

    def _measured(self, do: Callable[[], float]) -> Outcome:
        # a random wait, so that events fall on every phase of the heartbeats
        time.sleep(self._random.uniform(0, self._settings.heartbeat_s))
        if self._quiet < 1:
            self._load.wait_quiet(self._quiet, self._quiet_wait_s)
        self._load.sample()
        event = do()
        deadline = time.monotonic() + self._timeout_s
        while True:
            end = self._rest()
            try:
                outcome = measure(self._journals(), event, end)
            except ValueError as error:
                if end > deadline:
                    raise Unsettled(f"{self._peer}: {error} after {self._timeout_s:g} s") from None
                continue
            # only the last second counts: after a crash, the group first waits for the session timeout
            done = event + outcome.last_s
            return replace(outcome, foreign=self._load.share(max(event, done - 1.0), done))

    def _join(self) -> float:
        self._number += 1
        return self._mover.start(f"mover-{self._number:03d}")

    def _mover_name(self) -> str:
        return f"mover-{self._number:03d}"

    def _leave(self) -> float:
        self._gone.add(self._mover_name())
        when: float = self._mover.ask("leave", self._mover_name())
        return when

    def _crash(self) -> float:
        """Reads the member's journal, kills its process with SIGKILL, and returns the time of the kill."""
        successor = Worker(self._peer, self._settings)
        self._pids.add(successor.pid)
        successor.ask("state")  # wait until it has started, so that it uses no CPU during the measurement
        self._dead.update(self._mover.ask("journals"))
        self._gone.add(self._mover_name())
        event = time.monotonic()
        self._mover.kill()
        self._mover.process.join()
        self._mover = successor
        return event

    def _journals(self) -> dict[str, list[Entry]]:
        found = dict(self._dead)
        for worker in [*self._stay, self._mover]:
            found.update(worker.ask("journals"))
        return found

    def _rest(self) -> float:
        """Waits until the members own all partitions evenly and nothing changes. Returns the time."""
        # a group of Kafka's own may rebalance again, and its members learn of that from their next heartbeats
        calm_s = 1.0 if self._peer in OVER_ZOOKEEPER else self._settings.heartbeat_s + 0.5
        deadline = time.monotonic() + self._timeout_s
        since, seen = 0.0, -1
        while True:
            counts, entries = [], 0
            for worker in [*self._stay, self._mover]:
                for name, (owned, written, error) in worker.ask("state").items():
                    if error is not None:
                        raise Unsettled(f"{self._peer}: {name} failed:\n{error}")
                    entries += written
                    if name not in self._gone:
                        counts.append(owned)
            self._load.sample()
            now = time.monotonic()
            if len(counts) < self._alive() or not balanced(counts, self._settings.partitions):
                seen = -1
            elif entries != seen:
                since, seen = now, entries
            elif now - since > calm_s:
                return now
            if now > deadline:
                raise Unsettled(f"{self._peer}: not stable within {self._timeout_s:g} s; members own {sorted(counts)}")
            time.sleep(0.1)

    def _alive(self) -> int:
        return self._members - (self._mover_name() in self._gone)
