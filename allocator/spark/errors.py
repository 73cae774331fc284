"""The errors of `allocator.spark`, and their recovery from Spark's exceptions, without stack traces.

This module does not import pyspark.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Optional

from allocator.errors import AllocatorError

# an error of this library, with or without a traceback before it: up to an empty line or a line of Java's stack
_OURS = re.compile(
    r"(?:^|: )(allocator[.\w]*)\.(\w+): (.*?)(?=\n\s*\n|\n\s*at |\nDriver stacktrace|\Z)", re.MULTILINE | re.DOTALL
)
# the last line of a Python traceback
_THEIRS = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
# Spark plans on the driver with the Python of the executors
MISSING = "ModuleNotFoundError: No module named 'allocator'"
SHIP = "the Python of spark.pyspark.python needs zk-partition-allocator[spark] (docs/spark.md, On a cluster)"
HIDE = "SPARK_HIDE_TRACEBACK"  # pyspark's workers read it; they end after they reported an error


class DataLoss(AllocatorError):
    """Offsets to read do not exist (any more) and `fail_on_data_loss` is true."""


class NothingRead(AllocatorError):
    """A task got no record within `timeout_s`; Spark retries it."""

    retriable = True


class CheckpointMismatch(AllocatorError):
    """A stream's checkpoint names other topics than its options."""


class GroupInUse(AllocatorError):
    """A commit to a group with live members, whose positions it would change."""


class SchemaMismatch(AllocatorError, ValueError):
    """A column that does not exist, or of another type."""


class WriteFailed(AllocatorError):
    """Records were not acknowledged."""


class ArchiveFull(AllocatorError):
    """The disk of an archive, or the one on which Spark sorts, has no space left."""


class JavaMissing(AllocatorError):
    """Spark found no suitable Java."""


class SparkFailed(AllocatorError):
    """A job failed outside of this library."""


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Hides the Python stack when an error of this library leaves the block."""
    try:
        yield
    except AllocatorError as error:
        if HIDE not in os.environ:
            os.environ[HIDE] = "1"
            # outside of pyspark's workers the process continues, and other errors must keep their stacks
            weakref.finalize(error, os.environ.pop, HIDE, None)
        raise


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raises an error of Spark that leaves the block as an AllocatorError, without its stack."""
    try:
        yield
    except Exception as error:
        told = plain(error)
        if told is None:
            raise
        raise told from error


def plain(error: BaseException) -> Optional[AllocatorError]:
    """The error of this library behind `error` of pyspark or py4j, else SparkFailed with its first line.

    None if `error` is not one of pyspark or py4j.
    """
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    text = _STATE.sub("", str(error))
    ours = [(kind, said) for where, name, said in _OURS.findall(text) if (kind := _kind(where, name)) is not None]
    if ours:
        kind, said = ours[-1]  # its cause comes before it
        found = kind.__new__(kind)
        Exception.__init__(found, _STATE.sub("", said).strip())
        return found
    return SparkFailed(f"Spark failed: {_why(text) or type(error).__name__}")


def _why(text: str) -> str:
    if "stopped SparkContext" in text:
        return "its master does not respond, or ended this application; read the log of the master"
    theirs = _THEIRS.findall(text) if "Traceback" in text else []
    lines = [line.strip(" :\t") for line in text.strip().splitlines()]
    # py4j's first line names only the Java method that failed
    java = [line for line in lines[1:2] if lines[0].startswith("An error occurred while calling")]
    found = ": ".join(theirs[-1]) if theirs else next(iter(java or lines), "")
    return f"{found}; {SHIP}" if found == MISSING else found


def _kind(where: str, name: str) -> Optional[type[AllocatorError]]:
    try:
        kind = getattr(import_module(where), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, AllocatorError) else None
