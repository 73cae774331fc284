"""Faults of a simulated group: drawn from a seed, printed, and replayed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from allocator.protocols.zookeeper.client.client import Op
from tests.groups.simulated_commands import KINDS
from tests.groups.simulated_member import TIMEOUT_S, Worker

if TYPE_CHECKING:
    from tests.groups.simulation import Simulation

MEMBERS = 6  # alive at once, at most
PARTITIONS = 12
MEAN_S = 1.2  # from one event to the next
TOGETHER_S = 0.05  # ... or this long, if it falls into the reaction to the last event
TOGETHER = 0.3  # how often that is
MOST_AGE_S = 15.0  # of an assignment that an operator restores


@dataclass(frozen=True)
class Event:
    """One line of a schedule: the time (seconds of virtual time), the kind of fault, its target and its duration."""

    at: float
    what: str
    who: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:8.3f} {self.what} {self.who}{f' {self.seconds:.3f}' if self.seconds else ''}".rstrip()


def parse(lines: Iterable[str]) -> list[Event]:
    """The events among these lines; whatever else was printed around them is passed over."""
    pattern = re.compile(r"\s*(\d+\.\d{3}) ([a-z-]+)(?: (w\d+))?(?: (\d+\.\d{3}))?\s*\Z")
    found = (pattern.match(line) for line in lines)
    return [Event(float(m[1]), m[2], m[3] or "", float(m[4] or 0)) for m in found if m]


class Faults:
    """Plays events. An event without effect, after others were removed, does nothing."""

    def __init__(self, world: Simulation, schedule: Optional[Sequence[Event]]) -> None:
        self.world = world
        self.done: list[Event] = []
        self._schedule = schedule
        # a random source apart from the network's, so that a shorter schedule sees the same network
        self._random = random.Random(f"faults of {world.seed}")
        self._born = 0

    async def play(self, seconds: float) -> None:
        """Plays the schedule, or draws one while it runs."""
        if self._schedule is not None:
            for event in self._schedule:
                await self._until(event.at)
                self.do(event.what, event.who, event.seconds)
            await self._until(seconds)
            return
        for _ in range(3):
            self._start()
        while self.world.failure is None:
            mean_s = TOGETHER_S if self._random.random() < TOGETHER else MEAN_S
            at = round(self.world.loop.time() + self._random.expovariate(1 / mean_s), 3)
            if at >= seconds:
                break
            await self._until(at)
            self._random.choice(self._possible())()
        await self._until(seconds)

    async def _until(self, at: float) -> None:
        if at > self.world.loop.time():  # no extra turn of the loop, which would change a replay
            await asyncio.sleep(at - self.world.loop.time())

    def do(self, what: str, who: str = "", seconds: float = 0.0) -> None:
        """Applies an event if possible, and records it."""
        if who and what != "start" and (who not in self.world.workers or self.world.workers[who].gone):
            return
        if what == "start" and who in self.world.workers:
            return
        self.done.append(Event(round(self.world.loop.time(), 3), what, who, seconds))
        if what.startswith("order-"):
            self.world.commands.put(what[len("order-") :], who, seconds)
            return
        handler: Callable[..., None] = getattr(self, "_do_" + what.replace("-", "_"))
        handler(*([who] if who else []), *([seconds] if seconds else []))

    def heal(self) -> None:
        """Ends all faults, and starts a member if none runs."""
        for worker in self.world.workers.values():
            self._mend(worker)
            self._quicken(worker)
            self._thaw(worker)
        if not self.alive():
            self._start()

    def alive(self) -> list[str]:
        return sorted(name for name, worker in self.world.workers.items() if not worker.gone)

    # -- drawing -------------------------------------------------------------------------------------------------

    def _possible(self) -> list[Callable[[], None]]:
        names = self.alive()
        found: list[Callable[[], None]] = []
        if len(names) < MEMBERS:
            found += [self._start] * 2
        if len(names) > 1:
            found += [self._one("leave"), self._one("kill"), self._one("kill"), self._leader("kill")]
        if len(names) > 1 and self.world.grace_s:
            found += [self._one("leave"), self._one("quit"), self._start]
        if names:
            found += [self._one("freeze", 3 * TIMEOUT_S), self._one("freeze", 3 * TIMEOUT_S)]
            found += [
                self._one("cut", 3 * TIMEOUT_S),
                self._one("cut", 3 * TIMEOUT_S),
                self._one("slow", 3 * TIMEOUT_S),
            ]
            found += [self._one("delete-znode"), self._leader("freeze", 3 * TIMEOUT_S), self._leader("delete-znode")]
        if names and self.world.watched:
            found += [self._one("block", TIMEOUT_S), self._one("block", TIMEOUT_S), self._leader("block", TIMEOUT_S)]
        found += [lambda: self.do("spoil"), lambda: self.do("unassign"), lambda: self.do("grow")]
        found += [lambda: self.do("restore", seconds=self._for(MOST_AGE_S))]
        if names and not self.world.jumpy:  # a budget is counted by the wall clock
            found += [self._command] * 3
        found += [lambda: self.do("withdraw")]
        if names and self.world.reads:
            found += [self._one("seek")] * 4
        return found

    def _command(self) -> None:
        self.do(
            f"order-{self._random.choice(KINDS)}",
            self._random.choice(self.alive()),
            self._random.choice([0.0, self._for(20.0)]),
        )

    def _start(self) -> None:
        self._born += 1
        while f"w{self._born}" in self.world.workers:
            self._born += 1
        self.do("start", f"w{self._born}")

    def _one(self, what: str, most_s: float = 0.0) -> Callable[[], None]:
        return lambda: self.do(what, self._random.choice(self.alive()), self._for(most_s))

    def _leader(self, what: str, most_s: float = 0.0) -> Callable[[], None]:
        def act() -> None:
            for name in self.alive():
                if self.world.workers[name].membership.leading:
                    self.do(what, name, self._for(most_s))
                    return

        return act

    def _for(self, most_s: float) -> float:
        return round(self._random.uniform(0.1, most_s), 3) if most_s else 0.0

    # -- doing ---------------------------------------------------------------------------------------------------

    def _do_start(self, name: str) -> None:
        self.world.start(name)

    def _do_leave(self, name: str) -> None:
        worker = self.world.workers[name]
        if worker.joined and name not in self.world.loop.frozen:
            worker.gone = True
            self.world.spawn(name, worker.membership.leave())

    def _do_quit(self, name: str) -> None:
        """Leaves for good, so that nothing is reserved."""
        self.world.workers[name].membership.leave_for_good()
        self._do_leave(name)

    def _do_kill(self, name: str) -> None:
        worker = self.world.workers[name]
        worker.gone = True
        worker.zk.cut = True
        self.world.loop.freeze(name)  # for ever

    def _do_freeze(self, name: str, seconds: float) -> None:
        if name not in self.world.loop.frozen:
            self.world.loop.freeze(name)
            self.world.loop.call_later(seconds, self._thaw, self.world.workers[name])

    def _do_block(self, name: str, seconds: float) -> None:
        """Blocks its event loop, while its threads go on."""
        if name not in self.world.loop.frozen:
            self.world.loop.block(name)
            self.world.loop.call_later(seconds, self._thaw, self.world.workers[name])

    def _thaw(self, worker: Worker) -> None:
        if not worker.gone and worker.name in self.world.loop.frozen:
            self.world.loop.thaw(worker.name)

    def _do_cut(self, name: str, seconds: float) -> None:
        self.world.workers[name].zk.cut = True
        self.world.loop.call_later(seconds, self._mend, self.world.workers[name])

    def _mend(self, worker: Worker) -> None:
        if not worker.gone:
            worker.zk.cut = False

    def _do_slow(self, name: str, seconds: float) -> None:
        """Delays its packets up to half a second in each direction, so that all others overtake it."""
        self.world.workers[name].zk.slow_s = 0.5
        self.world.loop.call_later(seconds, self._quicken, self.world.workers[name])

    def _quicken(self, worker: Worker) -> None:
        worker.zk.slow_s = 0.0

    def _do_delete_znode(self, name: str) -> None:
        path = f"/allocator/g/members/{self.world.workers[name].membership.member_id}"
        if path in self.world.ensemble.znodes:
            self._by_hand("delete", path)

    def _do_spoil(self) -> None:
        if "/allocator/g/assignment" in self.world.ensemble.znodes:
            self._by_hand("set", "/allocator/g/assignment", b"garbage")

    def _do_unassign(self) -> None:
        """Deletes the assignment; the leader creates it again, with versions that count from 0."""
        if "/allocator/g/assignment" in self.world.ensemble.znodes:
            self._by_hand("delete", "/allocator/g/assignment")

    def _do_restore(self, age_s: float) -> None:
        """Overwrites the assignment with the one from `age_s` ago, or creates that."""
        data = self.world.assignment_at(self.world.loop.time() - age_s)
        if data is not None:
            path = "/allocator/g/assignment"
            self._by_hand("set" if path in self.world.ensemble.znodes else "create", path, data)

    def _by_hand(self, kind: str, path: str, data: bytes = b"") -> None:
        self.world.by_hand = True
        self.world.ensemble.commit([Op(kind, path, data)], self.world.ensemble.open(1e9))
        self.world.by_hand = False

    def _do_seek(self, name: str) -> None:
        """Commands a seek of a partition of this member."""
        active = sorted(self.world.workers[name].active)
        if active:
            self.world.kafka.seek(active[len(self.done) % len(active)])

    def _do_withdraw(self) -> None:
        self.world.commands.withdraw()

    def _do_grow(self) -> None:
        if self.world.topics.counts["t"] < PARTITIONS:
            self.world.topics.change(t=self.world.topics.counts["t"] + 1)
