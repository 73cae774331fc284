"""Programs for Spark that are played with this library's source and with Spark's own connector on the same topics.

A program is a list of steps. Some change the topics, once for both sides. Others read them, on each side with the same
options, those of the connector. Each such step yields an outcome, and the outcomes of both sides must be equal: rows,
their order in a partition, the offsets at which batches end, and whether there was an error.

Topics and frames have short names within a program. Options are Python values: a dict becomes JSON, and short names of
topics in it become the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

__all__ = [
    "Add",
    "Cached",
    "Count",
    "Delete",
    "Drain",
    "Extend",
    "Filtered",
    "Forget",
    "Frame",
    "Grouped",
    "Joined",
    "Let",
    "Load",
    "Observe",
    "Program",
    "Recreate",
    "Retain",
    "Rows",
    "Run",
    "Sql",
    "Start",
    "Step",
    "Stop",
    "Stream",
    "Topic",
    "Transact",
    "United",
]

# -- what happens to topics --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Topic:
    """Creates a topic."""

    topic: str
    partitions: int = 1


@dataclass(frozen=True)
class Add:
    """Writes `records` (partition -> number), with times from `ms` on, one second apart in each partition."""

    topic: str
    records: Mapping[int, int]
    ms: int = 1_700_000_000_000


@dataclass(frozen=True)
class Transact:
    """Writes `records` in a transaction and ends it: True commits, False aborts, None leaves it open until `Forget`."""

    topic: str
    records: Mapping[int, int]
    commits: Optional[bool] = True


@dataclass(frozen=True)
class Forget:
    """Commits the transaction that was left open."""


@dataclass(frozen=True)
class Retain:
    """Deletes the records of partition 0 before `offset`, as retention does."""

    topic: str
    offset: int


@dataclass(frozen=True)
class Extend:
    topic: str
    partitions: int


@dataclass(frozen=True)
class Delete:
    topic: str


@dataclass(frozen=True)
class Recreate:
    topic: str
    partitions: int = 1


Change = Union[Topic, Add, Transact, Forget, Retain, Extend, Delete, Recreate]

# -- batches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """`spark.read` of topics; `topics` is the option `subscribe` unless the options choose the topics."""

    topics: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Filtered:
    frame: Frame
    where: str


@dataclass(frozen=True)
class United:
    left: Frame
    right: Frame


@dataclass(frozen=True)
class Joined:
    """Pairs of records with equal values in the columns `on`."""

    left: Frame
    right: Frame
    on: tuple[str, ...] = ("offset",)


@dataclass(frozen=True)
class Grouped:
    """The number of records by `by`."""

    frame: Frame
    by: str


@dataclass(frozen=True)
class Cached:
    frame: Frame


@dataclass(frozen=True)
class Sql:
    """The result of a query in which `{name}` stands for a frame."""

    query: str


# a name that `Let` gave, or an expression
Frame = Union[str, Load, Filtered, United, Joined, Grouped, Cached, Sql]


@dataclass(frozen=True)
class Let:
    """Gives a frame a name: each use is a use of the same DataFrame."""

    name: str
    frame: Frame


@dataclass(frozen=True)
class Rows:
    """Collects a frame."""

    frame: Frame


@dataclass(frozen=True)
class Count:
    frame: Frame


# -- streams -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """Declares a query with its own checkpoint, and a sink that keeps the rows of each micro-batch."""

    query: str
    topics: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Runs a query with `Trigger.AvailableNow` until it ends. The sink fails in the micro-batch `fails_in`."""

    query: str
    fails_in: Optional[int] = None


@dataclass(frozen=True)
class Start:
    """Starts a query that runs on, and waits until it has read what there is."""

    query: str
    fails_in: Optional[int] = None


@dataclass(frozen=True)
class Drain:
    """Waits until the running query has read `records` in all since its start."""

    query: str
    records: int


@dataclass(frozen=True)
class Observe:
    """Waits until the running query has failed."""

    query: str


@dataclass(frozen=True)
class Stop:
    query: str


Step = Union[Change, Let, Rows, Count, Stream, Run, Start, Drain, Observe, Stop]


@dataclass(frozen=True)
class Program:
    """`differs`: the start of the row in the table of docs/spark.md that explains why the outcomes differ.

    `whole_batches` is False if the sides may divide the records among micro-batches differently. `long`: `make test`
    leaves it out.
    """

    name: str
    steps: tuple[Step, ...]
    differs: Optional[str] = None
    whole_batches: bool = True
    long: bool = False
