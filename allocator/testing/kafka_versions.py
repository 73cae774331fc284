"""Runs a test with the same records on several versions of Kafka, and compares the outcomes.

    @pytest.mark.kafka_versions("0.8.2.2", "3.9.1")
    def test_totals(versioned_cluster, replay, outcome):
        topics = replay("traffic.jsonl")
        outcome.same(my_service(versioned_cluster.bootstrap, topics["orders"]))

The test runs once for each version, in the order of the mark. `outcome.same` stores the outcome of the first version.
On the other versions it fails with a diff if the outcome differs.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from allocator.testing.traffic import Recording

from .batches import ProducedRecord
from .errors import ClusterError
from .versions import KAFKA

MARK = "kafka_versions"
NEEDED = ("kafka_version", "versioned_cluster", "replay", "outcome")
DIFF_LINES = 60

Traffic = Union[str, Path, Recording]


def versions_from(values: Sequence[object], where: str) -> tuple[str, ...]:
    """Returns the versions in a mark or an option. Raises pytest.UsageError with `where` in its message."""
    known = f"known: {', '.join(KAFKA)}"
    if not values:
        raise pytest.UsageError(f"{where} has no version of Kafka; {known}")
    for value in values:
        if not isinstance(value, str):
            raise pytest.UsageError(f"{where}: {value!r} is not a string such as '3.9.1'; {known}")
        if value not in KAFKA:
            raise pytest.UsageError(f"{where}: Kafka {value!r} cannot be started by allocator.testing; {known}")
    if len(set(values)) < len(values):
        raise pytest.UsageError(f"{where} names a version twice: {', '.join(map(str, values))}")
    return tuple(map(str, values))


def parametrize(metafunc: pytest.Metafunc, instead: Optional[Sequence[str]]) -> None:
    """Parametrises a marked test by version. `instead` replaces the versions of the mark."""
    test = metafunc.definition
    takes = [name for name in NEEDED if name in metafunc.fixturenames]
    mark = test.get_closest_marker(MARK)
    if mark is None:
        if takes:
            raise pytest.UsageError(
                f'{test.nodeid} takes {takes[0]!r} and has no mark @pytest.mark.{MARK}("0.8.2.2", "3.9.1")'
            )
        return
    if mark.kwargs:
        raise pytest.UsageError(f"{test.nodeid}: @pytest.mark.{MARK} takes versions only, not {', '.join(mark.kwargs)}")
    versions = versions_from(mark.args, f"{test.nodeid}: @pytest.mark.{MARK}")
    if not takes:
        raise pytest.UsageError(
            f"{test.nodeid} is marked {MARK} but uses none of {', '.join(NEEDED)}, so it cannot depend on the version"
        )
    # scope function: with a wider one, pytest would reorder the tests by version
    metafunc.parametrize("kafka_version", instead or versions, indirect=True, scope="function")


class Replay:
    """`replay(recording)` -> {topic of the recording: topic with its records}."""

    def __init__(self, cluster: Any, unique_name: Callable[[], str], recordings: Path) -> None:
        self._cluster = cluster
        self._unique_name = unique_name
        self._recordings = recordings
        self.made: list[str] = []

    def __call__(self, traffic: Traffic, *, rename: bool = True) -> dict[str, str]:
        """Creates each topic with its number of partitions, and produces its records in order, with the same keys,
        partitions, timestamps (from 0.10 on) and headers (from 0.11 on).

        `traffic`: a `Recording` or a file; a relative path is relative to the test's directory. `rename`: gives the
        topics new, unique names. With False, for services with fixed names, keeps the names; then no such topic may
        exist. Raises ConfigError for a file that is not a recording, ClusterError for an existing topic.
        """
        recording = traffic if isinstance(traffic, Recording) else Recording.load(self._recordings / traffic)
        names = {topic: self._unique_name() if rename else topic for topic in recording.partitions}
        for topic, count in recording.partitions.items():
            self._cluster.create_topic(names[topic], count)
            self.made.append(names[topic])
        keeps_headers = self._cluster.release.number >= (0, 11)
        for topic, name in names.items():
            records = [
                ProducedRecord(r.key, r.value, r.partition, r.timestamp, r.headers if keeps_headers else ())
                for r in recording.records
                if r.topic == topic
            ]
            self._cluster.produce(name, records)
        return names

    def delete(self) -> None:
        for name in self.made:
            with contextlib.suppress(
                ClusterError
            ):  # 0.8.1 cannot delete topics, and a failing deletion must not hide the test's error
                self._cluster.delete_topic(name, timeout_s=0)


class Outcomes:
    """Stores the outcome of each marked test on each version, for this session."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Any]] = {}

    def add(self, test: str, version: str, done: Any) -> tuple[str, Any]:
        """Stores an outcome. Returns the first version that has an outcome, and that outcome."""
        of_test = self._seen.setdefault(test, {})
        of_test[version] = done
        return next(iter(of_test.items()))


class Outcome:
    """Compares the outcome of a test on this version with the outcome on the first version."""

    def __init__(self, outcomes: Outcomes, test: str, version: str, first: str) -> None:
        self._outcomes, self._test, self._version, self._first = outcomes, test, version, first

    def same(self, done: Any) -> None:
        """Fails the test, with a diff, if `done` differs from the outcome on the first version of the mark.

        `done`: any value of JSON types; other types are compared by their repr. Lists are compared item by item,
        mappings key by key, and types count: `"5"` is not `5`. An iterator is compared as a list. First sort values
        whose order may vary, such as records of different partitions. Call it once per test. If the test failed or did
        not run on the first version, skips the test.
        """
        now = json.dumps(_plain(done), indent=1, sort_keys=True, ensure_ascii=False).split("\n")
        first, before = self._outcomes.add(self._test, self._version, now)
        if first != self._first:
            pytest.skip(f"there is no outcome to compare with: on Kafka {self._first} this test failed or was not run")
        diff = list(difflib.unified_diff(before, now, f"Kafka {first}", f"Kafka {self._version}", lineterm="", n=2))
        if diff:
            more = [f"... and {len(diff) - DIFF_LINES} more lines"] if len(diff) > DIFF_LINES else []
            said = [f"Kafka {self._version} differs from Kafka {first}:", *diff[:DIFF_LINES], *more]
            pytest.fail("\n".join(said), pytrace=False)


def _plain(value: Any) -> Any:
    """Returns `value` in types of JSON: iterables become lists, and other values and keys "<their repr>"."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else f"<{key!r}>": _plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float)) else f"<{value!r}>"
