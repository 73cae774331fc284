"""Tests on several versions of Kafka with the same traffic: marks, recordings, replays and the difference shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allocator.errors import ConfigError
from allocator.testing import ClusterError
from allocator.testing.traffic import Recording, TrafficRecord
from allocator.testing.versions import KAFKA
from tests.testing.read_back import records_of

ROOT = Path(__file__).parents[2]
TRAFFIC = Recording(
    {"orders": 3, "bills": 1},
    (
        TrafficRecord("orders", 2, b"k", b"first", 1_700_000_000_000, (("h", b"1"), ("h", None))),
        TrafficRecord("bills", 0, None, b"\xff\x00binary", 1_700_000_001_000),
        TrafficRecord("orders", 2, b"k", None, 1_600_000_000_000),  # a clock that went back, and a deletion
        TrafficRecord("orders", 0, b"", "ü".encode(), 1_700_000_003_000),
    ),
)


# the plugin alone: to load all that are installed takes a second of CPU
PLUGIN = ("-p", "allocator.testing.plugin")


def pytest_in(directory: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments],
        capture_output=True, text=True, timeout=280, cwd=directory, env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def run_inner(directory: Path, source: str, *arguments: str) -> str:
    (directory / "test_inner.py").write_text("import pytest\n" + source)
    return pytest_in(directory, *PLUGIN, *arguments, ".", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


# -- the mark ------------------------------------------------------------------------------------------------------


def test_a_marked_test_runs_once_for_each_version_in_the_order_of_the_mark(tmp_path: Path) -> None:
    source = (
        '@pytest.mark.kafka_versions("3.9.1", "0.8.2.2")\ndef test_a(kafka_version, outcome): outcome.same([1])\n'
        '@pytest.mark.kafka_versions("0.8.2.2", "3.9.1")\ndef test_b(kafka_version, outcome): outcome.same([1])\n'
    )
    said = run_inner(tmp_path, source, "-v")
    names = [line.split()[0].partition("::")[2] for line in said.splitlines() if " PASSED" in line]
    assert names == ["test_a[3.9.1]", "test_a[0.8.2.2]", "test_b[0.8.2.2]", "test_b[3.9.1]"]
    said = run_inner(tmp_path, source, "--kafka-versions=4.1.1")
    assert "2 passed" in said
    said = run_inner(tmp_path, source, "-k", "test_b and 3.9.1")
    assert "1 skipped, 3 deselected" in said
    assert "there is no outcome to compare with: on Kafka 0.8.2.2 this test failed or was not run" in said
    said = run_inner(tmp_path, source, "--kafka-versions=4.1.1,5.0")
    assert "--kafka-versions: Kafka '5.0' cannot be started by allocator.testing" in said


def test_a_difference_is_shown_line_by_line_and_a_long_one_is_cut(tmp_path: Path) -> None:
    said = run_inner(
        tmp_path,
        'pytestmark = pytest.mark.kafka_versions("0.8.2.2", "3.9.1")\n'
        "def test_it(kafka_version, outcome):\n"
        '    stamp = None if kafka_version == "0.8.2.2" else 1700000000000\n'
        '    outcome.same({"sent": [{"id": 1, "at": stamp}, {"id": 2}], "errors": 0})\n'
        "def test_long(kafka_version, outcome): outcome.same([kafka_version + str(n) for n in range(1000)])\n",
    )
    assert "2 failed, 2 passed" in said
    shown = said[said.index("Kafka 3.9.1 differs from Kafka 0.8.2.2:") :]
    old, new = '   "at": null,', '   "at": 1700000000000,'
    for line in ("--- Kafka 0.8.2.2", "+++ Kafka 3.9.1", f"-{old}", f"+{new}", '    "id": 1'):
        assert f"\n{line}\n" in shown
    assert "... and 1945 more lines" in said


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ('kafka_versions("0.7")', "Kafka '0.7' cannot be started by allocator.testing; known: 0.8.1.1, 0.8.2.2"),
        pytest.param("kafka_versions()", "has no version of Kafka; known: 0.8.1.1", marks=pytest.mark.long),
    ],
)
def test_a_bad_mark_is_an_error_that_names_the_test(tmp_path: Path, mark: str, complaint: str) -> None:
    said = run_inner(tmp_path, f"@pytest.mark.{mark}\ndef test_it(versioned_cluster): pass\n")
    assert complaint in said
    assert "test_inner.py::test_it: @pytest.mark.kafka_versions" in said
    assert "passed" not in said


# -- recordings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["traffic.jsonl", "traffic.jsonl.gz"])
def test_a_recording_is_loaded_as_it_was_saved(tmp_path: Path, name: str) -> None:
    TRAFFIC.save(tmp_path / name)
    assert Recording.load(tmp_path / name) == TRAFFIC
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hello", "line 1"),
        ('{"format": 2, "partitions": {}}', "format 2; this version reads 1"),
        (
            '{"format": 1, "partitions": {"t": 1}}\n{"topic": "t", "partition": 1}',
            "line 2: t:1 is not in the partitions",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "traffic.jsonl").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Recording.load(tmp_path / "traffic.jsonl")
    assert complaint in str(caught.value)
    assert str(tmp_path / "traffic.jsonl") in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        Recording.load(tmp_path / "missing")


# -- on servers ----------------------------------------------------------------------------------------------------


def _replayed_as_recorded(cluster: Any, replay: Any, tmp_path: Path) -> None:
    names = replay(TRAFFIC)
    assert set(names) == {"orders", "bills"}
    found = records_of(cluster.bootstrap, names["orders"], 3, 3)
    stamped, headed = cluster.release.number >= (0, 10), cluster.release.number >= (0, 11)
    for number in range(3):
        wanted = [r for r in TRAFFIC.records if (r.topic, r.partition) == ("orders", number)]
        assert [(r.key, r.value) for r in found[number]] == [(r.key, r.value) for r in wanted]
        if stamped:
            assert [r.timestamp for r in found[number]] == [r.timestamp for r in wanted]
        assert [tuple(r.headers) for r in found[number]] == [r.headers if headed else () for r in wanted]

    file = tmp_path / "again.jsonl"
    command = [sys.executable, "-m", "allocator.cli", "traffic", "record", str(file), "--brokers", cluster.bootstrap]
    done = subprocess.run(
        [*command, "--topic", names["orders"], "--topic", names["bills"]], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert " has 4 records of " in done.stdout
    again = Recording.load(file)
    assert again.partitions == {names[topic]: count for topic, count in TRAFFIC.partitions.items()}
    for topic, name in names.items():
        for number in range(TRAFFIC.partitions[topic]):
            wanted = [r for r in TRAFFIC.records if (r.topic, r.partition) == (topic, number)]
            got = [r for r in again.records if (r.topic, r.partition) == (name, number)]
            assert [(r.key, r.value) for r in got] == [(r.key, r.value) for r in wanted]
            assert [r.timestamp for r in got] == [r.timestamp if stamped else None for r in wanted]

    with pytest.raises(ClusterError, match=names["bills"]):
        replay(Recording({names["bills"]: 1}), rename=False)  # it exists


@pytest.mark.kafka_versions("0.9.0.1", "3.9.1")
def test_a_replay_is_what_was_recorded(versioned_cluster: Any, replay: Any, tmp_path: Path) -> None:
    _replayed_as_recorded(versioned_cluster, replay, tmp_path)


@pytest.mark.long
@pytest.mark.kafka_versions(*(version for version in KAFKA if version not in ("0.9.0.1", "3.9.1")))
def test_a_replay_is_what_was_recorded_on_the_others(versioned_cluster: Any, replay: Any, tmp_path: Path) -> None:
    _replayed_as_recorded(versioned_cluster, replay, tmp_path)


def test_recording_a_missing_topic_is_an_error(kafka_cluster: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "allocator.cli", "traffic", "record", str(tmp_path / "f"), "--topic", "no-such"]
    done = subprocess.run([*command, "--brokers", kafka_cluster.bootstrap], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no topic 'no-such'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("old", ["0.9.0.1", "0.8.2.2"])
def test_the_suite_of_the_example_passes(old: str) -> None:
    said = pytest_in(ROOT, "examples/migration_suite", f"--kafka-versions={old},3.9.1")
    assert "2 passed" in said
