"""`Consumer`: reads the partitions that its group assigns to it, and calls a handler for each record on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from allocator.core.consumer import ConsumerBase, GroupMember, OffsetSink
from allocator.core.settings import names_arguments
from allocator.errors import Closed
from allocator.handlers.settings import HANDLING, HANDLING_DEFAULT
from allocator.types import Ordering, Record, ResultsMode, Workers

if TYPE_CHECKING:
    from allocator.handlers.sinks.member import SinkMember


@names_arguments
class Consumer(ConsumerBase):
    """Reads the partitions that its group assigns to it, and no others.

    Guarantee: the consumer delivers a record, and commits an offset, only while this member owns the partition and its
    lease is valid. It commits delivered records after you request the next batch. After a crash the uncommitted records
    are delivered again, and none is skipped.

        async with Consumer("orders", brokers="b1:9092", group="billing", zookeeper="z1:2181") as consumer:
            async for batch in consumer:
                for record in batch:
                    handle(record.value)

    One task may read at a time. Any task of the same loop may call `commit`, `seek`, `pause` and the like.
    Topics and partitions are accepted one by one or in any collection. A partition may be another client's
    TopicPartition or a plain tuple (topic, number), an offset an int or a tuple (offset, metadata).

    You may also subscribe to topics later, with `subscribe`. Reading before that raises IllegalState.

    The consumer raises an error of one partition, such as OffsetOutOfRange or CorruptRecordError, after the records
    before it. Later calls raise it again, at most every 0.1 s, until its cause ends, or if records are missing, too
    large or corrupt three times in a row, until you seek. Calls in between read the other partitions.

    A partition moves only after the reader has finished the batch of that partition. So a slow reader delays the move
    of one partition, and of no other.

    docs/reference/settings.md lists the settings with their defaults and ranges. Only Python code can pass these
    arguments:

    membership             the group protocol: an object with its own settings (`ZooKeeper`, `Kafka`, `Fixed`, `Kiel`,
                           `OldConsumers`, `Pykafka`), or its name, which uses the defaults
    zookeeper              the ensemble for a ZooKeeper membership that names no ensemble: `zookeeper="z1:2181"` alone
                           means `membership=ZooKeeper("z1:2181")`. Other memberships ignore it
    assignor               a name, "package.module:function", a callable, or several of them in order of preference
    key_deserializer       a function that converts the bytes of a key; it is not called for None
    value_deserializer     a function that converts the bytes of a value. `allocator.schemas.RegistryDeserializer` uses
                           a schema registry
    listener               is notified of assigned and revoked partitions: a `RebalanceListener`, or any object with
                           `on_partitions_assigned` and `on_partitions_revoked`, such as those of other clients. If it
                           has `on_records_lost`, it is also notified of records that the log no longer has
    security               TLS and SASL to Kafka, under kafka-python's names
    sink                   stores the offsets in your database (`allocator.sinks`): the group starts at its offsets. The
                           consumer still commits to Kafka, for tools that show the lag
    transactions           a `Producer`: all offsets are committed in its transactions (`Producer.transaction`)
    """

    def _member_sink(self, sink: OffsetSink, member: GroupMember) -> SinkMember:
        from allocator.handlers.sinks.member import SinkMember  # imported only with a sink

        return SinkMember(sink, member)

    async def process(
        self,
        handler: Callable[[Record], object],
        *,
        ordering: Ordering = HANDLING_DEFAULT["ordering"],
        concurrency: int = HANDLING_DEFAULT["concurrency"],
        workers: Workers = HANDLING_DEFAULT["workers"],
        in_hand_bytes: int = HANDLING_DEFAULT["in_hand_bytes"],
        retries: int = HANDLING_DEFAULT["retries"],
        retry_backoff_s: float = HANDLING_DEFAULT["retry_backoff_s"],
        retry_backoff_max_s: float = HANDLING_DEFAULT["retry_backoff_max_s"],
        retry_limit_s: float | None = HANDLING_DEFAULT["retry_limit_s"],
        retry_on: Iterable[type[BaseException]] | None = HANDLING_DEFAULT["retry_on"],
        dead_letter_on: Iterable[type[BaseException]] | None = HANDLING_DEFAULT["dead_letter_on"],
        skip_on: Iterable[type[BaseException]] | None = HANDLING_DEFAULT["skip_on"],
        stop_on: Iterable[type[BaseException]] | None = HANDLING_DEFAULT["stop_on"],
        retry_topics: Sequence[str] | None = HANDLING_DEFAULT["retry_topics"],
        create_retry_topics: bool = HANDLING_DEFAULT["create_retry_topics"],
        dead_letter_topic: str | None = HANDLING_DEFAULT["dead_letter_topic"],
        results: ResultsMode = HANDLING_DEFAULT["results"],
        drain_timeout_s: float = HANDLING_DEFAULT["drain_timeout_s"],
        commit_interval_s: float = HANDLING_DEFAULT["commit_interval_s"],
    ) -> None:
        """Calls `handler` for every record, until the consumer is closed or this call is cancelled.

        A coroutine function runs on the loop, any other function in a thread. If the function returns, the record is
        done; if it raises, the record has failed. A commit stores exactly the done records: its offset is the lowest
        offset that is not done, and its metadata lists the done records beyond it. So a restart or another member
        repeats only the others. During the call nothing else may read from this consumer or commit, and
        `auto_commit_interval_s` has no effect.

            async with Consumer("orders", brokers="b1:9092", group="billing", zookeeper="z1:2181") as consumer:
                await consumer.process(bill, ordering="key", concurrency=100, dead_letter_topic="orders.failed")

        If the handler returns a `Produce`, or a list of them, these records are written before its record is done. With
        `results="exactly-once"`, they are written in a transaction with its offset, for which the consumer needs
        `transactions`. If a record cannot be written, the handler has failed. An error of the transaction ends the
        call.

        When this call is cancelled, it first drains for at most `drain_timeout_s` and commits. Afterwards the consumer
        still owns its partitions, and reading continues at the first record that is not done. If a call of the handler
        still runs, the next call of `process` waits for it. docs/reference/settings.md lists the settings.

        Raises HandlerFailed if a record can be neither handled nor stored elsewhere, ConfigError for invalid settings
        before any read, and the errors of reading.
        """
        arguments = locals()
        given = {name: arguments[name] for name in HANDLING}
        self._begun()
        if self._closed:
            raise Closed(f"the consumer of group {self.group!r} is closed; create another one")
        self._member.must_not_process()
        from allocator.handlers.handling import given_in_python
        from allocator.handlers.processor import Processor

        called, handling = given_in_python(handler, self._deserialize, given, self._member)
        await Processor(called, handling).run(self)
