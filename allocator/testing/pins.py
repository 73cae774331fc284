"""Reads the lock files: the jars of each server version, with sizes and SHA-256.

The first line of `NAME.txt` repeats the roots and exclusions of the `JarSet`. Each other line is one jar:
`SHA-256  bytes  group:artifact:version[:classifier]`. After a change of `versions.py`, run `python -m bench.pin_jars`
in the repository to write the files again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import JarsUnavailable
from .versions import JarSet


@dataclass(frozen=True)
class Jar:
    """One published file. `coordinate` is group:artifact:version[:classifier]; `size` is in bytes."""

    coordinate: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        _, *rest = self.coordinate.split(":")
        return "-".join(rest) + ".jar"

    @property
    def path(self) -> str:
        """Path of the file below the URL of a Maven repository."""
        group, artifact, version, *_ = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.name}"


def pinned(jars: JarSet) -> list[Jar]:
    """Returns the jars of the lock file. Raises JarsUnavailable if it is missing or its roots differ."""
    path = jars.locks / f"{jars.name}.txt"
    try:
        first, *lines = path.read_text().splitlines()
    except FileNotFoundError:
        first, lines = "", []
    if first != jars.recipe:
        raise JarsUnavailable(
            f"{jars.what} has no lock file for its jars ({path} {'lists other roots' if first else 'does not exist'}). "
            f"Write it: python -m bench.pin_jars {jars.name}"
        )
    return [Jar(coordinate, int(size), digest) for digest, size, coordinate in (line.split("  ") for line in lines)]


def differences(wanted: Iterable[Jar], directory: Path) -> list[str]:
    """Returns a phrase for each file of a directory that differs from the pins, is missing, or does not belong
    there."""
    expected = {jar.name: jar.sha256 for jar in wanted}
    found = {path.name: sha256(path) for path in directory.glob("*.jar")}
    return [
        f"{name} has SHA-256 {found[name]}, expected {expected[name]}"
        if name in expected and name in found
        else f"{name} is missing"
        if name in expected
        else f"{name} does not belong there"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
