"""Bringing jars from the Maven repositories: by `mvn` where it is on PATH, else by the Ivy inside pyspark."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from .errors import JarsUnavailable
from .java import Java
from .versions import JarSet

__all__ = ["by_ivy", "resolve"]

_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
OnFile = Callable[[int], None]


def resolve(jars: JarSet, into: Path, java: Java, on_file: OnFile) -> None:
    """Fill `into` with the jars. `on_file(n)` is called as files arrive.

    `ALLOCATOR_RESOLVER` (mvn or ivy) forces one way; else the second is tried when the first fails.
    Raises JarsUnavailable with what each way said.
    """
    ways = {"mvn": _by_maven, "ivy": by_ivy}
    chosen = os.environ.get("ALLOCATOR_RESOLVER", "")
    if chosen:
        if chosen not in ways:
            raise JarsUnavailable(f"ALLOCATOR_RESOLVER is {chosen!r}; set it to mvn or ivy, or unset it")
        ways = {chosen: ways[chosen]}
    said = []
    for name, way in ways.items():
        for stale in into.iterdir():
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        try:
            way(jars, into, java, on_file)
        except JarsUnavailable as error:
            said.append(f"{name}: {error}")
        else:
            return
    raise JarsUnavailable(
        f"the jars of {jars.what} are not in the cache and could not be resolved from the Maven registry: "
        + "; ".join(said)
        + " -- check the network and the registry settings (mvn: settings.xml; ivy: ALLOCATOR_IVY_SETTINGS), "
        "or copy a filled cache here (ALLOCATOR_CACHE)"
    )


def _by_maven(jars: JarSet, into: Path, java: Java, on_file: OnFile) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailable("no `mvn` on PATH")
    pom = into / "pom.xml"
    pom.write_text(_pom(jars))
    command = [maven, "-B", "-C", "-f", str(pom), _MAVEN_PLUGIN, f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
    env = dict(os.environ, JAVA_HOME=java.home)
    if java.download_options():
        env["MAVEN_OPTS"] = " ".join([env.get("MAVEN_OPTS", ""), *java.download_options()])
    _run(command, "Downloaded from", on_file, env)
    pom.unlink()


def by_ivy(jars: JarSet, into: Path, java: Java, on_file: OnFile, folder: str = "") -> None:
    """`folder`: an Ivy pattern of where below `into` a jar goes, with a slash at its end."""
    ivy = _ivy_jar()
    if ivy is None:
        raise JarsUnavailable("no pyspark with its Ivy (`pip install pyspark`)")
    module = into / "ivy.xml"
    module.write_text(_ivy_module(jars))
    cache = into / ".ivy"
    command = [java.executable, *java.download_options(), "-cp", ivy, "org.apache.ivy.Main"]
    settings = os.environ.get("ALLOCATOR_IVY_SETTINGS")
    if settings:
        command += ["-settings", settings]
    command += ["-ivy", str(module), "-cache", str(cache), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{into}/{folder}[artifact]-[revision](-[classifier]).[ext]"]
    _run(command, "[SUCCESSFUL ]", on_file, dict(os.environ))
    module.unlink()
    shutil.rmtree(cache)


def _run(command: list[str], arrived: str, on_file: OnFile, env: dict[str, str]) -> None:
    """Run to the end; each line with `arrived` is one more file. Raises JarsUnavailable with the last words."""
    lines: list[str] = []
    files = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if arrived in line:
                    files += 1
                    on_file(files)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise JarsUnavailable(_reason(lines) or f"ended with code {process.returncode}")


def _reason(lines: Iterable[str]) -> str:
    """The lines of a resolver's output that say why, at most three."""
    marks = ("ERROR", "UNRESOLVED", "not found", "Exception", "FAILED")
    telling = [line for line in lines if any(mark in line for mark in marks)]
    return " | ".join(line.replace("[ERROR]", "").strip()[:300] for line in telling[:3])


def _ivy_jar() -> str | None:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return str(jar)
    return None


def _pom(jars: JarSet) -> str:
    def tags(coordinate: str) -> str:
        names = ("groupId", "artifactId", "version")
        return "".join(f"<{name}>{part}</{name}>" for name, part in zip(names, coordinate.split(":")))

    excluded = "".join(f"<exclusion>{tags(one)}</exclusion>" for one in jars.excluded)
    roots = "".join(f"<dependency>{tags(root)}<exclusions>{excluded}</exclusions></dependency>" for root in jars.roots)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"{tags('local:jars:1')}<packaging>pom</packaging><dependencies>{roots}</dependencies></project>"
    )


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
