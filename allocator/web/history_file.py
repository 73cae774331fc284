"""Stores the history of the groups in an SQLite file, so that a restart of the server loses nothing.

One thread reads and writes the file. It deletes the oldest entries if the file is too large.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from allocator.core.text import shown, utf8
from allocator.documents import from_ranges, to_ranges
from allocator.errors import ConfigError
from allocator.types import TopicPartition
from allocator.web.events import Event
from allocator.web.history import Past, Point, Remembered
from allocator.web.watch import WatchedGroup, Watcher

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = 1
WRITE_S = 2.0  # between two writes. Higher: a crash loses more; lower: more writes
TIDY_S = 600.0
FINE_S = 2 * 3600.0  # of points older than this, the file keeps one for each COARSE_S
COARSE_S = 60.0
SHRINK_TO = 0.9  # size after `tidy`, relative to the limit
SHOWN = 100  # maximum number of stored rebalances on the page
POINTS = 1000  # maximum number of points in one response
REBALANCES = 1000  # maximum number of rebalances in one response
RESPONSE_BYTES = 1_000_000  # maximum size of the rebalances in one response
SCHEMA = """
CREATE TABLE points (grp TEXT, at REAL, lag INTEGER, lag_s REAL, produced REAL, consumed REAL, commits REAL,
    PRIMARY KEY (grp, at)) WITHOUT ROWID;
CREATE TABLE rebalances (grp TEXT, id INTEGER, ended REAL, summary TEXT, moves BLOB,
    PRIMARY KEY (grp, id)) WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY, at REAL, kind TEXT, grp TEXT, who TEXT, address TEXT, text TEXT,
    detail TEXT);
CREATE TABLE assignments (grp TEXT PRIMARY KEY, at REAL, owners BLOB) WITHOUT ROWID;
CREATE INDEX events_at ON events (at);
"""
POINT = ("at", "lag", "lag_s", "produced", "consumed", "commits")


class HistoryFile:
    """The history file. Its methods block; `do` runs a method in the file's own thread."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Opens or creates the file. Raises ConfigError if it is unusable."""
        self.path = path
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, "history")
        self._reading: Optional[asyncio.Lock] = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
            path.chmod(0o600)  # the file contains names of users
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(
                    f"PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; BEGIN; {SCHEMA} "
                    f"PRAGMA user_version={FORMAT}; COMMIT;"
                )
            elif version != FORMAT:
                raise ConfigError(
                    f"the history {path} has format {version}, not {FORMAT}; choose another file with --history"
                )
            self._db.execute("PRAGMA synchronous=NORMAL")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the history {path} cannot be used: {error}; choose another file with --history"
            ) from error

    async def do(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def read(self, work: Callable[..., T], *arguments: Any) -> T:
        """Like `do`, for HTTP requests. Only one read is queued at a time, so a write waits for at most one."""
        # Python 3.9 binds a lock to the loop that is current when the lock is created
        self._reading = self._reading or asyncio.Lock()
        async with self._reading:
            return await self.do(work, *arguments)

    def finish(self, work: Callable[[], None]) -> None:
        """Runs `work` after the work in progress. Blocks the event loop, because the process is about to end."""
        try:
            self._thread.submit(work).result(10)
        except TimeoutError:
            log.warning("the history %s lacks the last seconds: its thread did not finish in 10 s", self.path)
        except Exception as error:  # noqa: BLE001 - includes entries that cannot be written
            log.warning("the history %s lacks the last seconds: %s", self.path, shown(error))

    def close(self) -> None:
        self._thread.shutdown()
        self._db.close()

    @property
    def bytes(self) -> int:
        """Size of the used database pages."""
        ((pages,), (free,), (size,)) = (
            self._db.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    # -- writing -------------------------------------------------------------------------------------------------

    def add(
        self,
        points: Iterable[tuple[str, Point]] = (),
        rebalances: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = (),
        events: Iterable[Event] = (),
        assignments: Iterable[tuple[str, float, Remembered]] = (),
    ) -> None:
        """Adds all entries, or none if one fails. A rebalance in progress is replaced when it ends."""
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((group, *(getattr(point, name) for name in POINT)) for group, point in points),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO rebalances VALUES (?, ?, ?, ?, ?)",
                (
                    (group, summary["id"], summary["ended"], json.dumps(summary), _packed(moves))
                    for group, summary, moves in rebalances
                ),
            )
            self._db.executemany(
                "INSERT INTO events (at, kind, grp, who, address, text, detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (e.at, *map(_text, (e.kind, e.group, e.who, e.address, e.text)), json.dumps(e.detail))
                    for e in events
                ),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO assignments VALUES (?, ?, ?)",
                ((group, at, _packed(_owners_to_json(remembered))) for group, at, remembered in assignments),
            )

    def tidy(self, now: float) -> None:
        """Thins old points, and deletes the oldest entries if the file is too large."""
        with self._db:
            self._db.execute(
                "DELETE FROM points WHERE at < ? AND (grp, at) NOT IN (SELECT grp, min(at) FROM points WHERE at < ? "
                "GROUP BY grp, CAST(at / ? AS INTEGER))",
                (now - FINE_S, now - FINE_S, COARSE_S),
            )
        if self.bytes > self._max_bytes:
            self._shrink(now)
        self._db.execute("PRAGMA incremental_vacuum").fetchall()
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _shrink(self, now: float) -> None:
        while self.bytes > SHRINK_TO * self._max_bytes:
            oldest = [
                self._db.execute(f"SELECT min({what}) FROM {table}").fetchone()[0]
                for table, what in (("points", "at"), ("rebalances", "id / 1000.0"), ("events", "at"))
            ]
            known = [at for at in oldest if at is not None]
            if not known:
                return
            until = min(known) + max(1.0, (now - min(known)) / 10)
            with self._db:
                self._db.execute("DELETE FROM points WHERE at <= ?", (until,))
                self._db.execute("DELETE FROM rebalances WHERE id <= ?", (1000 * until,))
                self._db.execute("DELETE FROM events WHERE at <= ?", (until,))

    # -- reading -------------------------------------------------------------------------------------------------

    def past(self, group: str, kept_points: int) -> Past:
        """Returns the history of a group, with its newest `kept_points` points."""
        rows = self._db.execute(
            f"SELECT {', '.join(POINT)} FROM points WHERE grp = ? ORDER BY at DESC LIMIT ?", (group, kept_points)
        ).fetchall()
        row = self._db.execute("SELECT owners FROM assignments WHERE grp = ?", (group,)).fetchone()
        return Past(
            [Point(**dict(zip(POINT, each))) for each in reversed(rows)],
            self.rebalances(group, 0.0, time.time() + 1e6, SHOWN),
            None if row is None else _owners_from_json(_unpacked(row[0])),
        )

    def points(self, group: str, since: float, until: float, most: int = POINTS) -> list[dict[str, Any]]:
        """Returns about `most` points between two times: of each interval, the point with the largest lag."""
        step = max(1.0, (until - since) / most)
        rows = self._db.execute(
            f"SELECT {', '.join(POINT)}, max(coalesce(lag, -1)) FROM points WHERE grp = ? AND at BETWEEN ? AND ? "
            "GROUP BY CAST(at / ? AS INTEGER) ORDER BY at",
            (group, since, until, step),
        )
        return [dict(zip(POINT, row)) for row in rows]

    def rebalances(self, group: str, since: float, until: float, most: int = REBALANCES) -> list[dict[str, Any]]:
        """Returns the rebalances between two times, newest first: at most `most`, and RESPONSE_BYTES in total."""
        rows = self._db.execute(
            "SELECT summary FROM rebalances WHERE grp = ? AND id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?",
            (group, 1000 * since, 1000 * until, most),
        )
        found: list[dict[str, Any]] = []
        size = 0
        for (summary,) in rows:
            size += len(summary)
            if found and size > RESPONSE_BYTES:
                break
            found.append(json.loads(summary))
        return found

    def rebalance(self, group: str, number: int) -> Optional[dict[str, Any]]:
        """Returns one rebalance with its moves; None if it is unknown."""
        row = self._db.execute(
            "SELECT summary, moves FROM rebalances WHERE grp = ? AND id = ?", (group, number)
        ).fetchone()
        return None if row is None else {**json.loads(row[0]), **_unpacked(row[1])}

    def events(self, since: float = 0.0, most: int = 1000, kind: Optional[str] = None) -> list[Event]:
        """Returns the newest events, oldest first."""
        rows = self._db.execute(
            "SELECT at, kind, text, grp, who, address, detail FROM events WHERE at >= ? AND (? IS NULL OR kind = ?) "
            "ORDER BY number DESC LIMIT ?",
            (since, kind, kind, most),
        ).fetchall()
        return [
            Event(at, kind, text, group, who, address, json.loads(detail))
            for at, kind, text, group, who, address, detail in reversed(rows)
        ]


def _text(value: Optional[str]) -> Optional[str]:
    return None if value is None else utf8(value).decode()


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode())


def _unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def _owners_to_json(remembered: Remembered) -> dict[str, Any]:
    by_member: dict[str, list[TopicPartition]] = {}
    for partition, member in remembered.owners.items():
        by_member.setdefault(member, []).append(partition)
    owned = {member: to_ranges(parts) for member, parts in by_member.items()}
    return {"generation": remembered.generation, "owners": owned, "names": dict(remembered.names)}


def _owners_from_json(value: Mapping[str, Any]) -> Remembered:
    owners = {partition: member for member, ranges in value["owners"].items() for partition in from_ranges(ranges)}
    return Remembered(value["generation"], owners, value["names"])


class _Written(NamedTuple):
    """The entries of a group that are in the file."""

    point: float = 0.0
    rebalances: Mapping[int, Any] = {}
    assignment: Any = None


def _fresh(name: str, group: WatchedGroup, before: _Written, entries: _Entries) -> _Written:
    """Adds the group's new entries to `entries`. Returns the entries that the file has after the write."""
    entries.points.extend((name, point) for point in group.series.points if point.at > before.point)
    versions = {}
    for rebalance in group.history.rebalances:
        version = versions[rebalance.id] = (rebalance.ended, rebalance.generation, len(rebalance.moves))
        if before.rebalances.get(rebalance.id) != version:
            entries.rebalances.append((name, rebalance.to_json(), rebalance.moves_to_json()))
    assignment = (group.report.state.generation, group.history.last.id if group.history.last else 0)
    remembered = group.history.to_remember() if before.assignment != assignment else None
    if remembered is not None:
        entries.assignments.append((name, time.time(), remembered))
    newest = group.series.points[-1].at if group.series.points else before.point
    return _Written(newest, versions, assignment if remembered is not None else before.assignment)


class _Entries(NamedTuple):
    """The arguments of `HistoryFile.add`."""

    points: list[tuple[str, Point]]
    rebalances: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]
    events: list[Event]
    assignments: list[tuple[str, float, Remembered]]


async def keep(watcher: Watcher, archive: HistoryFile) -> None:
    """Writes the watcher's history until cancelled.

    If the file cannot be written, adds a problem to the watcher, and repeats the entries in the next write. If one
    entry cannot be stored, drops all entries of that write and logs an error.
    """
    began = time.time()
    written: dict[str, _Written] = {}
    events, tidied = 0, 0.0

    def collect() -> tuple[_Entries, dict[str, _Written], int]:
        entries, now = _Entries([], [], watcher.log.since(events), []), {}
        for name, group in watcher.groups.items():
            if group.seen:
                now[name] = _fresh(name, group, written.get(name, _Written(began)), entries)
        return entries, now, watcher.log.count

    def write(entries: _Entries, now: dict[str, _Written], count: int) -> None:
        # runs in the file's thread: a cancelled task would not see that its write succeeded, and would repeat it
        nonlocal written, events
        try:
            archive.add(*entries)
        except sqlite3.Error:
            raise
        except Exception as error:
            left = len(entries.points) + len(entries.rebalances) + len(entries.events) + len(entries.assignments)
            log.error("the history %s leaves out %d entries: %s", archive.path, left, shown(error), exc_info=error)
        written, events = now, count

    try:
        while True:
            await asyncio.sleep(WRITE_S)
            try:
                await archive.do(write, *collect())
                if time.monotonic() - tidied > TIDY_S:
                    await archive.do(archive.tidy, time.time())
                    tidied = time.monotonic()
                watcher.mend("history")
            except sqlite3.Error as error:
                watcher.complain("history", f"{archive.path}: {error}")
    finally:
        archive.finish(lambda: write(*collect()))
