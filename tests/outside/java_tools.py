"""Kafka's own Java programs, of any version: the jars they need, and their names in that version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from allocator.testing.jars import cache_directory, class_path
from allocator.testing.java import find_java
from allocator.testing.versions import KAFKA
from bench.server_jars import KAFKA_TOOLS

QUICK_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def tools_class_path(version: str) -> str:
    """The server's jars and, from 0.10 on, the jars of `kafka-tools`."""
    wanted = [KAFKA[version].jars]
    if version in KAFKA_TOOLS:
        wanted.append(KAFKA_TOOLS[version])
    return os.pathsep.join(map(class_path, wanted))


def main_class(version: str, name: str) -> str:
    """The class of a tool; 3.x moved most of them out of the Scala packages."""
    moved, consumer = number(version) >= (3, 9), "org.apache.kafka.tools.consumer"
    return {
        "VerifiableConsumer": "org.apache.kafka.tools.VerifiableConsumer",
        "VerifiableProducer": "org.apache.kafka.tools.VerifiableProducer",
        "ConsoleConsumer": f"{consumer}.ConsoleConsumer" if moved else "kafka.tools.ConsoleConsumer",
        "GetOffsetShell": "org.apache.kafka.tools.GetOffsetShell" if moved else "kafka.tools.GetOffsetShell",
        "ConsumerOffsetChecker": "kafka.tools.ConsumerOffsetChecker",
        "ConsumerGroupCommand": f"{consumer}.group.ConsumerGroupCommand"
        if moved
        else "kafka.admin.ConsumerGroupCommand",
    }[name]


def command(version: str, name: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a tool of that version. `name` is a tool or the full name of a class."""
    java = find_java(KAFKA[version].oldest_java)
    main = name if "." in name else main_class(version, name)
    return [java.executable, *QUICK_JVM, *options, "-cp", tools_class_path(version), main, *arguments]


@cache
def compiled(source: Path, version: str) -> str:
    """Returns the directory of the class, compiled once into the cache for the client of this version.

    Skips without a compiler.
    """
    java = find_java(KAFKA[version].oldest_java)
    compiler = shutil.which("javac", path=str(Path(java.home) / "bin")) or shutil.which("javac")
    if compiler is None:
        pytest.skip("the Java program of these tests needs `javac`, which is neither beside `java` nor on PATH")
    name = hashlib.sha256(source.read_bytes() + f"{compiler} {version}".encode()).hexdigest()[:16]
    place = cache_directory() / "clients" / f"java-{source.stem.lower()}-{name}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            part = place.with_suffix(".part")
            command = [compiler, "-encoding", "UTF-8", "-cp", tools_class_path(version), "-d", str(part), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert not done.returncode, done.stderr
            part.rename(place)
    return str(place)


def run_tool(version: str, name: str, *arguments: str, timeout_s: float = 60.0) -> str:
    """Runs the tool and returns its standard output. Fails the test if the tool fails."""
    done = subprocess.run(command(version, name, *arguments), capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        pytest.fail(f"{name} {version} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def properties(path: Path, **settings: object) -> str:
    """Writes a properties file; dots replace the underscores in names."""
    path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()))
    return str(path)
