"""`--compatibility=FILE` writes a table of features and versions of servers from the results of this test run.

A test's columns are the versions of Kafka in its parameters, or of ZooKeeper if it has the parameter
`zookeeper_version`. `@pytest.mark.feature("name", "4.1.1")` names the versions of a test without such a parameter. A
test's row is the name in the mark `feature` of the test or its module (`pytestmark`), else its file. Rows are in the
order of the tests. The table is between two comment lines of FILE. The rest of FILE is unchanged; a missing file is
created.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from allocator import __version__
from allocator.documents import write_file
from allocator.testing.versions import KAFKA, ZOOKEEPER

BEGIN = "<!-- compatibility: begin; written by the tests -->"
END = "<!-- compatibility: end -->"
UNTESTED = "·"
_KEEPER = "ZooKeeper {}"
_PROPERTY = "allocator-compatibility"
COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def versions_of(item: pytest.Item) -> tuple[str, ...]:
    """Returns the columns of a test: its ZooKeeper version if it has one, else its Kafka versions."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    if params.get("zookeeper_version") in ZOOKEEPER:
        return (_KEEPER.format(params["zookeeper_version"]),)
    found = dict.fromkeys(value for value in params.values() if isinstance(value, str) and value in KAFKA)
    mark = item.get_closest_marker("feature")
    return tuple(found) or (tuple(map(str, mark.args[1:])) if mark is not None else ())


class CompatibilityTable:
    """A pytest plugin that collects the table of one run.

    With pytest-xdist the tests run in other processes, so each report carries the cells of its test.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._features: dict[str, int] = {}
        """Feature -> position of its first test."""
        self._outcomes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        """(feature, version) -> test -> "passed", "failed" or "skipped"."""
        self._reasons: dict[str, None] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for number, item in enumerate(session.items):
            mark = item.get_closest_marker("feature")
            feature = str(mark.args[0]) if mark is not None and mark.args else item.nodeid.partition("::")[0]
            versions = list(versions_of(item))
            if versions:
                item.user_properties.append((_PROPERTY, [number, feature, versions]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        places: list[Any] = [value for name, value in report.user_properties if name == _PROPERTY]
        for number, feature, versions in places:
            self._features[feature] = min(number, self._features.get(feature, number))
            for version in versions:
                outcomes = self._outcomes[feature, version]
                if outcomes.get(report.nodeid) != "failed":  # a later phase must not replace a failure
                    outcomes[report.nodeid] = report.outcome
                if report.skipped and isinstance(report.longrepr, (tuple, list)):
                    self._reasons.setdefault(f"{feature} on {version}: {report.longrepr[2]}")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(session.config, "workerinput"):
            return  # a worker of xdist runs only some of the tests
        # the table of an interrupted or empty run would lack rows
        if exitstatus in COMPLETE and self._outcomes:
            self._write(self._table())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        done = f"written to {self._path}" if self._outcomes else "not written: no test in this run names a version"
        terminalreporter.write_line(f"compatibility table {done}")

    # -----------------------------------------------------------------------------------------------------------------

    def _table(self) -> str:
        known = [*KAFKA, *map(_KEEPER.format, ZOOKEEPER)]
        versions = [version for version in known if any(v == version for _, v in self._outcomes)]
        features = sorted(self._features, key=lambda feature: self._features[feature])
        lines = [f"| | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
        for feature in features:
            cells = [self._cell(self._outcomes.get((feature, version), {})) for version in versions]
            if set(cells) != {UNTESTED}:
                lines.append(f"| {feature} | {' | '.join(cells)} |")
        tests = {name: outcome for outcomes in self._outcomes.values() for name, outcome in outcomes.items()}
        every = list(tests.values())
        when = time.strftime("%Y-%m-%d", time.gmtime())
        made = (
            f"{every.count('passed')} tests passed, {every.count('failed')} failed and {every.count('skipped')} were "
            f"skipped on {when}, with allocator {__version__} on Python {platform.python_version()}."
        )
        skipped = [f"- skipped: {reason}" for reason in self._reasons]
        return "\n".join([made, "", *lines, *(["", *skipped] if skipped else [])])

    @staticmethod
    def _cell(outcomes: dict[str, str]) -> str:
        found = list(outcomes.values())
        if not found:
            return UNTESTED
        if "failed" in found:
            return f"**{found.count('failed')} of {len(found)} fail**"
        return f"yes ({found.count('passed')})" if "passed" in found else "skipped"

    def _write(self, table: str) -> None:
        text = self._path.read_text() if self._path.exists() else f"# Compatibility\n\n{BEGIN}\n{END}\n"
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise pytest.UsageError(
                f"{self._path} has no lines {BEGIN!r} and {END!r}; add both lines where the table should be"
            )
        write_file(self._path, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
