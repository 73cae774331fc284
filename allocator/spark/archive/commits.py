"""Reads and writes the commits of one topic's archive. Each commit is atomic.

Guarantee: a commit exists once its manifest has its final name. A hard link sets that name atomically, and fails if
another run has used the number. A file that no manifest names is not part of the archive.

    topic=orders/
      _commits/00000001.json    ranges of offsets, files, topic and cluster, and a checksum _new-<random>/
      files of a current run; after a crash, the next run removes them commit=00000001/          the same directory,
      renamed when its manifest is written (after a crash, by the next run)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from allocator.documents import write_file
from allocator.errors import AllocatorError, ConfigError
from allocator.spark.errors import ArchiveCorrupt, ArchiveFull

FORMAT = 1
MAX_NAMES = 5  # directories that an error names
_LOCK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
Reach = Mapping[int, tuple[int, int]]


class ArchiveMismatch(AllocatorError):
    """The directory holds an archive of another topic, cluster or format."""


class ArchiveBusy(AllocatorError):
    """Another run is writing the same archive."""

    retriable = True


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. `name` is its path in the commit's directory. Both offsets are inclusive."""

    name: str
    partition: int
    records: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Manifest:
    """One commit. `ranges`: partition -> (first offset, end offset)."""

    number: int
    kind: str  # "append" or "compact"
    topic: str
    cluster: Optional[str]
    topic_id: Optional[str]
    ranges: Reach
    files: tuple[DataFile, ...]
    staged: str
    at: str
    gaps: Reach = field(default_factory=dict)
    """Offsets that were deleted from the topic before they were archived, skipped with `allow_gaps`."""
    replaces: tuple[int, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the commit's files: name -> type, in Spark's JSON notation."""

    @property
    def directory(self) -> str:
        return f"commit={self.number:08d}"

    @property
    def records(self) -> int:
        return sum(found.records for found in self.files)

    @property
    def size(self) -> int:
        return sum(found.size for found in self.files)

    @classmethod
    def of_table(
        cls, number: int, topic: str, ids: tuple[str | None, str | None], ends: Mapping[int, int], columns: Any
    ) -> Manifest:
        """Returns a manifest with the whole state of a table that stores its offsets itself. `ids`: the ids of the
        cluster and the topic. `ends`: partition -> next offset."""
        ranges = {partition: (0, end) for partition, end in ends.items()}
        return cls(number, "append", topic, ids[0] or None, ids[1] or None, ranges, (), "", "", columns=columns)

    def to_bytes(self) -> bytes:
        # a round trip through JSON turns partition numbers into string keys, which sort differently
        body = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> Manifest:
        """Decodes a manifest. Raises ArchiveCorrupt."""
        try:
            body = json.loads(data)
            stated = body.pop("checksum")
            if stated != _checksum(body):
                raise ValueError("its checksum does not match its content")
            if body.pop("format") != FORMAT:
                raise ValueError("it was written by a newer version of allocator; use that version")
            for name in ("ranges", "gaps"):
                body[name] = {int(partition): tuple(reach) for partition, reach in body[name].items()}
            body["files"] = tuple(DataFile(**entry) for entry in body["files"])
            body["replaces"] = tuple(body["replaces"])
            return cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveCorrupt(
                f"{path} cannot be read ({error}); restore it from a backup, or move the directory away and archive "
                "again"
            ) from error


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class CommitLog:
    """The commits under one directory. Readers need no lock; a writer must hold `locked`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifests = directory / "_commits"

    def live(self) -> list[Manifest]:
        """Returns the commits that are in effect, in order.

        Raises ArchiveCorrupt if their ranges do not fit together, or if a commit has files but no manifest.
        """
        # listed before the manifests, because another run renames the files after it has written the manifest
        homes = sorted(path.name for path in self.directory.glob("commit=*") if path.is_dir())
        found = {manifest.number: manifest for manifest in self._all()}
        replaced = {number for manifest in found.values() for number in manifest.replaces}
        missing = set(range(1, max(found, default=0) + 1)) - found.keys() - replaced
        if missing:
            raise ArchiveCorrupt(
                f"{self.manifests} lacks {min(missing):08d}.json, but has later ones; restore it from a backup"
            )
        lost = sorted(set(homes) - {f"commit={number:08d}" for number in (*found, *replaced)})
        if lost:
            names = ", ".join(lost[:MAX_NAMES]) + (f" and {len(lost) - MAX_NAMES} more" if lost[MAX_NAMES:] else "")
            raise ArchiveCorrupt(
                f"{self.directory} has the files of {names}, but _commits lacks the manifests: restore _commits from a "
                "backup, or move these directories away to archive without them; nothing was changed"
            )
        alive = [manifest for number, manifest in found.items() if number not in replaced]
        # a compacted commit takes the place of the first commit that it replaces
        alive.sort(key=lambda manifest: min(manifest.replaces, default=manifest.number))
        _check_ranges(alive, self.manifests)
        return alive

    def _all(self) -> Iterator[Manifest]:
        if not self.manifests.is_dir():
            return
        for path in sorted(self.manifests.iterdir()):
            if re.fullmatch(r"\d{8,}\.json", path.name):
                manifest = Manifest.from_bytes(path.read_bytes(), path)
                if f"{manifest.number:08d}.json" != path.name:
                    raise ArchiveCorrupt(f"{path} contains commit {manifest.number}; restore the right file")
                yield manifest

    def paths(self, manifest: Manifest) -> tuple[Path, list[Path]]:
        """Returns the directory of a commit and the current paths of its files.

        Raises ArchiveCorrupt if a file is missing or changed.
        """
        home = self.directory / manifest.directory
        if not home.is_dir():
            home = self.directory / manifest.staged
        paths = [home / found.name for found in manifest.files]
        for path, found in zip(paths, manifest.files):
            if not path.is_file() or path.stat().st_size != found.size:
                raise ArchiveCorrupt(
                    f"{path} is missing or was changed, and commit {manifest.number} needs it; restore it from a backup"
                )
        return home, paths

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the archive for one run. Completes commits of a crashed run, and removes its other files.

        Raises ArchiveBusy, and ConfigError if the directory cannot be written.
        """
        try:
            self.manifests.mkdir(parents=True, exist_ok=True)
            lock = os.fdopen(os.open(self.directory / "_lock", _LOCK, 0o666), "w")
        except OSError as error:
            if is_full(error):
                raise disk_full(self.directory) from error
            raise ConfigError(
                f"{self.directory} cannot be written: {error.strerror}; name a writable directory"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ArchiveBusy(f"{self.directory} is being written by another run; wait until it ends") from error
            self._recover()
            yield

    def commit(self, manifest: Manifest) -> None:
        """Syncs the files, writes the manifest, and then renames the directory, for readers that do not use manifests.

        After ArchiveBusy or ArchiveFull, no file of the commit remains.
        """
        staged = self.directory / manifest.staged
        final = self.manifests / f"{manifest.number:08d}.json"
        try:
            for found in manifest.files:
                sync(staged / found.name)
            for directory in {(staged / found.name).parent for found in manifest.files} | {staged, self.directory}:
                if directory.is_dir():
                    sync(directory)
            write_file(final, manifest.to_bytes(), fresh=True)
        except FileExistsError:
            raise ArchiveBusy(f"{final} was written by another run meanwhile; this run's files were deleted") from None
        except OSError as error:
            if final.exists():
                raise  # the commit exists, so keep its files
            shutil.rmtree(staged, ignore_errors=True)
            if is_full(error):
                raise disk_full(self.directory) from error
            raise
        self._settle(manifest)

    def _settle(self, manifest: Manifest) -> None:
        """Renames and deletes directories as the manifest says. Repeating it is harmless."""
        staged, home = self.directory / manifest.staged, self.directory / manifest.directory
        if staged.is_dir() and not home.exists():
            os.rename(staged, home)
            sync(self.directory)
        for number in manifest.replaces:
            files, old = self.directory / f"commit={number:08d}", self.manifests / f"{number:08d}.json"
            if files.is_dir():
                shutil.rmtree(files)
            if old.exists():
                old.unlink()

    def _recover(self) -> None:
        alive = self.live()
        for manifest in alive:
            self._settle(manifest)
        for path in self.directory.glob("_new-*"):
            if path.is_dir():
                shutil.rmtree(path)
        for path in self.manifests.glob(".*"):
            path.unlink()


def is_full(error: BaseException) -> bool:
    """Returns whether a disk or quota is full. `error` may be an error of Spark."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def disk_full(directory: Path, scratch: Optional[str] = None) -> ArchiveFull:
    """Returns the error about a full disk. `scratch` is the directory in which Spark sorts large data."""
    places = [f"{_free(directory)} free in {directory}"]
    if scratch is not None:
        places.append(f"{_free(Path(scratch))} in {scratch}, where Spark sorts (spark.local.dir)")
    return ArchiveFull(
        f"no space left on device: {', '.join(places)}. This commit's files were deleted; earlier ones are complete. "
        "Free space, or reduce --offsets-per-commit, and run again"
    )


def _free(place: Path) -> str:
    try:
        return f"{shutil.disk_usage(place).free / 1e6:.1f} MB"
    except OSError:
        return "unknown space"


def check_writable(directory: Path) -> None:
    """Raises ConfigError if an archive cannot be written there. Creates nothing."""
    there = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    if not there.is_dir():
        what = "a link to nothing" if there.is_symlink() and not there.exists() else "a file"
        raise ConfigError(f"{directory} cannot be a directory: {there} is {what}; name another directory")
    effective = os.access in os.supports_effective_ids
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=effective):
        why = "is on a read-only file system" if os.statvfs(there).f_flag & os.ST_RDONLY else "may not be written"
        raise ConfigError(
            f"{directory} cannot be written: {there} {why} by this user; name another directory, or change its mode"
        )


def _check_ranges(alive: list[Manifest], where: Path) -> None:
    """Raises ArchiveCorrupt unless the ranges and gaps of each partition are contiguous."""
    runs: dict[int, list[tuple[int, int]]] = {}
    for manifest in alive:
        for reaches in (manifest.ranges, manifest.gaps):
            for partition, reach in reaches.items():
                runs.setdefault(partition, []).append(reach)
    for partition, found in runs.items():
        found.sort()
        for (_, end), (start, _) in zip(found, found[1:]):
            if end != start:
                raise ArchiveCorrupt(
                    f"{where}: partition {partition} is archived up to offset {end - 1}, and then from {start} on; the "
                    "directory has manifests of two archives, or a manifest was changed"
                )


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
