"""The same test, with the same traffic, on several versions of Kafka; and what differed.

    @pytest.mark.kafka_versions("0.8.2.2", "3.9.1")
    def test_totals(versioned_cluster, replay, outcome):
        topics = replay("traffic.jsonl")
        outcome.same(my_service(versioned_cluster.bootstrap, topics["orders"]))

The test runs once for each version, in the order of the mark. `outcome.same` keeps what the first of them gave, and
fails the others where theirs is not the same, with a diff.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from ..traffic import Recording
from .batches import ProducedRecord
from .errors import ClusterError
from .versions import KAFKA

__all__ = ["MARK", "NEEDED", "Outcome", "Outcomes", "Replay", "parametrize", "versions_from"]

MARK = "kafka_versions"
NEEDED = ("kafka_version", "versioned_cluster", "replay", "outcome")
DIFF_LINES = 60

Traffic = Union[str, Path, Recording]


def versions_from(values: Sequence[object], where: str) -> tuple[str, ...]:
    """The versions that a mark or an option names. Raises pytest.UsageError, which says where the mistake is."""
    known = f"known: {', '.join(KAFKA)}"
    if not values:
        raise pytest.UsageError(f"{where} names no version of Kafka; {known}")
    for value in values:
        if not isinstance(value, str):
            raise pytest.UsageError(f"{where}: {value!r} is not a text such as '3.9.1'; {known}")
        if value not in KAFKA:
            raise pytest.UsageError(f"{where}: Kafka {value!r} cannot be started here; {known}")
    if len(set(values)) < len(values):
        raise pytest.UsageError(f"{where} names a version twice: {', '.join(map(str, values))}")
    return tuple(map(str, values))


def parametrize(metafunc: pytest.Metafunc, instead: Optional[Sequence[str]]) -> None:
    """Runs a marked test once for each version. `instead`: of the command line, in place of the mark's own."""
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
            f"{test.nodeid} is marked {MARK} and takes none of {', '.join(NEEDED)}: all versions would be alike to it"
        )
    # scope function: a wider one has pytest sort the tests by version, and the first is to come first
    metafunc.parametrize("kafka_version", instead or versions, indirect=True, scope="function")


class Replay:
    """`replay(recording)` -> {topic of the recording: topic that has its records now}."""

    def __init__(self, cluster: Any, unique_name: Callable[[], str], recordings: Path) -> None:
        self._cluster = cluster
        self._unique_name = unique_name
        self._recordings = recordings
        self.made: list[str] = []

    def __call__(self, traffic: Traffic, *, rename: bool = True) -> dict[str, str]:
        """Makes each topic with the partitions that it had, and produces its records in order: keys, partitions and
        timestamps as they were, headers from 0.11 on, timestamps from 0.10 on (before, records have neither).

        `traffic`: a file, looked for beside the test if its path is relative, or a `Recording`. `rename`: topics get
        fresh names; without it they have their own, for services that cannot be told another, and may not exist yet.
        Raises ConfigError for a file that is no recording, ClusterError for a topic that exists.
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
            with contextlib.suppress(ClusterError):  # 0.8.1 cannot, and a broken cluster has other worries
                self._cluster.delete_topic(name, timeout_s=0)


class Outcomes:
    """What each marked test gave on each version, in this session."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, list[str]]] = {}

    def add(self, test: str, version: str, lines: list[str]) -> tuple[str, list[str]]:
        """The first version whose outcome is known, and that outcome."""
        of_test = self._seen.setdefault(test, {})
        of_test[version] = lines
        return next(iter(of_test.items()))


class Outcome:
    """What the service did on this version, to be compared with what it did on the first one."""

    def __init__(self, outcomes: Outcomes, test: str, version: str, first: str) -> None:
        self._outcomes, self._test, self._version, self._first = outcomes, test, version, first

    def same(self, done: Any) -> None:
        """Fails the test, with a diff, unless `done` is what it was on the first version of the mark.

        `done`: anything that JSON can show (others by their repr): a list is compared item by item, in its order, a
        mapping key by key. Sort what has no order, such as records of different partitions, before. Call it once.
        When the first version gave nothing, because it failed or was not run, the test is skipped: nothing is compared.
        """
        first, before = self._outcomes.add(self._test, self._version, list(_lines(done)))
        if first != self._first:
            pytest.skip(f"nothing to compare with: on Kafka {self._first} this test failed or was not run")
        now = list(_lines(done))
        if now == before:
            return
        diff = list(difflib.unified_diff(before, now, f"Kafka {first}", f"Kafka {self._version}", lineterm="", n=2))
        more = [f"... and {len(diff) - DIFF_LINES} more lines"] if len(diff) > DIFF_LINES else []
        pytest.fail(
            "\n".join([f"Kafka {self._version} differs from Kafka {first}:", *diff[:DIFF_LINES], *more]), pytrace=False
        )


def _lines(done: Any) -> Iterable[str]:
    if isinstance(done, Mapping):
        for key in sorted(done, key=str):
            value = done[key]
            if isinstance(value, (list, tuple)):
                yield f"{key}:"
                yield from (f"  {_line(item)}" for item in value)
            else:
                yield f"{key}: {_line(value)}"
    elif isinstance(done, (str, bytes)) or not isinstance(done, Iterable):
        yield from (done.splitlines() if isinstance(done, str) else [_line(done)])
    else:
        yield from map(_line, done)


def _line(item: Any) -> str:
    if isinstance(item, bytes):
        item = item.decode(errors="backslashreplace")
    return json.dumps(item, sort_keys=True, default=repr, ensure_ascii=False)
