"""Pickles for executors, in a Python without this package; without Spark and servers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

import pyarrow as pa
from pyspark import cloudpickle

from allocator.spark.options import STREAM, WRITE, read_options
from allocator.spark.sink.sink import BatchWriter
from allocator.spark.source.source import register
from allocator.spark.source.stream import StreamReader

CORES = "spark.default.parallelism"
COLUMNS = pa.schema([("value", pa.binary())])
VALUE = SimpleNamespace(name="value", dataType=SimpleNamespace(simpleString=lambda: "binary"))
ROWS = SimpleNamespace(
    fields=[VALUE, SimpleNamespace(name="topic", dataType=SimpleNamespace(simpleString=lambda: "string"))]
)


def options(use: str) -> Any:
    return read_options({"brokers": "b:1", **({} if use == WRITE else {"topics": "t"})}, use)


def source() -> Any:
    """The source as `register` makes it; Spark ships it with each reader."""
    made: list[Any] = []

    class Session:
        conf = SimpleNamespace(set=lambda *_: None, get=lambda name, default=None: {CORES: "3"}.get(name, default))
        sparkContext = SimpleNamespace(master="spark://host", defaultParallelism=3)
        dataSource = SimpleNamespace(register=made.append)

    register(Session())
    return made[0]({"brokers": "b:1", "topics": "t"})


SHIPPED = {
    "source": source,
    "readStream": lambda: StreamReader(options(STREAM), COLUMNS),
    "write": lambda: BatchWriter(options(WRITE), ROWS),
}


@pytest.mark.parametrize("use", SHIPPED)
def test_an_executor_without_the_package_reports_what_to_ship(use: str) -> None:
    made = SHIPPED[use]()
    for dumps in (cloudpickle.dumps, pickle.dumps):
        again = pickle.loads(dumps(made))
        assert again.options == made.options
        assert getattr(again, "_cores", None) == getattr(made, "_cores", None)
    script = (
        "import pickle, sys\n"
        "sys.modules['allocator'] = None  # as if it were not installed\n"
        "pickle.load(sys.stdin.buffer)\n"
    )
    failed = subprocess.run([sys.executable, "-c", script], input=cloudpickle.dumps(made), capture_output=True)
    last = failed.stderr.decode().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: "), last
    assert f"executors run {sys.executable} (on " in last
    assert "Install zk-partition-allocator[spark] in that Python, or ship an environment that has it" in last
