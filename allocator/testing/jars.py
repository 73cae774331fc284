"""The jar cache: one directory for each server version, shared by all processes of a user.

Guarantee: a directory that `jar_directory` returns contains exactly the pinned jars (`pins`), each with its SHA-256. If
two processes call it at the same time, one downloads and the other waits for the lock.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import MissingExtra
from .download import OnBytes, Registry, download, find_registry
from .errors import JarsUnavailable
from .pins import Jar, differences, pinned
from .versions import KAFKA, USUAL_ZOOKEEPER, JarSet, kafka_release, zookeeper_jars

try:
    from filelock import FileLock
except ImportError as error:
    raise MissingExtra("servers for tests need filelock: pip install 'zk-partition-allocator[testing]'") from error

log = logging.getLogger(__name__)
_verified: set[Path] = set()


def cache_directory() -> Path:
    """Returns `ALLOCATOR_CACHE`, else `allocator` in XDG_CACHE_HOME, else in ~/.cache."""
    chosen = os.environ.get("ALLOCATOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "allocator"


def class_path(jars: JarSet) -> str:
    """Returns the class path for `java -cp`, sorted by name."""
    directory = jar_directory(jars)
    return os.pathsep.join(str(path) for path in sorted(directory.glob("*.jar")))


def fetch_jars(versions: Sequence[str] = (), zookeeper: str = USUAL_ZOOKEEPER) -> dict[str, Path]:
    """Downloads the jars of ZooKeeper and of these versions of Kafka, by default all. Returns name -> directory."""
    wanted = [zookeeper_jars(zookeeper), *(kafka_release(version).jars for version in versions or KAFKA)]
    return {jars.what: jar_directory(jars) for jars in wanted}


def jar_directory(jars: JarSet) -> Path:
    """Returns the directory of `jars`. Downloads them if the directory is missing or a file differs from its pin.

    Raises JarsUnavailable. A process compares the checksums only once. Waits without limit for another process that
    downloads the same jars.
    """
    directory = cache_directory() / jars.name
    if directory in _verified and directory.is_dir():
        return directory
    wanted = pinned(jars)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsUnavailable(f"cannot create the cache {directory.parent}: {error}; set ALLOCATOR_CACHE") from error
    with FileLock(str(directory) + ".lock"):
        wrong = differences(wanted, directory)
        if wrong:
            if directory.exists():
                log.warning("%s: %s; downloading its jars again", directory, "; ".join(wrong))
            _fill(jars, wanted, directory)
    _verified.add(directory)
    return directory


def _fill(jars: JarSet, wanted: Sequence[Jar], directory: Path) -> None:
    """Downloads into a temporary directory and renames it, so that no process sees an incomplete directory.

    After an error, the complete files stay in the temporary directory for the next call.
    """
    registry = find_registry()
    stage = directory.with_name(f".{directory.name}.part")
    stage.mkdir(exist_ok=True)
    names = {jar.name for jar in wanted}
    for path in stage.iterdir():
        if path.name not in names:
            path.unlink()
    with _progress(jars.what, sum(jar.size for jar in wanted), registry) as on_bytes:
        download(wanted, stage, registry, on_bytes)
    if directory.exists():
        shutil.rmtree(directory)
    stage.rename(directory)


@contextmanager
def _progress(what: str, size: int, registry: Registry) -> Iterator[OnBytes]:
    """Shows a progress bar if standard error is a terminal, else logs a line. `size` is in bytes."""
    if not sys.stderr.isatty():
        log.info("downloading the jars of %s, %.1f MB, from %s", what, size / 1e6, registry)
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn(f"jars of {what}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=size)
        yield lambda count: progress.advance(task, count)
