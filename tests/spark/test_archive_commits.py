"""The commits of an archive are atomic: kills at any system call."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.spark.archive import archive
from allocator.spark.archive.commits import ArchiveBusy, CommitLog, DataFile, Manifest
from allocator.spark.archive.read import reach_of
from allocator.spark.errors import ArchiveCorrupt
from tests.spark.spark_records import FakeTopic


class Killed(BaseException):
    """A kill: a BaseException that no handler catches."""


def next_manifest(commits: CommitLog, count: int = 10) -> Manifest:
    """The files of the next commit of partition 0, written, and its manifest."""
    alive = commits.live()
    start = max((reach_of(alive).get(0, (0, 0))[1], 0))
    staged = commits.directory / f"_new-{uuid.uuid4().hex}"
    name = "partition=0/data.parquet"
    (staged / name).parent.mkdir(parents=True)
    (staged / name).write_bytes(b"x" * count)
    number = max((manifest.number for manifest in alive), default=0) + 1
    data = DataFile(name, 0, count, count, start, start + count - 1)
    return Manifest(number, "append", "t", None, None, {0: (start, start + count)}, (data,), staged.name, "now")


def append(commits: CommitLog) -> None:
    with commits.locked():
        commits.commit(next_manifest(commits))


def merge(commits: CommitLog) -> None:
    with commits.locked():
        alive = commits.live()
        fresh = next_manifest(commits, sum(manifest.records for manifest in alive))
        low, high = reach_of(alive)[0]
        data = DataFile(fresh.files[0].name, 0, high - low, fresh.files[0].size, low, high - 1)
        replaces = tuple(sorted({n for manifest in alive for n in (manifest.number, *manifest.replaces)}))
        changed = {"kind": "compact", "ranges": {0: (low, high)}, "files": (data,), "replaces": replaces}
        commits.commit(dataclasses.replace(fresh, **changed))


def held(commits: CommitLog) -> tuple[int, int]:
    """(offsets, bytes of the files that a reader would read)."""
    alive = commits.live()
    low, high = reach_of(alive).get(0, (0, 0))
    return high - low, sum(path.stat().st_size for manifest in alive for path in commits.paths(manifest)[1])


@pytest.fixture
def commits(tmp_path: Path) -> CommitLog:
    return CommitLog(tmp_path / "topic=t")


CALLS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "link"),
    (os, "rename"),
    (shutil, "rmtree"),
    (Path, "unlink"),
    (Path, "write_bytes"),
]


@contextlib.contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, call: int, done: bool) -> Iterator[None]:
    """Ends the process in that call, before or (`done`) after its effect."""
    passed = 0

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == call:
                if done:
                    real(*args, **kwargs)
                raise Killed
            if passed > call:
                raise Killed  # a dead process does nothing more, not even in a `finally`
            return real(*args, **kwargs)

        return instead

    with monkeypatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, deadly(getattr(owner, name)))
        yield


@pytest.mark.parametrize(("work", "before"), [(append, 0), (append, 3), (merge, 3), (merge, 5)])
@pytest.mark.parametrize("done", [False, True])
def test_a_commit_that_is_killed_at_any_call_is_complete_or_absent(
    commits: CommitLog, work: Callable[[CommitLog], None], before: int, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(before):
        append(commits)
    for call in range(1, 200):
        offsets, size = held(commits)
        assert offsets == size
        try:
            with killed_at(monkeypatch, call, done):
                work(commits)
        except Killed:
            now, size = held(commits)
            assert now in (offsets, offsets + (10 if work is append else 0))
            assert now == size
            continue
        break
    assert 6 < call < 199, "the last run ends"
    append(commits)
    assert not list(commits.directory.glob("_new*"))
    assert len(list(commits.directory.glob("commit=*"))) == len(commits.live())
    assert held(commits)[0] == held(commits)[1] > offsets


def test_of_two_runs_at_once_one_is_refused_even_without_the_lock(commits: CommitLog) -> None:
    with commits.locked():
        with pytest.raises(ArchiveBusy, match="another run"), CommitLog(commits.directory).locked():
            pass
        one, other = next_manifest(commits), next_manifest(commits)
        commits.commit(one)
        with pytest.raises(ArchiveBusy, match="meanwhile"):
            commits.commit(other)
    assert held(commits) == (10, 10)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


SECOND, THIRD, DATA = "_commits/00000002.json", "_commits/00000003.json", "commit=00000002/partition=0/data.parquet"
OTHER = Manifest(2, "append", "t", None, None, {0: (50, 60)}, (), "_new", "now").to_bytes()
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a manifest cut": (lambda d: (d / SECOND).write_bytes(b'{"form'), r"00000002\.json cannot be read"),
    "a manifest edited": (lambda d: edit(d / SECOND, ranges={"0": [10, 15]}), "checksum"),
    "a manifest emptied": (lambda d: (d / THIRD).write_bytes(b""), "backup"),
    "a manifest that is a list": (lambda d: (d / THIRD).write_bytes(b"[1]"), "backup"),
    "a manifest missing": (lambda d: (d / SECOND).unlink(), r"lacks 00000002\.json"),
    "a manifest copied": (lambda d: shutil.copy(d / THIRD, d / "_commits/00000004.json"), "commit 3"),
    "the last manifest missing": (lambda d: (d / THIRD).unlink(), r"files of commit=00000003, but _commits lacks"),
    "all manifests missing": (
        lambda d: [path.unlink() for path in (d / "_commits").iterdir()],
        "files of commit=00000001, commit=00000002, commit=00000003, but _commits lacks the manifests",
    ),
    "a manifest of another archive": (lambda d: (d / SECOND).write_bytes(OTHER), "two archives"),
    "data missing": (lambda d: (d / DATA).unlink(), "missing or was changed"),
    "data cut": (lambda d: (d / DATA).write_bytes(b"x"), "missing or was changed"),
}


@given(st.dictionaries(st.integers(0, 20_000), st.tuples(st.integers(0, 99), st.integers(100, 199)), max_size=40))
def test_a_manifest_of_any_partitions_is_read_as_it_was_written(ranges: dict[int, tuple[int, int]]) -> None:
    before = Manifest(1, "append", "t", "c", "i", ranges, (), "_new", "now", gaps=ranges)
    assert Manifest.from_bytes(before.to_bytes(), Path("there")) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_deletes_no_files_whose_manifests_are_lost(commits: CommitLog, dry_run: bool) -> None:
    """Such as after a copy by a tool that leaves out names that begin with an underscore."""
    for _ in range(8):
        append(commits)
    shutil.rmtree(commits.manifests)
    before = sorted(commits.directory.rglob("*"))
    with pytest.raises(ArchiveCorrupt, match=r"commit=00000001, .*, commit=00000005 and 3 more"):
        archive(FakeTopic([80], name="t"), commits.directory.parent, dry_run=dry_run)
    assert sorted(commits.directory.rglob("*")) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_with_its_file_and_nothing_is_written(commits: CommitLog, damage: str) -> None:
    for _ in range(3):
        append(commits)
    harm, words = DAMAGES[damage]
    harm(commits.directory)
    before = sorted(path for path in commits.directory.rglob("*") if path.name != "_lock")
    for use in (held, append) if "manifest" in damage else (held,):
        with pytest.raises(ArchiveCorrupt, match=words):
            use(commits)
    assert sorted(path for path in commits.directory.rglob("*") if path.name != "_lock") == before
