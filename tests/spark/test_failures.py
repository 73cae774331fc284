"""Recovers errors from Spark's exceptions, with texts of pyspark 4.2."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest

from allocator.errors import AllocatorError, ConfigError
from allocator.spark.errors import HIDE, NothingRead, SparkFailed, in_one_line, plain

if TYPE_CHECKING:
    pass

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "reading.py", line 5, in start
allocator.errors.BrokersUnavailable: nobody answers

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "reading.py", line 7, in start
allocator.spark.errors.NothingRead: orders:1 offsets 0 to 9: nobody answers
"""
FAULTS = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance: Traceback (most recent call last):
  File "options.py", line 3, in read_options
allocator.errors.ConfigError: the settings have 2 faults:
  one
  two
 SQLSTATE: 38000"""
THEIRS = """An exception was thrown:
Traceback (most recent call last):
  File "x.py", line 1
my.own.BadError: 7
\tat org.apache.spark.X(X.scala:1)"""
JAVA = """An error occurred while calling o405.parquet.
: org.apache.spark.SparkException: [CANNOT_MERGE_SCHEMAS] Failed merging schemas
\tat org.apache.spark.X(X.scala:1)"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (TRACEBACK, NothingRead, "orders:1 offsets 0 to 9: nobody answers"),
        (FAULTS, ConfigError, "the settings have 2 faults:\n  one\n  two"),
        (THEIRS, SparkFailed, "Spark failed: my.own.BadError: 7"),
        (
            JAVA,
            SparkFailed,
            "Spark failed: org.apache.spark.SparkException: [CANNOT_MERGE_SCHEMAS] Failed merging schemas",
        ),
        ("[PATH_NOT_FOUND] no /x. SQLSTATE: 42K03", SparkFailed, "Spark failed: [PATH_NOT_FOUND] no /x."),
        (
            JAVA.replace("[CANNOT", "Cannot call methods on a stopped SparkContext. ["),
            SparkFailed,
            "Spark failed: its master does not respond, or ended this application; read the log of the master",
        ),
        (
            THEIRS.replace("my.own.BadError: 7", "ModuleNotFoundError: No module named 'allocator'"),
            SparkFailed,
            "Spark failed: ModuleNotFoundError: No module named 'allocator'; the Python of "
            "spark.pyspark.python needs zk-partition-allocator[spark] (docs/spark.md, On a cluster)",
        ),
        ("", SparkFailed, "Spark failed: Theirs"),
    ],
)
def test_an_error_of_this_library_is_found_in_sparks_text(text: str, kind: type[AllocatorError], said: str) -> None:
    theirs = type("Theirs", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    found = plain(theirs(text))
    assert (type(found), str(found)) == (kind, said)
    assert plain(ValueError(text)) is None


def test_the_process_of_the_user_keeps_its_stacks() -> None:
    def fail() -> None:
        with pytest.raises(ConfigError), in_one_line():
            raise ConfigError("wrong")

    fail()
    gc.collect()
    assert HIDE not in os.environ
