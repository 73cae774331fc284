"""The suite itself: distribution of tests to workers, and tests without servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

ASSIGN = [f"tests/assignors/test_a.py::test_{number}" for number in range(4)]
SPARK = [f"tests/spark/test_s.py::test_{number}" for number in range(4)]
OLD = [f"tests/fetch/test_f.py::test_{number}[0.8.2.2]" for number in range(4)]
NEW = [f"tests/fetch/test_f.py::test_{number}[4.1.1]" for number in range(4)]
MORE_OLD = [f"tests/client/test_w.py::test_{number}[0.8.2.2-True]" for number in range(4)]


class Worker:
    """The part of xdist's worker that a scheduler uses."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.assigned: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.assigned += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """A run of `tests` by workers that take turns."""

    def __init__(self, tests: list[str], workers: int) -> None:
        pytest.importorskip("xdist")
        from tests import scheduling

        config: Any = SimpleNamespace(
            option=SimpleNamespace(maxschedchunk=None),
            getoption=lambda name: None,
            getvalue=lambda name: [f"{workers}*popen"] if name == "tx" else None,
        )
        self.tests = tests
        self.workers = [Worker(f"gw{number}") for number in range(workers)]
        self.scheduler = scheduling.NearServers(config)
        for worker in self.workers:
            self.scheduler.add_node(worker)
            self.scheduler.add_node_collection(worker, tests)
        self.scheduler.schedule()

    def done(self) -> list[list[str]]:
        """Runs all tests and returns what each worker ran, in order."""
        ran: list[list[str]] = [[] for _ in self.workers]
        while self.scheduler.has_pending:
            for worker, mine in zip(self.workers, ran):
                if len(mine) < len(worker.assigned):
                    index = worker.assigned[len(mine)]
                    mine.append(self.tests[index])
                    self.scheduler.mark_test_complete(worker, index, 0.01)
        return ran


def test_each_test_runs_once_and_all_workers_are_shut_down() -> None:
    tests = ASSIGN + SPARK + OLD + NEW + MORE_OLD
    for workers in (1, 2, 3, 7):
        run = Run(tests, workers)
        assert sorted(test for ran in run.done() for test in ran) == sorted(tests)
        assert all(worker.shutting_down for worker in run.workers)


@pytest.mark.parametrize("folder", ["spark", "migrate"])
def test_one_worker_has_the_session_of_spark_and_one_the_moves_while_others_have_other_tests(folder: str) -> None:
    apart = [test.replace("spark", folder) for test in SPARK]
    tests = [*apart, *(test.replace("test_s", "test_t") for test in apart), *OLD[:2], *ASSIGN]
    ran = Run(tests, 2).done()
    assert ran[0][:6] == tests[:6]
    assert ran[1][:6] == tests[8:]


def test_the_tests_of_a_worker_that_dies_run_elsewhere() -> None:
    run = Run(OLD + NEW, 2)
    dead = run.workers.pop(0)
    assert run.scheduler.remove_node(dead) == OLD[0]
    (ran,) = run.done()
    assert sorted(ran) == sorted(set(OLD + NEW) - {OLD[0]})


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        (["--serverless"], "2 failed, 1 passed, 3 deselected"),
        pytest.param(["-k", "starts or pure"], "2 failed, 1 passed, 3 des", marks=pytest.mark.long),
    ],
)
def test_a_test_that_starts_servers_without_the_mark_fails(tmp_path: Path, arguments: list[str], outcome: str) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: slow\n    servers: starts servers\n")
    (tmp_path / "test_inner.py").write_text(
        "import subprocess, sys\nimport pytest\nfrom allocator.testing import LocalCluster\n"
        "def test_uses(kafka_cluster): pass\n"
        "def test_uses_by_another(topic_factory, zk_chroot): pass\n"
        "@pytest.mark.servers\ndef test_is_marked(): pass\n"
        "def test_pure(): pass\n"
        "def test_starts():\n    LocalCluster(None).start()\n"
        "def test_starts_elsewhere():\n"
        "    script = 'from allocator.testing import LocalCluster; LocalCluster(None).start()'\n"
        "    subprocess.run([sys.executable, '-c', script], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "ALLOCATOR_CACHE"},
    )
    assert outcome in done.stdout, done.stdout
    assert "mark-this-test-with-servers" in done.stdout
