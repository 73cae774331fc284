"""Plays a program with this library's source and with Spark's own connector, and compares the outcomes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.admin import KafkaAdminClient

from allocator.testing import ClusterError, LocalCluster, ProducedRecord, produce, wait_until
from allocator.types import TopicPartition
from tests.spark.spark_queries import run_query
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Played", "play"]

PATIENCE_S = 120.0
FORMATS = {"ours": "allocator", "theirs": "kafka"}


@dataclass
class Played:
    """The outcomes of the steps that read, in order."""

    ours: list[Any]
    theirs: list[Any]

    def __str__(self) -> str:
        lines = [
            f"{number}. ours   {one}\n{number}. theirs {two}"
            for number, (one, two) in enumerate(zip(self.ours, self.theirs))
            if one != two
        ]
        return "\n".join(lines).replace("datetime.datetime", "")


def play(program: Program, spark: SparkSession, cluster: LocalCluster, directory: Path) -> Played:
    outcomes: dict[str, list[Any]] = {name: [] for name in FORMATS}
    with ExitStack() as stack:
        world = stack.enter_context(_world(cluster))
        sides = [
            stack.enter_context(_side(name, spark, world, directory / name, program.whole_batches)) for name in FORMATS
        ]
        for step in program.steps:
            change = getattr(world, type(step).__name__.lower(), None)
            if change is not None:
                change(step)
                continue
            for side in sides:
                found = getattr(side, type(step).__name__.lower())(step)
                if found is not None:
                    outcomes[side.name].append(found)
    return Played(**outcomes)


@contextmanager
def _world(cluster: LocalCluster) -> Iterator[_World]:
    world = _World(cluster)
    try:
        yield world
    finally:
        world.close()


class _World:
    """The topics of a program."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.real: dict[str, str] = {}
        self.written = 0
        self._open: Any = None

    def close(self) -> None:
        if self._open is not None:
            self._open.abort_transaction(30)
        for name in self.real.values():
            with suppress(ClusterError):  # the program may have deleted it
                self.cluster.delete_topic(name, timeout_s=0)

    def short(self, text: str) -> str:
        for short, real in self.real.items():
            text = text.replace(real, short)
        return text

    def option(self, value: Any) -> str:
        """Returns the text of an option, with the real names of topics."""
        if isinstance(value, Mapping):
            return json.dumps({self.real[topic]: each for topic, each in value.items()})
        return str(value)

    def topic(self, step: Topic) -> None:
        self.real[step.topic] = f"twin-{uuid.uuid4().hex[:12]}"
        self.cluster.create_topic(self.real[step.topic], step.partitions)

    def add(self, step: Add) -> None:
        records = []
        for partition, count in step.records.items():
            for number in range(count):
                self.written += 1
                value = b"%d" % self.written if self.written % 7 else None
                key = b"k%d" % (self.written % 3) if self.written % 5 else None
                headers = [("h", b"%d" % partition)] if self.written % 2 else []
                records.append(ProducedRecord(key, value, partition, step.ms + 1000 * number, headers))
        produce(self.cluster.bootstrap, self.real[step.topic], records)

    def transact(self, step: Transact) -> None:
        from confluent_kafka import Producer

        name = self.real[step.topic]
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition, count in step.records.items():
            for _ in range(count):
                self.written += 1
                producer.produce(name, b"%d" % self.written, partition=partition)
        producer.flush(30)
        if step.commits is None:
            self._open = producer
        elif step.commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def forget(self, _: Forget) -> None:
        self._open.commit_transaction(30)
        self._open = None

    def retain(self, step: Retain) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        try:
            admin.delete_records({TopicPartition(self.real[step.topic], 0): step.offset})
        finally:
            admin.close()

    def extend(self, step: Extend) -> None:
        self.cluster.add_partitions(self.real[step.topic], step.partitions)

    def delete(self, step: Delete) -> None:
        self.cluster.delete_topic(self.real[step.topic])

    def recreate(self, step: Recreate) -> None:
        self.delete(Delete(step.topic))
        self.cluster.create_topic(self.real[step.topic], step.partitions)


@dataclass
class _Query:
    """A query with its checkpoint. `batches` has the rows of each micro-batch since the last outcome."""

    options: Mapping[str, str]
    checkpoint: str
    batches: dict[int, list[Any]] = field(default_factory=dict)
    running: Any = None
    records: int = 0


@contextmanager
def _side(name: str, spark: SparkSession, world: _World, directory: Path, whole_batches: bool) -> Iterator[_Side]:
    side = _Side(name, spark, world, directory, whole_batches)
    try:
        yield side
    finally:
        side.close()


class _Side:
    """Plays the reading steps with one format."""

    def __init__(self, name: str, spark: SparkSession, world: _World, directory: Path, whole_batches: bool) -> None:
        self.name, self.spark, self.world, self.directory = name, spark, world, directory
        self.whole_batches = whole_batches
        self.frames: dict[str, DataFrame] = {}
        self.queries: dict[str, _Query] = {}

    def close(self) -> None:
        for query in self.queries.values():
            if query.running is not None:
                query.running.stop()
        self.spark.catalog.clearCache()

    # -- batches ------------------------------------------------------------------------------------------------------

    def let(self, step: Let) -> None:
        self.frames[step.name] = self._frame(step.frame)
        self.frames[step.name].createOrReplaceTempView(f"{self.name}_{step.name}")

    def rows(self, step: Rows) -> Any:
        return _outcome(lambda: self._plain(self._frame(step.frame).collect()))

    def count(self, step: Count) -> Any:
        return _outcome(lambda: self._frame(step.frame).count())

    def _frame(self, frame: Any) -> DataFrame:
        if isinstance(frame, str):
            return self.frames[frame]
        if isinstance(frame, Load):
            return self.spark.read.format(FORMATS[self.name]).options(**self._options(frame)).load()
        if isinstance(frame, Filtered):
            return self._frame(frame.frame).where(frame.where)
        if isinstance(frame, United):
            return self._frame(frame.left).union(self._frame(frame.right))
        if isinstance(frame, Joined):
            right = self._frame(frame.right).select(*frame.on, "partition", "value")
            right = right.toDF(*frame.on, "other_partition", "other_value")
            return self._frame(frame.left).select("topic", "partition", "offset", "value").join(right, [*frame.on])
        if isinstance(frame, Grouped):
            return self._frame(frame.frame).groupBy(frame.by).count()
        if isinstance(frame, Cached):
            return self._frame(frame.frame).cache()
        assert isinstance(frame, Sql)
        return self.spark.sql(frame.query.format(**{name: f"{self.name}_{name}" for name in self.frames}))

    def _options(self, step: Load | Stream) -> dict[str, str]:
        topics = {"subscribe": ",".join(self.world.real[each] for each in step.topics.split())} if step.topics else {}
        options = {name: self.world.option(value) for name, value in step.options.items()}
        # Java's client waits half a second for records after the last one; the option means nothing to this library
        quick = {"kafka.fetch.max.wait.ms": "20"}
        return {"kafka.bootstrap.servers": self.world.cluster.bootstrap, **quick, **topics, **options}

    def _plain(self, rows: list[Any]) -> Any:
        """Returns the rows of each partition in their order, and other rows sorted."""
        plain = [tuple(map(self._value, row)) for row in rows]
        if not rows or not {"topic", "partition", "offset", "timestamp"} <= set(rows[0].__fields__):
            return sorted(plain, key=repr)
        found: dict[str, list[Any]] = {}
        for row, values in zip(rows, plain):
            found.setdefault(f"{self.world.short(row.topic)}:{row.partition}", []).append(values)
        return dict(sorted(found.items()))

    def _value(self, value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if isinstance(value, list):
            return [tuple(map(self._value, each)) for each in value]
        return self.world.short(value) if isinstance(value, str) else value

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self, step: Stream) -> None:
        checkpoint = str(self.directory / step.query)
        self.queries[step.query] = _Query(self._options(step), checkpoint)

    def run(self, step: Run) -> Any:
        query = self.queries[step.query]

        def ended(running: Any) -> None:
            assert running.awaitTermination(PATIENCE_S), f"{self.name}: the query runs after {PATIENCE_S:g} s"

        begin = partial(self._begin, query, step.fails_in, availableNow=True)
        return self._result(query, _error(lambda: run_query(begin, ended)), whole=self.whole_batches)

    def start(self, step: Start) -> Any:
        query = self.queries[step.query]
        begin = partial(self._begin, query, step.fails_in, processingTime="0 seconds")
        error = _error(lambda: run_query(begin, then_stop=False))
        return self._result(query, error, whole=self.whole_batches)

    def drain(self, step: Drain) -> Any:
        query = self.queries[step.query]

        def there() -> bool:
            return query.records >= step.records or query.running.exception() is not None

        wait_until(there, PATIENCE_S, lambda: f"{self.name}: {query.records} of {step.records} records", interval_s=0.1)
        error = _error(query.running.processAllAvailable)
        return self._result(query, error, whole=False)

    def observe(self, step: Observe) -> Any:
        query = self.queries[step.query]
        wait_until(lambda: query.running.exception(), PATIENCE_S, f"{self.name}: the query to fail", interval_s=0.1)
        return self._result(query, _error(query.running.awaitTermination), whole=False)

    def stop(self, step: Stop) -> None:
        query = self.queries[step.query]
        query.running.stop()
        query.running = None

    def _begin(self, query: _Query, fails_in: int | None, **trigger: Any) -> Any:
        query.records = 0

        def sink(frame: DataFrame, number: int) -> None:
            rows = frame.collect()
            if number == fails_in:
                raise RuntimeError("the sink fails")
            query.batches[number] = rows
            query.records += len(rows)

        frame = self.spark.readStream.format(FORMATS[self.name]).options(**query.options).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", query.checkpoint)
        query.running = writer.trigger(**trigger).start()
        return query.running

    def _result(self, query: _Query, error: Any, whole: bool) -> dict[str, Any]:
        """Returns the rows since the last outcome, the position of the query, and its error."""
        batches = [self._plain(rows) for _, rows in sorted(query.batches.items()) if rows]
        query.batches.clear()
        if not whole:
            merged: dict[str, list[Any]] = {}
            for batch in batches:
                for name, rows in batch.items():
                    merged.setdefault(name, []).extend(rows)
            batches = [dict(sorted(merged.items()))]
        if error is not None:
            return {"batches": batches, "error": error}
        return {"batches": batches, "position": self._position(query), "error": None}

    def _position(self, query: _Query) -> Any:
        progress = query.running.lastProgress
        if progress is None:
            return None
        end = json.loads(progress["sources"][0]["endOffset"] or "{}")
        return {self.world.short(topic): each for topic, each in sorted(end.items()) if not topic.startswith("@")}


def _outcome(work: Callable[[], Any]) -> Any:
    """Returns the result of `work`, or whether the sink or the source failed. Messages differ, and are not compared."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return work()
    except (PySparkException, Py4JError) as error:
        return "the sink fails" if "the sink fails" in str(error) else "error"


def _error(work: Callable[[], object]) -> Any:
    """Returns None, or what failed."""
    return _outcome(lambda: (work(), None)[1])
