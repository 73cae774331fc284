"""Class archives: Java maps the classes of a server from a file instead of parsing them at each start.

With its archive a broker of 3.9.1 starts with two thirds of the CPU. An archive is beside the jars of its server, one
for each build of Java, and only Java 13 and newer can make one. Java itself compares an archive with its jars, and
ignores one that does not fit.

To make an archive costs as much as three starts and saves a third of each later one. So `worth_making` is true only if
another session wanted the archive before: a cache that is new in each run has no archives.
Source: JEP 350, Dynamic CDS Archives.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from .jars import jar_directory
from .java import Java
from .versions import JarSet

__all__ = ["archive", "failed", "making", "using", "worth_making"]

_OLDEST = 13


def archive(java: Java, jars: JarSet) -> Path:
    """The path of the archive of these jars for this Java; the file may not exist."""
    return jar_directory(jars) / f"classes-{java.build}.jsa"


def using(java: Java, jars: JarSet) -> list[str]:
    """The options with which Java uses the archive; none if there is no archive."""
    path = archive(java, jars)
    # -Xshare:auto: with an archive that does not fit, Java starts without it
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"] if _usable(path) else []


def making(path: Path) -> list[str]:
    """The options with which Java writes the archive `path` when it ends in order."""
    return [f"-XX:ArchiveClassesAtExit={path}"]


def worth_making(java: Java, jars: JarSet, session: str) -> bool:
    """Whether there is no archive, and a session of another name asked before."""
    path = archive(java, jars)
    if java.major < _OLDEST or path.exists():
        return False
    wanted = path.with_suffix(".wanted")
    with contextlib.suppress(OSError):  # a cache that is read-only has no archives
        if wanted.exists():
            return wanted.read_text() != session
        wanted.write_text(session)
    return False


def failed(java: Java, jars: JarSet) -> None:
    """Notes that this Java cannot make this archive, so that nobody tries again."""
    with contextlib.suppress(OSError):
        archive(java, jars).touch()


def _usable(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
