"""The SHA-256 of every jar of a server version.

The first line of `pinned/NAME.txt` says what was asked for; then comes `SHA-256  group:artifact:version` for each jar.
After a change of `versions.py`, this writes the files anew, from an empty Ivy cache:

    python -m allocator.testing.pins kafka-4.1.1 zookeeper-3.8.4

Then look at the difference: a published jar does not change.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .java import find_java
from .resolve import by_ivy
from .versions import KAFKA, ZOOKEEPER, JarSet

__all__ = ["differences", "pinned", "sha256"]

DIRECTORY = Path(__file__).with_name("pinned")


def pinned(jars: JarSet) -> dict[str, str] | None:
    """{file name: SHA-256}; None for jars that were never pinned, or asked for otherwise than when they were."""
    try:
        first, *lines = (DIRECTORY / f"{jars.name}.txt").read_text().splitlines()
    except FileNotFoundError:
        return None
    if first != jars.recipe:
        return None
    return {_file_name(coordinate): digest for digest, coordinate in (line.split("  ") for line in lines)}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is wrong with files of these checksums, a phrase for each file."""
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


def _file_name(coordinate: str) -> str:
    _, *rest = coordinate.split(":")
    return "-".join(rest) + ".jar"


def _pin(jars: JarSet) -> None:
    with tempfile.TemporaryDirectory() as place:
        into = Path(place)
        by_ivy(jars, into, find_java(), lambda files: None, "[organisation]/[artifact]/[revision]/")
        lines = []
        for path in sorted(into.glob("*/*/*/*.jar"), key=lambda path: path.name):
            group, artifact, version = path.parent.relative_to(into).parts
            classifier = path.stem[len(f"{artifact}-{version}-") :]
            coordinate = ":".join(filter(None, (group, artifact, version, classifier)))
            if _file_name(coordinate) != path.name:
                raise SystemExit(f"{path.name} is not the file name of {coordinate}")
            lines.append(f"{sha256(path)}  {coordinate}")
    (DIRECTORY / f"{jars.name}.txt").write_text("\n".join([jars.recipe, *lines]) + "\n")
    print(f"{jars.name}: {len(lines)} jars")


if __name__ == "__main__":
    known = {jars.name: jars for jars in (ZOOKEEPER, *(release.jars for release in KAFKA.values()))}
    for name in sys.argv[1:] or known:
        _pin(known[name])
