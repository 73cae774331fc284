"""Measures the duration of rebalances of a large group, and their cost for ZooKeeper.

    python -m bench.scale                                100 members, 10 000 partitions, about a minute
    python -m bench.scale --members 50 --partitions 1000
    python -m bench.scale --json FILE

The members, which share a few processes, and ZooKeeper are real. No member reads records, so a table of partition
counts replaces Kafka. The events are: all members start, one more member joins, a member leaves, and the process of a
member gets SIGKILL. The duration ends when the last moved partition has started at its new owner.

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
from collections.abc import Iterable
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
        self.answers: dict[str, dict[str, Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            said = json.loads(line)
            if "done" in said:
                self.answers[said["done"]] = said
            else:
                self.group.heard(said)

    def tell(self, what: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(what + "\n")
        self.child.stdin.flush()

    def answer(self, to: str) -> dict[str, Any]:
        until(lambda: to in self.answers, f"a response to {to!r}")
        return self.answers.pop(to)

    def end(self) -> None:
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
        self.present: set[int] = set()
        self.changed = 0.0
        self.moved = 0
        self.losses = 0
        self.suspensions = 0

    def heard(self, said: dict[str, Any]) -> None:
        if "owned" in said:
            self.last[said["member"]] = said
            self.moved += said["began"]
            self.changed = max(self.changed, said["at"])
        self.losses += "lost" in said
        self.suspensions += "suspended" in said

    def start(self, first: int, count: int) -> Process:
        self.processes.append(Process(self, first, count))
        self.processes[-1].tell("stats")
        self.processes[-1].answer("stats")  # wait until the worker has imported its modules, which is not measured
        return self.processes[-1]

    def stats(self) -> tuple[Counter[str], dict[int, Counter[str]], set[int]]:
        total: Counter[str] = Counter()
        members: dict[int, Counter[str]] = {}
        leading: set[int] = set()
        for process in self.processes:
            process.tell("stats")
        for process in self.processes:
            said = process.answer("stats")
            leading |= set(said["leading"])
            for number, counts in said["counts"].items():
                members[int(number)] = Counter(counts)
                total += Counter(counts)
        return total, members, leading

    def settled(self) -> bool:
        owned = [self.last[number]["owned"] for number in self.present if number in self.last]
        return (
            len(owned) == len(self.present)
            and sum(owned) == self.options.partitions
            and max(owned) - min(owned) <= 1
            and time.monotonic() - self.changed > QUIET_S
        )

    def measure(self, event: str, present: Iterable[int], cause: Any) -> dict[str, Any]:
        before, each_before, _ = self.stats()
        zxid, moved, generation = self.server()["zxid"], self.moved, self.generation()
        self.present = set(present)
        began = time.monotonic()
        cause()
        until(self.settled, f"{event}: {len(self.present)} members to own all partitions evenly")
        after, each, leading = self.stats()
        server = self.server()
        found = after - before
        events = {number: each[number]["events"] - each_before.get(number, Counter())["events"] for number in each}
        followers = [count for number, count in events.items() if number not in leading]
        return {
            "event": event,
            "seconds": self.changed - began,
            "generations": self.generation() - generation,
            "moved": self.moved - moved,
            **{name: found[name] for name in ("writes", "bytes written", "reads", "bytes read")},
            "transactions": server["zxid"] - zxid - found["proofs"],
            "watch events of a follower, max": max(followers, default=0),
            "watch events of a follower, mean": sum(followers) / max(1, len(followers)),
            "watch events of the leader": max(
                (count for number, count in events.items() if number in leading), default=0
            ),
            "registered watches": server["watches"],
        }

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
                newcomer = group.start(options.members, 1)
                rows.append(group.measure("join", range(options.members + 1), lambda p=newcomer: p.tell("join")))

                def crash(process: Process = newcomer) -> None:
                    process.child.kill()
                    group.processes.remove(process)

                def leave(process: Process = newcomer) -> None:
                    process.tell("leave")

                kind = "leave" if turn % 2 == 0 else "crash"
                rows.append(group.measure(kind, everybody, leave if turn % 2 == 0 else crash))
                group.last[options.members]["owned"] = 0
                if kind == "leave":
                    group.processes.remove(newcomer)
                    newcomer.end()
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
    parser.add_argument("--processes", type=int, default=4)
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
    Console(width=200).print(table(rows, options))


if __name__ == "__main__":
    main()
