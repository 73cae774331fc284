"""The errors of `allocator.spark`, and functions that find them in Spark's exceptions.

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

# matches an error of this library, up to an empty line or a line of Java's stack
_OWN = re.compile(
    r"(?:^|: )(allocator(?:\.\w+)*)\.(\w+): (.*?)(?=\n\s*\n|\n\s*at |\nDriver stacktrace|\Z)", re.MULTILINE | re.DOTALL
)
# the last line of a Python traceback
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
# a data file of an archive, in the error about a file that Spark cannot decode
_DAMAGED = re.compile(
    r"FAILED_READ_FILE\S* [^\n]*?reading file (?:file:/{0,2})?"
    r"(/[^\n]*/topic=[^/\n]+/(?:commit=\d+|_new-\w+)/\S+?\.parquet)"
)
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
# Spark plans on the driver with the Python of the executors
MISSING = "ModuleNotFoundError: No module named 'allocator'"
SHIP = "the Python of spark.pyspark.python needs zk-partition-allocator[spark] (docs/spark.md, On a cluster)"
HIDE = "SPARK_HIDE_TRACEBACK"  # pyspark's workers read this variable


class DataLoss(AllocatorError):
    """The log lacks some of the offsets to read, and `fail_on_data_loss` is true."""


class NothingRead(AllocatorError):
    """A task got no record within `timeout_s`; Spark retries it."""

    retriable = True


class CheckpointMismatch(AllocatorError):
    """The topics in a stream's checkpoint do not match the topics in its options."""


class GroupInUse(AllocatorError):
    """A commit would change the positions of a group that has live members."""


class NothingAssigned(AllocatorError):
    """A bounded query that is a member of a group got no partition in time."""

    retriable = True


class SchemaMismatch(AllocatorError, ValueError):
    """A column does not exist, or has another type."""


class WriteFailed(AllocatorError):
    """Records were not acknowledged."""


class ArchiveCorrupt(AllocatorError):
    """The files in an archive's directory are not those that its runs wrote."""


class ArchiveFull(AllocatorError):
    """The archive's disk, or the disk on which Spark sorts, has no space left."""


class JavaMissing(AllocatorError):
    """Spark found no suitable Java."""


class SparkFailed(AllocatorError):
    """A Spark job failed for a reason outside of this library."""


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Hides the Python stack of an error of this library that leaves the block."""
    try:
        yield
    except AllocatorError as error:
        if HIDE not in os.environ:
            os.environ[HIDE] = "1"
            # outside pyspark's workers the process continues, and later errors must show their stacks
            weakref.finalize(error, os.environ.pop, HIDE, None)
        raise


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Converts an error of Spark that leaves the block to an AllocatorError without a stack."""
    try:
        yield
    except Exception as error:
        own = plain(error)
        if own is None:
            raise
        raise own from error


def plain(error: BaseException) -> Optional[AllocatorError]:
    """Returns the error of this library that caused `error` of pyspark or py4j, otherwise SparkFailed with its first
    line. Returns None if `error` is not from pyspark or py4j.
    """
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    text = _STATE.sub("", str(error))
    if (damage := _damage(text)) is not None:
        return damage
    own = [(kind, said) for where, name, said in _OWN.findall(text) if (kind := _kind(where, name)) is not None]
    if own:
        kind, said = own[-1]  # the last error is the outermost; its causes come before it
        found = kind.__new__(kind)
        Exception.__init__(found, _STATE.sub("", said).strip())
        return found
    return SparkFailed(f"Spark failed: {_why(text) or type(error).__name__}")


@contextlib.contextmanager
def damage_named() -> Iterator[None]:
    """Converts an error of Spark about a damaged file of an archive, which leaves the block, to ArchiveCorrupt."""
    try:
        yield
    except Exception as error:
        damage = _damage(str(error))
        if damage is None or isinstance(error, AllocatorError):
            raise
        raise damage from error


def _damage(text: str) -> Optional[AllocatorError]:
    found = _DAMAGED.search(text)
    if found is None:
        return None
    return ArchiveCorrupt(f"{found[1]} is damaged: Spark cannot decode it; restore it from a backup")


def _why(text: str) -> str:
    if "stopped SparkContext" in text:
        return "its master does not respond, or ended this application; read the log of the master"
    python = _PYTHON.findall(text) if "Traceback" in text else []
    lines = [line.strip(" :\t") for line in text.strip().splitlines()]
    # py4j's first line names only the Java method that failed
    java = [line for line in lines[1:2] if lines[0].startswith("An error occurred while calling")]
    found = ": ".join(python[-1]) if python else next(iter(java or lines), "")
    return f"{found}; {SHIP}" if found == MISSING else found


def _kind(where: str, name: str) -> Optional[type[AllocatorError]]:
    try:
        kind = getattr(import_module(where), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, AllocatorError) else None
