"""Random programs. The same seed makes the same program.

They leave out what the table in docs/spark.md lists, because there the outcomes differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.spark.twin.twin_language import (
    Add,
    Cached,
    Count,
    Extend,
    Filtered,
    Frame,
    Grouped,
    Joined,
    Let,
    Load,
    Program,
    Retain,
    Rows,
    Run,
    Sql,
    Step,
    Stream,
    Topic,
    Transact,
    United,
)

__all__ = ["random_program"]

CONDITIONS = (
    "partition = 0",
    "partition in (1, 2)",
    "offset >= 3",
    "offset between 1 and 4",
    "value is null",
    "timestamp >= timestamp_millis(1700000002000)",
    "cast(value as int) % 2 = 0",
)
COMMITTED = {"kafka.isolation.level": "read_committed"}


def random_program(seed: int) -> Program:
    maker = _Maker(random.Random(seed))
    return maker.batches(seed) if seed % 2 else maker.stream(seed)


class _Maker:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.ends: dict[int, int] = {}  # partition of topic a -> end
        self.first = 0  # of partition 0
        self.steps: list[Step] = []

    def _topic(self) -> None:
        partitions = self.dice.randint(1, 3)
        self.ends = dict.fromkeys(range(partitions), 0)
        self.steps.append(Topic("a", partitions))
        self._add()

    # -- changes ------------------------------------------------------------------------------------------------------

    def _some(self) -> dict[int, int]:
        chosen = self.dice.sample(sorted(self.ends), self.dice.randint(1, len(self.ends)))
        return {partition: self.dice.randint(1, 8) for partition in sorted(chosen)}

    def _add(self) -> None:
        records = self._some()
        self.steps.append(Add("a", records))
        for partition, count in records.items():
            self.ends[partition] += count

    def _transact(self) -> None:
        records = self._some()
        self.steps.append(Transact("a", records, commits=self.dice.random() < 0.6))
        for partition, count in records.items():
            self.ends[partition] += count + 1  # and a marker

    def _retain(self) -> None:
        self.first = self.dice.randint(self.first, self.ends[0])
        self.steps.append(Retain("a", self.first))

    def _extend(self) -> None:
        if len(self.ends) < 5:
            self.ends[len(self.ends)] = 0
            self.steps.append(Extend("a", len(self.ends)))

    def _change(self, *changes: Callable[[], None]) -> None:
        self.dice.choice((self._add, self._add, self._transact, *changes))()

    # -- batches ------------------------------------------------------------------------------------------------------

    def batches(self, seed: int) -> Program:
        self._topic()
        for _ in range(self.dice.randint(1, 3)):
            for _ in range(self.dice.randint(0, 2)):
                self._change(self._retain, self._extend)
            # a frame is used only as long as the topic stays the same: each `load()` has one plan
            self.steps.append(Let("df", Load("a", self._options())))
            for _ in range(self.dice.randint(1, 4)):
                self.steps.append(self.dice.choice((Rows, Rows, Count))(self._frame(2)))
        return Program(f"batches {seed}", tuple(self.steps))

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.dice.random() < 0.4:
            firsts = {partition: self.first if partition == 0 else 0 for partition in self.ends}
            starts = {partition: self.dice.randint(firsts[partition], end) for partition, end in self.ends.items()}
            options["startingOffsets"] = {"a": starts}
            if self.dice.random() < 0.5:
                ends = {partition: self.dice.randint(starts[partition], end) for partition, end in self.ends.items()}
                options["endingOffsets"] = {"a": ends}
        if self.dice.random() < 0.3:
            options.update(COMMITTED)
        if self.dice.random() < 0.3:
            options["minPartitions"] = self.dice.randint(1, 9)
        return options

    def _frame(self, depth: int) -> Frame:
        if depth == 0 or self.dice.random() < 0.2:
            return "df"
        kind = self.dice.randrange(6)
        if kind == 0:
            return United(self._frame(depth - 1), self._frame(depth - 1))
        if kind == 1:
            # a join of frames with other columns has no meaning
            return Joined(Filtered("df", self._condition()), Filtered("df", self._condition()))
        if kind == 2:
            return Grouped("df", self.dice.choice(("partition", "value", "timestampType")))
        if kind == 3:
            return Cached(Filtered("df", self._condition()))
        if kind == 4:
            where = self._condition()
            return Sql(f"select (select count(*) from {{df}} where {where}) x, (select max(offset) from {{df}}) y")
        return Filtered("df", self._condition())

    def _condition(self) -> str:
        return self.dice.choice(CONDITIONS)

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self, seed: int) -> Program:
        self._topic()
        options: dict[str, Any] = {}
        start = self.dice.choice(("earliest", "earliest", "latest", "json"))
        if start == "json":
            options["startingOffsets"] = {
                "a": {p: self.dice.choice((-2, -1, end // 2)) for p, end in self.ends.items()}
            }
        else:
            options["startingOffsets"] = start
        if self.dice.random() < 0.3:
            options["failOnDataLoss"] = "false"
        if self.dice.random() < 0.4:
            options.update(COMMITTED)
        limited = self.dice.random() < 0.5
        if limited:
            options["maxOffsetsPerTrigger"] = self.dice.randint(3, 9)
        self.steps.append(Stream("q", "a", options))
        extended = len(self.ends) > 1
        for done in range(self.dice.randint(2, 4)):
            fails = self.dice.random() < 0.4 and not (limited and extended)
            self.steps.append(Run("q", done + self.dice.randint(0, 2) if fails else None))
            for _ in range(self.dice.randint(0, 2)):
                self._change(*(() if limited else (self._extend,)), self._retain)
        self.steps.append(Run("q"))
        return Program(f"stream {seed}", tuple(self.steps), whole_batches=not (limited and extended))
