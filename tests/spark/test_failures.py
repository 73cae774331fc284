"""Recovers errors from Spark's exceptions, with texts of pyspark 4.2."""

from __future__ import annotations

import gc
import os
import re
from typing import TYPE_CHECKING

import pytest

from allocator.errors import AllocatorError, ConfigError
from allocator.spark.errors import HIDE, NothingRead, SparkFailed, in_one_line, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


ONE_LINE = """[PYTHON_DATA_SOURCE_ERROR] Failed to create it: allocator.errors.ConfigError: the settings have a fault:
  one
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (TRACEBACK, NothingRead, "orders:1 offsets 0 to 9: nobody answers"),
        (
            TRACEBACK + "\n\tat org.X(Y.scala:1)\nCaused by: x: " + TRACEBACK,
            NothingRead,
            "orders:1 offsets 0 to 9: nobody answers",
        ),
        (ONE_LINE, ConfigError, "the settings have a fault:\n  one"),
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
def test_an_error_of_ours_comes_out_of_sparks_text(text: str, kind: type[AllocatorError], said: str) -> None:
    theirs = type("Theirs", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    found = plain(theirs(text))
    assert (type(found), str(found)) == (kind, said)


def test_what_is_not_sparks_is_left_as_it_is() -> None:
    assert plain(ValueError(TRACEBACK)) is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topcs": "t"}, "topcs is not an option; did you mean topics?"),
        ({"topics": "t", "starting_offsets": "erliest"}, "starting_offsets = erliest: must be earliest, latest,"),
        ({"topics": "t", "timeout_s": "1"}, "no Kafka broker answered within 1 s: 127.0.0.1:1 (Connection refused)"),
    ],
)
def test_a_wrong_option_is_named_without_a_stack(spark: SparkSession, wrong: dict[str, str], told: str) -> None:
    reader = spark.read.format("allocator").options(brokers="127.0.0.1:1", **wrong)
    with pytest.raises(Exception, match=re.escape(told)) as caught:
        reader.load().collect()
    assert "Traceback" not in str(caught.value)


def test_the_process_of_the_user_keeps_its_stacks() -> None:
    def fail() -> None:
        with pytest.raises(ConfigError), in_one_line():
            raise ConfigError("wrong")

    fail()
    gc.collect()
    assert HIDE not in os.environ
