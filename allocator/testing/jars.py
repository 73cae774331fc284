"""The jar cache: one directory a server version, outside the repository, shared by all processes of a user.

Guarantee: a directory returned by `jar_directory` holds exactly the jars that are pinned in this package (`pins`), each
with its SHA-256. For jars that are not, a warning says so, and they are those that were resolved first. Two processes
may ask at once: one resolves, the other waits for the lock and finds the result.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MissingExtra
from .errors import JarsUnavailable
from .java import Java
from .pins import differences, pinned, sha256
from .resolve import OnFile, resolve
from .versions import JarSet

try:
    from filelock import FileLock
except ImportError as error:
    raise MissingExtra("servers for tests need filelock: pip install 'allocator[testing]'") from error

__all__ = ["cache_directory", "class_path", "jar_directory"]

log = logging.getLogger(__name__)
_SUMS = "SHA256SUMS"
_verified: set[Path] = set()


def cache_directory() -> Path:
    """`ALLOCATOR_CACHE`, else `allocator` in XDG_CACHE_HOME, else in ~/.cache."""
    chosen = os.environ.get("ALLOCATOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "allocator"


def class_path(jars: JarSet, java: Java) -> str:
    """For `java -cp`, its order fixed by the names."""
    directory = jar_directory(jars, java)
    return os.pathsep.join(str(path) for path in sorted(directory.glob("*.jar")))


def jar_directory(jars: JarSet, java: Java) -> Path:
    """The directory of `jars`, resolved now if it is missing or if a file of it is not what it should be.

    Raises JarsUnavailable, also for jars that are not the pinned ones. Checksums are compared once a process; waits
    without limit for another process that is resolving the same jars.
    """
    directory = cache_directory() / jars.name
    if directory in _verified and directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsUnavailable(f"cannot make the cache {directory.parent}: {error}; set ALLOCATOR_CACHE") from error
    with FileLock(str(directory) + ".lock"):
        wrong = _wrong(directory, jars)
        if wrong:
            if directory.exists():
                log.warning("%s: %s; resolving its jars again", directory, wrong)
            _fill(jars, directory, java)
    _verified.add(directory)
    return directory


def _wrong(directory: Path, jars: JarSet) -> str | None:
    """Why the directory cannot be used, or None."""
    listed: dict[str, str] = {}
    try:
        first, *lines = (directory / _SUMS).read_text().splitlines()
        for line in lines:
            digest, name = line.split("  ", 1)
            listed[name] = digest
    except (OSError, ValueError):
        return "no list of checksums"
    if first != jars.recipe:
        return "it was resolved for other needs"
    if not listed:
        return "its list of checksums is empty"
    # the list tells of damage; only what is pinned tells of jars that were wrong from the first
    expected = pinned(jars) or listed
    return "; ".join(differences(expected, _sums(directory))) or None


def _sums(directory: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in directory.glob("*.jar")}


def _fill(jars: JarSet, directory: Path, java: Java) -> None:
    """Resolve beside the directory and move into place, so that nobody ever sees half of it."""
    stage = Path(tempfile.mkdtemp(prefix=f".{jars.name}-", dir=directory.parent))
    try:
        # one resolver at a time: mvn does not lock its own repository
        with FileLock(str(directory.parent / "resolve.lock")), _progress(jars.what) as on_file:
            resolve(jars, stage, java, on_file)
        for path in stage.iterdir():
            if path.suffix != ".jar":
                path.unlink()
        sums = _sums(stage)
        if not sums:
            raise JarsUnavailable(f"{jars.what}: the resolver succeeded and brought no jar; clear its own cache")
        _verify(jars, sums)
        lines = [f"{digest}  {name}" for name, digest in sorted(sums.items())]
        (stage / _SUMS).write_text("\n".join([jars.recipe, *lines]) + "\n")
        stage.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        stage.rename(directory)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _verify(jars: JarSet, sums: dict[str, str]) -> None:
    """Raises JarsUnavailable where these are not the pinned jars."""
    expected = pinned(jars)
    if expected is None:
        log.warning("%s: no checksums are pinned for its jars; they are trusted as the registry sent them", jars.what)
        return
    wrong = differences(expected, sums)
    if wrong:
        raise JarsUnavailable(
            f"the jars of {jars.what} were resolved and are not the ones that were published, so they are not used: "
            f"{'; '.join(wrong)} -- delete them from the resolver's own cache (mvn: ~/.m2/repository), check where the "
            "registry settings lead (mvn: settings.xml; ivy: ALLOCATOR_IVY_SETTINGS), and try again"
        )


@contextmanager
def _progress(what: str) -> Iterator[OnFile]:
    """A bar on standard error when a person may be looking, one log line otherwise."""
    if not sys.stderr.isatty():
        log.info("resolving the jars of %s", what)
        yield lambda files: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"jars of {what}"), BarColumn(), TextColumn("{task.completed} files"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda files: progress.update(task, completed=files)
