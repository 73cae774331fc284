"""The history file: the next server reads it. No real server."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from allocator.core.aio.tasks import BackgroundTasks
from allocator.errors import ConfigError
from allocator.testing.waiting import wait_until_async
from allocator.web.events import Event, EventLog
from allocator.web.history import Point
from allocator.web.history_file import HistoryFile, keep
from allocator.web.watch import WatchedGroup
from tests.web.generated_groups import watcher_of

HOUR = 3600.0


@pytest.fixture
def archive(tmp_path: Path) -> Any:
    found = HistoryFile(tmp_path / "new" / "history.sqlite", 10_000_000)
    yield found
    found.close()


def points(count: int, start: float, step: float = 5.0) -> list[Point]:
    return [Point(start + step * at, at, lag_s=0.5) for at in range(count)]


async def test_the_next_server_continues_the_history_of_the_last(archive: HistoryFile) -> None:
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    watcher = watcher_of(groups=2, members=5, partitions=100)
    group = watcher.groups["billing"]
    tasks.start(keep(watcher, archive), "history")
    now = time.time()
    group.series.points.append(Point(now + 1, 7))
    watcher.log.add(Event(now, "command", "pause", "billing", "alice", "10.0.0.1", {"request": {"a": 1}}))
    await wait_until_async(lambda: archive.past("billing", 10).points != [], 30)
    group.series.points.append(Point(now + 2, 8))
    await tasks.close()  # the last entries are not lost
    assert not failures

    past = archive.past("billing", 720)
    assert [point.lag for point in past.points] == [7, 8]
    live = [rebalance.to_json() for rebalance in reversed(group.history.rebalances)]
    assert past.rebalances == live
    moves = archive.rebalance("billing", live[0]["id"])
    assert moves == {**live[0], **group.history.rebalances[-1].moves_to_json()}
    assert [(event.who, event.detail) for event in archive.events(kind="command")] == [("alice", {"request": {"a": 1}})]

    restarted = WatchedGroup("billing")
    restarted.recall(past, now + 60)
    restarted.learn(group.report.state, now + 61)
    assert restarted.series.points[-1] == Point(now + 60, None), "the time between is unknown"
    assert not restarted.history.rebalances, "nothing changed meanwhile"
    log = EventLog()
    log.recall(archive.events())
    assert log.of("billing")[0].text == "pause"


def test_the_size_is_bounded_and_old_points_are_thinned(tmp_path: Path) -> None:
    found = HistoryFile(tmp_path / "h.sqlite", 160_000)
    now = time.time()
    found.add([("g", point) for point in points(4000, now - 4000 * 5)])
    found.tidy(now)
    kept = found.points("g", 0, now, most=10**9)
    assert sum(point["at"] > now - 2 * HOUR for point in kept) == pytest.approx(1440, abs=2), "the newest are kept"
    assert sum(point["at"] <= now - 2 * HOUR for point in kept) == pytest.approx((20_000 - 7200) / 60, abs=3)
    for day in range(40):
        found.add([(f"group-{at}", point) for at in range(10) for point in points(60, now - (40 - day) * 1000, 10.0)])
        found.tidy(now)
        assert found.bytes <= 160_000
    assert found.points("group-3", 0, now - 35_000) == [], "the oldest were deleted"
    assert found.points("group-3", now - 2000, now)
    found.close()


def test_a_long_time_has_few_points_that_keep_the_peaks(archive: HistoryFile) -> None:
    archive.add([("g", Point(float(at), 5000 if at == 33_333 else 1)) for at in range(0, 100_000, 3)])
    found = archive.points("g", 0, 100_000, most=200)
    assert len(found) <= 202
    assert max(point["lag"] for point in found) == 5000


def test_a_file_that_is_no_history_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("no database, but long enough to be read as one" * 10)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        HistoryFile(wrong, 1_000_000)
    newer = tmp_path / "newer.sqlite"
    database = sqlite3.connect(newer)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(ConfigError, match="format 99"):
        HistoryFile(newer, 1_000_000)
    with pytest.raises(ConfigError, match="cannot be used"):
        HistoryFile(wrong / "below-a-file.sqlite", 1_000_000)


async def test_no_entry_keeps_later_ones_out_of_the_file(
    archive: HistoryFile, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    watcher = watcher_of(groups=1, members=2, partitions=4)
    series = watcher.groups["billing"].series
    tasks.start(keep(watcher, archive), "history")
    now = time.time()
    # JSON can spell text that UTF-8 cannot
    watcher.log.add(Event(now, "deployment", "version \ud800", "billing", "al\udcffice", None, {"text": "\ud800"}))
    await wait_until_async(lambda: archive.events() != [] or failures != [], 30)
    assert not failures
    series.points.append(Point(now + 1, 1 << 70))  # no column holds this number
    await wait_until_async(lambda: "leaves out" in caplog.text or failures != [], 30)
    watcher.log.add(Event(now, "deployment", "version 2", "billing"))
    series.points.append(Point(now + 2, 7))
    await wait_until_async(lambda: archive.past("billing", 10).points != [] or failures != [], 30)
    series.points.append(Point(now + 3, 1 << 70))
    await tasks.close()
    assert not failures
    first, second = archive.events()
    assert (first.text, first.who, first.detail) == ("version \\ud800", "al\\udcffice", {"text": "\ud800"})
    assert second.text == "version 2"
    assert [point.lag for point in archive.past("billing", 10).points] == [7]
