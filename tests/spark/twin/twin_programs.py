"""The fixed programs."""

from __future__ import annotations

from dataclasses import replace

from tests.spark.twin.twin_language import (
    Add,
    Cached,
    Count,
    Delete,
    Drain,
    Extend,
    Filtered,
    Forget,
    Grouped,
    Joined,
    Let,
    Load,
    Observe,
    Program,
    Recreate,
    Retain,
    Rows,
    Run,
    Sql,
    Start,
    Stop,
    Stream,
    Topic,
    Transact,
    United,
)

__all__ = ["PROGRAMS"]

# six records a second apart in three partitions
THREE = (Topic("a", 3), Add("a", {0: 4, 1: 5, 2: 6}))
ONE = (Topic("a"), Add("a", {0: 10}))
EARLIEST = {"startingOffsets": "earliest"}
LENIENT = {"failOnDataLoss": "false"}

BATCHES = (
    Program("columns", (*THREE, Rows(Load("a")))),
    Program("headers", (*THREE, Rows(Load("a", {"includeHeaders": "true"}))), differs="A record without headers"),
    Program("two topics", (*THREE, Topic("b"), Add("b", {0: 3}), Rows(Load("a b")), Count(Load("a b")))),
    Program(
        "filters of one frame",
        (
            *THREE,
            Let("df", Load("a")),
            Rows(Filtered("df", "partition = 0")),
            Count("df"),
            Rows(Filtered("df", "offset >= 2 and timestamp > timestamp_millis(1700000002000)")),
            Rows(Filtered(Filtered("df", "partition = 1"), "value is not null")),
            Rows("df"),
        ),
    ),
    Program(
        "unions of filters",
        (
            *THREE,
            Let("df", Load("a")),
            Rows(United(Filtered("df", "partition = 0"), Filtered("df", "partition = 1"))),
            Count(United("df", Filtered("df", "offset = 1"))),
            Rows(Grouped(United(Filtered("df", "offset < 2"), "df"), "partition")),
        ),
    ),
    Program(
        "joins of one frame",
        (
            *THREE,
            Let("df", Load("a")),
            Rows(Joined(Filtered("df", "partition = 0"), Filtered("df", "partition = 1"))),
            Rows(Joined("df", Filtered("df", "partition = 2"))),
        ),
    ),
    Program(
        "a view in SQL",
        (
            *THREE,
            Let("df", Load("a")),
            Rows(Sql("select (select count(*) from {df} where partition = 0) x, (select count(*) from {df}) y")),
            Rows(Sql("select * from {df} where offset in (select max(offset) from {df} where partition = 0)")),
        ),
    ),
    Program(
        "a cached frame",
        (
            *THREE,
            Let("df", Load("a")),
            Let("kept", Cached("df")),
            Count("kept"),
            Rows(Filtered("kept", "partition = 0")),
            Add("a", {0: 3}),
            Count("kept"),
            Rows(Filtered("kept", "partition = 0")),
        ),
    ),
    Program(
        "a frame that is used again after new records",
        (*THREE, Let("df", Load("a")), Count("df"), Add("a", {0: 3}), Count("df"), Count(Load("a"))),
        differs="One `load()` has one plan",
    ),
    Program(
        "offsets",
        (
            *THREE,
            Rows(
                Load("a", {"startingOffsets": {"a": {0: 1, 1: 2, 2: -2}}, "endingOffsets": {"a": {0: 3, 1: -1, 2: 4}}})
            ),
            Rows(Load("", {"assign": {"a": [0, 2]}, "startingOffsets": {"a": {0: 2, 2: 5}}})),
            Rows(Load("a", {"startingOffsets": {"a": {0: 1, 1: 1, 2: 1}}, "minPartitions": 9})),
            Rows(Load("a", {"startingOffsets": {"a": {0: 0}}})),
        ),
    ),
    Program(
        "a batch from the end", (*ONE, Rows(Load("a", {"startingOffsets": "latest"}))), differs="A batch from `latest`"
    ),
    Program(
        "times",
        (
            *THREE,
            Rows(Load("a", {"startingTimestamp": 1_700_000_002_500})),
            Rows(Load("a", {"endingTimestamp": 1_700_000_002_000})),
            Rows(Load("a", {"startingOffsetsByTimestamp": {"a": {0: 1_700_000_003_000, 1: 0, 2: 1_700_000_004_000}}})),
            Rows(Load("a", {"startingTimestamp": 1_800_000_000_000})),
            Rows(Load("a", {"startingTimestamp": 1_800_000_000_000, "startingOffsetsByTimestampStrategy": "latest"})),
            Rows(Load("a", {"endingTimestamp": 1_800_000_000_000})),
        ),
    ),
    Program(
        "a start time after the end time",
        (*THREE, Rows(Load("a", {"startingTimestamp": 1_700_000_003_000, "endingTimestamp": 1_700_000_001_000}))),
    ),
    Program(
        "transactions",
        (
            *ONE,
            Transact("a", {0: 3}),
            Transact("a", {0: 2}, commits=False),
            Add("a", {0: 1}),
            Transact("a", {0: 2}, commits=None),
            Rows(Load("a")),
            Rows(Load("a", {"kafka.isolation.level": "read_committed"})),
            Forget(),
            Rows(Load("a", {"kafka.isolation.level": "read_committed"})),
        ),
    ),
    Program(
        "transactions in several partitions",
        (
            *THREE,
            Transact("a", {0: 3, 1: 2, 2: 4}),
            Rows(Load("a")),
            Rows(Load("a", {"startingOffsets": {"a": {0: 6, 1: 7, 2: 9}}})),
        ),
    ),
    Program(
        "retention before a batch",
        (
            *ONE,
            Retain("a", 4),
            Rows(Load("a")),
            Rows(Load("a", {"startingOffsets": {"a": {0: 2}}})),
            Rows(Load("a", {"startingOffsets": {"a": {0: 2}}, **LENIENT})),
        ),
    ),
    Program(
        "offsets beyond the end",
        (
            *ONE,
            Rows(Load("a", {"startingOffsets": {"a": {0: 20}}})),
            Rows(Load("a", {"startingOffsets": {"a": {0: 20}}, **LENIENT})),
        ),
        differs="An offset beyond the end",
    ),
    Program("a topic that does not exist", (*ONE, Delete("a"), Rows(Load("a")))),
    Program(
        "a frame whose topic was extended", (*ONE, Let("df", Load("a")), Extend("a", 3), Add("a", {2: 4}), Rows("df"))
    ),
)

STREAMS = (
    Program("a stream from the start", (*THREE, Stream("q", "a", EARLIEST), Run("q"), Add("a", {1: 3}), Run("q"))),
    Program("a limit", (*ONE, Stream("q", "a", {**EARLIEST, "maxOffsetsPerTrigger": 4}), Run("q"))),
    Program(
        "a first batch that fails",
        (*THREE, Stream("q", "a", EARLIEST), Run("q", fails_in=0), Add("a", {0: 3}), Run("q")),
    ),
    Program(
        "an empty first batch that fails",
        (*THREE, Stream("q", "a"), Run("q", fails_in=0), Add("a", {0: 3, 2: 1}), Run("q"), Add("a", {1: 2}), Run("q")),
    ),
    Program(
        "a first batch that fails, then retention",
        (*ONE, Stream("q", "a", EARLIEST), Run("q", fails_in=0), Retain("a", 6), Run("q")),
    ),
    Program(
        "a later batch that fails",
        (
            *ONE,
            Stream("q", "a", {**EARLIEST, "maxOffsetsPerTrigger": 3}),
            Run("q", fails_in=2),
            Add("a", {0: 4}),
            Run("q"),
        ),
    ),
)

# they restart queries and change topics often
LONG_STREAMS = (
    Program("a stream from the end", (*THREE, Stream("q", "a"), Run("q"), Add("a", {0: 2, 1: 3}), Run("q"))),
    Program(
        "a limit for several partitions",
        (*THREE, Stream("q", "a", {**EARLIEST, "maxOffsetsPerTrigger": 4}), Run("q")),
        whole_batches=False,
    ),
    Program(
        "retention between two runs",
        (*ONE, Stream("q", "a", EARLIEST), Run("q"), Add("a", {0: 10}), Retain("a", 15), Run("q")),
    ),
    Program(
        "retention between two runs, lenient",
        (*ONE, Stream("q", "a", {**EARLIEST, **LENIENT}), Run("q"), Add("a", {0: 10}), Retain("a", 15), Run("q")),
    ),
    Program(
        "an extended topic",
        (
            *ONE,
            Stream("q", "a"),
            Run("q"),
            Extend("a", 3),
            Add("a", {1: 2, 2: 3}),
            Run("q"),
            Add("a", {0: 1, 1: 1}),
            Run("q"),
        ),
    ),
    Program(
        "an extended topic whose batch fails",
        (
            *ONE,
            Stream("q", "a"),
            Run("q"),
            Extend("a", 2),
            Add("a", {1: 5}),
            Run("q", fails_in=1),
            Add("a", {0: 2, 1: 2}),
            Run("q"),
        ),
    ),
    Program(
        "transactions in a stream",
        (
            *ONE,
            Stream("q", "a", {**EARLIEST, "kafka.isolation.level": "read_committed"}),
            Transact("a", {0: 3}),
            Transact("a", {0: 2}, commits=False),
            Run("q"),
            Transact("a", {0: 2}, commits=None),
            Add("a", {0: 2}),
            Run("q"),
            Forget(),
            Run("q"),
        ),
    ),
    Program(
        "a deleted topic",
        (*ONE, Topic("b"), Add("b", {0: 2}), Stream("q", "a b", EARLIEST), Run("q"), Delete("a"), Run("q")),
    ),
    Program(
        "a recreated topic with fewer records",
        (*ONE, Stream("q", "a", EARLIEST), Run("q"), Recreate("a"), Add("a", {0: 3}), Run("q")),
    ),
    Program(
        "a recreated topic with fewer records, lenient",
        (
            *ONE,
            Stream("q", "a", {**EARLIEST, **LENIENT}),
            Run("q"),
            Recreate("a"),
            Add("a", {0: 3}),
            Run("q"),
            Add("a", {0: 2}),
            Run("q"),
        ),
        differs="A recreated topic",
    ),
    Program(
        "a recreated topic with more records",
        (*ONE, Stream("q", "a", EARLIEST), Run("q"), Recreate("a"), Add("a", {0: 15}), Run("q")),
        differs="A recreated topic",
    ),
    Program(
        "a query that runs on",
        (
            *THREE,
            Stream("q", "a", EARLIEST),
            Start("q"),
            Add("a", {0: 3, 1: 2}),
            Drain("q", 20),
            Transact("a", {1: 2}),
            Drain("q", 22),
            Stop("q"),
            Add("a", {2: 1}),
            Start("q"),
        ),
    ),
    Program(
        "a topic that is deleted under a running query",
        (*ONE, Stream("q", "a", EARLIEST), Start("q"), Delete("a"), Observe("q")),
    ),
)

PROGRAMS = (*BATCHES, *STREAMS, *(replace(program, long=True) for program in LONG_STREAMS))
