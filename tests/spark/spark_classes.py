"""A class archive for Spark: Java maps Spark's classes from a file instead of parsing them at each start.

With the archive Spark starts with half of the CPU. It is a file of 200 MB in the virtual environment, one for each
installation of Spark and each build of Java. To make it costs as much as four starts save. So the first run with many
tests of Spark only leaves a note, the second makes the archive, and the third uses it.
`allocator.testing.classes` does the same for the servers.
Source: JEP 350, Dynamic CDS Archives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
from filelock import FileLock, Timeout

from allocator.testing.java import find_java

__all__ = ["class_archive", "default_archive", "using"]

# fewer tests load too few classes, and beside them the time to write the archive is long
_MANY = 100
# each class that cannot be in an archive would be a line of the tests' output
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def using(path: Path) -> str:
    """The options with which Java uses the archive; "" if there is none."""
    # -Xshare:auto: with an archive that does not fit, Java starts without it
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto {_QUIET}' if path.exists() else ""


@contextlib.contextmanager
def class_archive(tests: int, path: Path | None = None) -> Iterator[str]:
    """The options of Java for a run with so many tests of Spark. When the block ends, Java must have ended."""
    path = path or default_archive()
    wanted = path.with_suffix(".wanted")
    if path.exists() or tests < _MANY:
        yield using(path)
        return
    lock = FileLock(f"{path}.lock")
    if not wanted.exists() or not _acquired(lock):
        yield ""
        with contextlib.suppress(OSError):  # an environment that is read-only has no archive
            wanted.touch()
        return
    try:
        stage = path.with_suffix(f".{os.getpid()}")
        yield f'"-XX:ArchiveClassesAtExit={stage}" {_QUIET}'
        if stage.exists():
            stage.replace(path)
    finally:
        lock.release()


def _acquired(lock: FileLock) -> bool:
    """Takes the lock if no other worker of pytest-xdist has it: one is enough to make the archive."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def default_archive() -> Path:
    jars = Path(pyspark.__file__).parent / "jars"
    # Java takes an archive only with the very paths with which it was made
    place = hashlib.sha256(str(jars).encode()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{pyspark.__version__}-{place}-{find_java(oldest=17).build}.jsa"
