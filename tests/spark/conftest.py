"""A Spark session for all tests of this folder."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allocator.testing import JarsUnavailable
from allocator.testing.jars import class_path
from allocator.testing.java import find_java
from bench.server_jars import SPARK_CONNECTOR
from tests.spark.spark_settings import CHEAP, LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sparks_defaults(spark: SparkSession) -> Iterator[None]:
    """Spark plans and compiles queries with its default settings, as in a user's session."""
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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], little memory, no web page, 127.0.0.1 only; `format("allocator")` is registered."""
    pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")
    from allocator.spark import session

    scratch = tmp_path_factory.mktemp("spark")
    conf = {
        **LOCAL,
        **CHEAP,
        "spark.driver.memory": "768m",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    with contextlib.suppress(JarsUnavailable):  # the tests that need the connector say so
        conf["spark.driver.extraClassPath"] = class_path(SPARK_CONNECTOR)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", find_java(oldest=17).home)
        spark = session("tests", "local[2]", conf)
        yield spark
        spark.stop()
