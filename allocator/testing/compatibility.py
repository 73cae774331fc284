"""`--compatibility=FILE`: what works on which version of Kafka, as the tests of this run found it.

A test belongs to the versions that it is parametrised by (a move from one to another, to both), and to a row by
`@pytest.mark.feature("name")`, on itself or on its module (`pytestmark`); without the mark its file is the row.
`feature("name", "4.1.1")` gives the versions of tests without such a parameter. Rows stand in the order of the tests.
The table goes between two comment lines of FILE, so that what people wrote around it stays; a file that does not exist
is made.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .. import __version__
from ..files import write_file
from .versions import KAFKA

__all__ = ["BEGIN", "END", "CompatibilityTable", "versions_of"]

BEGIN = "<!-- compatibility: begin; written by the tests -->"
END = "<!-- compatibility: end -->"
UNTESTED = "·"
_PROPERTY = "allocator-compatibility"
COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def versions_of(item: pytest.Item) -> tuple[str, ...]:
    """The versions of Kafka that a test is parametrised by, else those of its mark."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec is not None else ()
    found = dict.fromkeys(value for value in values if isinstance(value, str) and value in KAFKA)
    mark = item.get_closest_marker("feature")
    return tuple(found) or (tuple(map(str, mark.args[1:])) if mark is not None else ())


class CompatibilityTable:
    """A pytest plugin of one run.

    With pytest-xdist the tests are collected and run in other processes, so the places of a test in the table travel
    with its reports.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._features: dict[str, int] = {}
        """feature -> the number of its first test."""
        self._outcomes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        """(feature, version) -> test -> passed, failed or skipped."""
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
                if outcomes.get(report.nodeid) != "failed":  # a teardown does not undo a failure
                    outcomes[report.nodeid] = report.outcome
                if report.skipped and isinstance(report.longrepr, (tuple, list)):
                    self._reasons.setdefault(f"{feature} on {version}: {report.longrepr[2]}")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(session.config, "workerinput"):
            return  # a worker of xdist, which saw some of the tests only
        # a run that was broken off would leave rows out; so would one that ran nothing
        if exitstatus in COMPLETE and self._outcomes:
            self._write(self._table())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        done = f"written to {self._path}" if self._outcomes else "not written: no test of this run is of a version"
        terminalreporter.write_line(f"compatibility table {done}")

    # -----------------------------------------------------------------------------------------------------------------

    def _table(self) -> str:
        versions = [version for version in KAFKA if any(v == version for _, v in self._outcomes)]
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
            raise pytest.UsageError(f"{self._path} has no lines {BEGIN!r} and {END!r}: where does the table go?")
        write_file(self._path, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
