"""Measures the duration of rebalances of a large group, and their cost for ZooKeeper.

    python -m bench.scale                                100 members, 10 000 partitions, about two minutes
    python -m bench.scale --members 50 --partitions 1000
    python -m bench.scale --json FILE

The members, which share a few processes, and ZooKeeper are real. No member reads records, so a table of partition
counts replaces Kafka. The events are:

- all members start;
- one more member joins, and then leaves, or its process gets SIGKILL;
- rolling restart: all members of a process leave, and as many fresh ones join from another process. The next process
  follows when all partitions are owned again. With 10 processes, a tenth of the members restarts at a time;
- leader crash: the process of the leader gets SIGKILL. It has no other member.

The duration ends when the last moved partition has started at its new owner. The standstill is the longest time in
which a partition had no owner.

The members count their writes and reads, the bytes of data in them, and the watches that fired. They do not count the
writes that prove their leases, which go on without rebalances (four per session timeout). The server counts
transactions and registered watches.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from allocator.testing import LocalCluster

TIMEOUT_S = 300.0
QUIET_S = 0.3  # the rebalance is over after this time without a change


class Process:
    """A worker process with some of the members. Sends it commands, and receives its reports."""

    def __init__(self, group: Group, first: int, count: int) -> None:
        o = group.options
        numbers = (first, count, o.topics, o.partitions)
        command = [
            sys.executable,
            "-m",
            "bench.scale.worker",
            group.hosts,
            *map(str, numbers),
            str(o.session),
            o.assignor,
        ]
        self.group, self.members = group, range(first, first + count)
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers: set[str] = set()
        self.leading: list[int] = []  # by the last answer
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            said = json.loads(line)
            if "done" in said:
                self.group.counts.update({int(number): Counter(counts) for number, counts in said["counts"].items()})
                self.leading = said["leading"]
                self.answers.add(said["done"])
            else:
                self.group.heard(said)

    def tell(self, what: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(what + "\n")
        self.child.stdin.flush()

    def answer(self, to: str) -> None:
        """Waits until the process has executed a command."""
        until(lambda: to in self.answers, f"a response to {to!r}")
        self.answers.remove(to)

    def crash(self) -> None:
        """Kills the process, and reports the end of all its ownerships."""
        self.group.processes.remove(self)
        self.child.kill()
        self.child.wait()
        at = time.monotonic()
        for number in self.members:
            self.group.heard({**self.group.last[number], "at": at, "began": [], "ended": self.group.owned[number]})

    def end(self) -> None:
        self.group.processes.remove(self)
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def until(condition: Any, what: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"timeout: waited for {what}")
        time.sleep(0.01)


class Group:
    """All members, with the last report of each."""

    def __init__(self, options: argparse.Namespace, hosts: str) -> None:
        self.options, self.hosts = options, hosts
        self.processes: list[Process] = []
        self.last: dict[int, dict[str, Any]] = {}
        self.counts: dict[int, Counter[str]] = {}
        self.owned: dict[int, frozenset[int]] = {}
        self.history: list[tuple[float, bool, int]] = []  # (time, whether an ownership began or ended, partition)
        self.present: set[int] = set()
        self.changed = 0.0
        self.moved = 0
        self.losses = 0
        self.suspensions = 0

    def heard(self, said: dict[str, Any]) -> None:
        if "began" in said:
            number, at, began, ended = said["member"], said["at"], said["began"], said["ended"]
            self.last[number] = said
            self.owned[number] = self.owned.get(number, frozenset()).difference(ended).union(began)
            self.history += [*((at, False, each) for each in ended), *((at, True, each) for each in began)]
            self.moved += len(began)
            self.changed = max(self.changed, at)
        self.losses += "lost" in said
        self.suspensions += "suspended" in said

    def start(self, first: int, count: int) -> Process:
        self.processes.append(Process(self, first, count))
        self.processes[-1].tell("stats")
        self.processes[-1].answer("stats")  # wait until the worker has imported its modules, which is not measured
        return self.processes[-1]

    def stats(self) -> tuple[dict[int, Counter[str]], set[int]]:
        """Returns the counters of all members, including those that have left, and the members that lead."""
        for process in self.processes:
            process.tell("stats")
        for process in self.processes:
            process.answer("stats")
        return dict(self.counts), {number for process in self.processes for number in process.leading}

    def standstill(self) -> float:
        """Returns the longest time in which a partition had no owner, since the last call."""
        history, self.history = sorted(self.history), []
        ended: dict[int, float] = {}
        longest = 0.0
        for at, began, partition in history:
            if began:
                longest = max(longest, at - ended.pop(partition, at))
            else:
                ended[partition] = at
        return longest

    def settled(self) -> bool:
        owned = [len(self.owned[number]) for number in self.present if number in self.owned]
        return (
            len(owned) == len(self.present)
            and sum(owned) == self.options.partitions
            and max(owned) - min(owned) <= 1
            and time.monotonic() - self.changed > QUIET_S
        )

    def measure(self, event: str, present: Iterable[int], cause: Callable[[], object]) -> dict[str, Any]:
        before, _ = self.stats()
        zxid, moved, generation = self.server()["zxid"], self.moved, self.generation()
        self.present = set(present)
        began = time.monotonic()
        cause()
        self.wait(event)
        after, leading = self.stats()
        server = self.server()
        each = {number: counts - before.get(number, Counter()) for number, counts in after.items()}
        found = sum(each.values(), Counter())
        followers = [counts["events"] for number, counts in each.items() if number not in leading]
        return {
            "event": event,
            "seconds": self.changed - began,
            "standstill": self.standstill(),
            "generations": self.generation() - generation,
            "moved": self.moved - moved,
            **{name: found[name] for name in ("writes", "bytes written", "reads", "bytes read")},
            "transactions": server["zxid"] - zxid - found["proofs"],
            "watch events of a follower, max": max(followers, default=0),
            "watch events of a follower, mean": sum(followers) / max(1, len(followers)),
            "watch events of the leader": max((each[number]["events"] for number in leading), default=0),
            "registered watches": server["watches"],
        }

    def wait(self, event: str) -> None:
        until(self.settled, f"{event}: {len(self.present)} members to own all partitions evenly")

    def restart(self, old: Sequence[Process], fresh: Sequence[Process]) -> None:
        """Ends the old processes one after another. All members of a fresh one join when an old one has ended."""
        for leaving, joining in zip(old, fresh):
            leaving.tell("leave")
            leaving.answer("leave")
            leaving.end()
            self.present = self.present.difference(leaving.members).union(joining.members)
            joining.tell("join")
            self.wait("rolling restart")

    def generation(self) -> int:
        return max((said["generation"] for said in self.last.values()), default=0)

    def server(self) -> dict[str, int]:
        def ask(word: bytes) -> dict[str, str]:
            host, _, port = self.hosts.split("/")[0].partition(":")
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(word)
                text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
            return dict(
                line.replace(": ", "\t", 1).split("\t", 1) for line in text.splitlines() if ": " in line or "\t" in line
            )

        return {"zxid": int(ask(b"srvr")["Zxid"], 16), "watches": int(ask(b"mntr")["zk_watch_count"])}


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with LocalCluster(None, tick_ms=100, zookeeper_heap="384m") as cluster:
        group = Group(options, cluster.zookeeper)
        size = -(-options.members // options.processes)
        try:
            for first in range(0, options.members, size):
                group.start(first, min(size, options.members - first))

            def everyone() -> None:
                for process in group.processes:
                    process.tell("join")

            everybody = range(options.members)
            rows.append(group.measure("all start at once", everybody, everyone))
            for turn in range(options.turns):
                newcomer = group.start(options.members + turn, 1)
                cause = partial(newcomer.tell, "join")
                rows.append(group.measure("join", {*everybody, *newcomer.members}, cause))
                kind, cause = ("leave", partial(newcomer.tell, "leave")) if turn % 2 == 0 else ("crash", newcomer.crash)
                rows.append(group.measure(kind, everybody, cause))
                if kind == "leave":
                    newcomer.end()

            old = list(group.processes)
            # after the restart of all others, this member is the oldest, and so the leader
            remaining = group.start(options.members + options.turns, 1)
            group.present |= {*remaining.members}
            remaining.tell("join")
            group.wait("join")
            fresh = [group.start(remaining.members.stop + each.members.start, len(each.members)) for each in old]
            rows.append(group.measure("rolling restart", group.present, partial(group.restart, old, fresh)))
            process = next(process for process in group.processes if process.leading)
            rows.append(group.measure("leader crash", group.present.difference(process.members), process.crash))
            if group.losses or group.suspensions:
                print(f"{group.losses} sessions lost, {group.suspensions} suspensions: the machine is overloaded")
        finally:
            for process in group.processes:
                process.child.kill()
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    made = Table(title=f"{options.members} members, {options.partitions} partitions, {options.assignor}")
    for name in rows[0]:
        made.add_column(name, justify="left" if name == "event" else "right")
    for row in rows:
        made.add_row(
            *(
                f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
                for value in row.values()
            )
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument(
        "--processes", type=int, default=4, help="processes of members, which restart one after another"
    )
    parser.add_argument(
        "--turns", type=int, default=4, help="number of joins; a leave follows the first, a crash the second, and so on"
    )
    parser.add_argument("--session", type=float, default=10.0, help="session timeout in seconds")
    parser.add_argument("--assignor", default="sticky")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = run(options)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    Console(width=220).print(table(rows, options))


if __name__ == "__main__":
    main()
