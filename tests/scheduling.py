"""Distributes tests to the workers of `pytest -n`, so that few workers start the same servers.

Each worker has its own clusters: a test that kills a broker disturbs no other worker, and no worker waits for another.
So a worker should run the tests that need the servers it already has. It takes its next test from, in this order:

1. its present file, so that the fixtures of the file are set up once;
2. a file that needs servers which this worker started;
3. a file that needs servers which no worker started;
4. any file that no worker is in;
5. a file without servers: these fill the time until the slowest worker is done;
6. the end of the file with the most tests left.

Among equals, files of long tests come first: a long test that starts last keeps the other workers waiting.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScheduling

from allocator.testing.versions import KAFKA

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = ["NearServers"]

WITHOUT_SERVERS = ("assignors", "bench", "fuzz", "repo", "subscription", "tasks")
LONGEST = (
    "tests/spark/",
    "tests/faults/test_faults.py",
    "tests/migrate/test_cutover.py",
    "tests/groups/test_kafka_faults.py",
    "tests/groups/test_simulation.py",
    "tests/migrate/",
    "tests/testing/",
    "tests/examples/",
    "tests/demo/",
)
_VERSION = re.compile("|".join(map(re.escape, KAFKA)))
# tests that a worker has at a time: one runs, and the other starts when it ends
_AHEAD = 2


def servers_of(nodeid: str) -> str:
    """Returns the servers that a test needs, as far as its id shows, or "" for none."""
    path, _, test = nodeid.partition("::")
    folder = path.split("/")[1] if "/" in path else ""
    if folder == "spark":
        return folder  # whatever the brokers: a session of Spark costs more than they do
    version = _VERSION.search(test)
    if version:
        return version[0]
    return "" if folder in WITHOUT_SERVERS else "3.9.1"


def _order(path: str) -> int:
    return next((place for place, start in enumerate(LONGEST) if path.startswith(start)), len(LONGEST))


class NearServers(LoadScheduling):
    """Replaces the choice of the next test in xdist's scheduler. `pending` holds indices into the collection."""

    def schedule(self) -> None:
        if self.collection is not None:
            super().schedule()
            return
        self.maxschedchunk = _AHEAD
        # the present file of each worker, and the servers that its tests need
        self._here: dict[WorkerController, tuple[str, str]] = {}
        self._started: dict[WorkerController, set[str]] = {}
        first = next(iter(self.node2collection.values()))
        self._files = [(nodeid.partition("::")[0], servers_of(nodeid)) for nodeid in first]
        super().schedule()

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        if node.shutting_down:
            return
        self._send_tests(node, _AHEAD - len(self.node2pending[node]))
        if not self.pending:
            node.shutdown()

    def _send_tests(self, node: WorkerController, num: int) -> None:
        for _ in range(min(num, len(self.pending))):
            index = self._next(node)
            self.pending.remove(index)
            self._here[node] = self._files[index]
            self._started.setdefault(node, set()).add(self._files[index][1])
            self.node2pending[node].append(index)
            node.send_runtest_some([index])

    def _next(self, node: WorkerController) -> int:
        left = Counter(self._files[index] for index in self.pending)
        here = self._here.get(node)
        if here not in left:
            taken = {each for other, each in self._here.items() if other is not node}
            mine = self._started.get(node, set())
            started = set().union(*self._started.values())

            def rank(file: tuple[str, str]) -> tuple[int, int]:
                path, servers = file
                nearness = 3 if not servers else 0 if servers in mine else 2 if servers in started else 1
                return nearness, _order(path)

            here = min((each for each in left if each not in taken), key=rank, default=None)
        if here is None:
            here = max(left, key=lambda each: left[each])
            return next(index for index in reversed(self.pending) if self._files[index] == here)
        return next(index for index in self.pending if self._files[index] == here)
