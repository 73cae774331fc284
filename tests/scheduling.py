"""Distributes tests to the workers of `pytest -n`, so that few workers start the same servers.

Each worker has its own clusters: a test that kills a broker disturbs no other worker, and no worker waits for another.
So a worker should run the tests that need the servers it already has. It takes its next test from, in this order:

1. its present file, so that the fixtures of the file are set up once;
2. a file of a kind in `APART` that it began;
3. a file that needs servers which this worker started;
4. a file that needs servers which no worker started;
5. any file that no worker is in, except those of 7;
6. a file without servers: these fill the time until the slowest worker is done;
7. a file of a kind in `APART` that another worker began;
8. the end of the file with the most tests left.

Among equals, files of long tests come first: a long test that starts last keeps the other workers waiting.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScheduling

from allocator.testing.versions import KAFKA, NEWEST

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
# start of a test's id -> servers that its id does not show: a version, or a kind in `APART`. The longest start counts
SERVERS = {
    "tests/spark/": "spark",
    "tests/migrate/": "moves",
    **dict.fromkeys(
        (f"tests/security/test_{name}.py" for name in ("acl", "no_secret", "oauth_servers", "wrong_credentials")),
        "secured",
    ),
    **dict.fromkeys(
        (
            "tests/deadletters/test_deadletters_real.py::test_reading_letters_without_a_leader",
            "tests/doctor/test_doctor_brokers.py::test_a_broker_that_died",
            "tests/fetch/test_fetcher_clusters.py::test_the_replica_in_the_same_rack",
            "tests/groups/test_kafka_faults.py",
            "tests/groups/test_racks_and_load.py::test_members_get_partitions",
            "tests/groups/test_racks_and_load.py::test_the_owner_of_a_lagging_partition",
        ),
        "racked",
    ),
    **dict.fromkeys(
        (
            "tests/cli/test_other_group_types.py",
            "tests/consumer/test_fences.py",
            "tests/consumer/test_memberships.py::test_the_next_generation_protocol",
            "tests/groups/test_kip848_servers.py",
            "tests/groups/test_liveness.py",
        ),
        NEWEST,
    ),
    "tests/offsets/test_storage.py": "0.9.0.1",
    "tests/producer/test_old_formats.py": "2.8.2",
}
# kind -> the other servers that its tests start. One worker has these tests while the others have anything else to do:
# a session of Spark starts in 7 s, and moves need clusters of five versions, each 2 to 8 s
APART = {"spark": ("3.9.1",), "moves": ("0.9.0.1", "1.1.1", "2.8.2", "3.9.1", NEWEST), "secured": (), "racked": ()}
# kinds that stay together whatever version a test has
_WHOLE = ("spark", "moves")
_VERSION = re.compile("|".join(map(re.escape, KAFKA)))
# tests that a worker has at a time: one runs, and the other starts when it ends
_AHEAD = 2


def servers_of(nodeid: str) -> str:
    """Returns the servers that a test needs, as far as its id shows, or "" for none."""
    path, _, test = nodeid.partition("::")
    folder = path.split("/")[1] if "/" in path else ""
    found = _VERSION.search(test)
    version = found[0] if found else "" if folder in WITHOUT_SERVERS else "3.9.1"
    start = max(filter(nodeid.startswith, SERVERS), key=len, default=None)
    if start is None or (found is not None and version != "3.9.1" and SERVERS[start] not in _WHOLE):
        return version
    return SERVERS[start]


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
            servers = self._files[index][1]
            self._started.setdefault(node, set()).update((servers, *APART.get(servers, ())))
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
                if servers in mine:
                    nearness = 2 if servers in APART else 3
                elif servers in started:
                    nearness = 7 if servers in APART else 5
                else:
                    nearness = 4 if servers else 6
                return nearness, _order(path)

            here = min((each for each in left if each not in taken), key=rank, default=None)
        if here is None:
            here = max(left, key=lambda each: left[each])
            return next(index for index in reversed(self.pending) if self._files[index] == here)
        return next(index for index in self.pending if self._files[index] == here)
