"""A Spark session for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_classes import class_archive
from spark_settings import CHEAP, JVM

from allocator.testing.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sparks_defaults(spark: SparkSession) -> Iterator[None]:
    """Queries are planned and compiled as in a session of a user."""
    for name in CHEAP:
        spark.conf.unset(name)
    yield
    for name, value in CHEAP.items():
        spark.conf.set(name, value)


@pytest.fixture
def unshared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path that leads each process to its own working directory."""
    name = f"unshared-{uuid.uuid4().hex}"
    elsewhere = Path.cwd() / name
    monkeypatch.chdir(tmp_path)
    yield Path("/proc/self/cwd") / name
    shutil.rmtree(elsewhere, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], little memory, no web page, 127.0.0.1 only; `format("allocator")` is registered."""
    pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")
    from allocator.spark import session

    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = find_java(oldest=17).home
    scratch = tmp_path_factory.mktemp("spark")
    tests = sum("spark" in getattr(item, "fixturenames", ()) for item in request.session.items)
    with class_archive(tests) as options:
        made = session(
            "tests",
            "local[2]",
            {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "768m",
                "spark.driver.extraJavaOptions": f"{JVM} {options}",
                "spark.local.dir": str(scratch),
                "spark.sql.shuffle.partitions": "1",
                **CHEAP,
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            },
        )
        yield made
        gateway = made.sparkContext._gateway
        made.stop()
        # Java ends when its input does, and writes the archive then
        gateway.proc.stdin.close()
        gateway.proc.wait()
    if before is None:
        del os.environ["JAVA_HOME"]
    else:
        os.environ["JAVA_HOME"] = before
