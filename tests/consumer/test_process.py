"""`Consumer.process` on real servers: it commits exactly the done records, and only repeats the others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition

from allocator import Consumer, Record, TopicPartition
from allocator.core.client.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.errors import ConfigError, DeserializationError, HandlerFailed
from allocator.testing import LocalCluster, wait_until, wait_until_async
from allocator.testing.versions import NEWEST
from tests.consumer.real_service import Recording, Service
from tests.migrate.mirroring import delete_records

Topics = Callable[..., str]


VERSIONS = [
    pytest.param("3.9.1", {"membership": "zookeeper"}, id="zookeeper-3.9.1"),
    pytest.param("3.9.1", {"membership": "kafka"}, id="kafka-3.9.1"),
    pytest.param("3.9.1", {"membership": "zookeeper", "offsets": "both"}, id="both-3.9.1"),
    pytest.param("0.8.2.2", {"membership": "zookeeper"}, id="zookeeper-0.8.2.2", marks=pytest.mark.long),
    pytest.param("0.9.0.1", {"membership": "kafka"}, id="kafka-0.9.0.1", marks=pytest.mark.long),
    pytest.param(NEWEST, {"membership": "kafka"}, id=f"kafka-{NEWEST}", marks=pytest.mark.long),
    pytest.param(
        NEWEST, {"membership": "kafka", "group_protocol": "consumer"}, id=f"kip848-{NEWEST}", marks=pytest.mark.long
    ),
]


class Keyed(Service):
    """One topic with 100 records of ten keys in one partition, and consumers of it."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, **options: Any) -> None:
        super().__init__(cluster, topic, group, partitions=1)
        (self.partition,) = self.partitions
        self.options = options
        cluster.produce(topic, [(b"%d" % (n % 10), b"%d" % n) for n in range(100)])

    def member(self) -> Consumer:
        return self.consumer(**self.options)

    async def leave_one_key(self) -> str:
        """Handles all records except those of key 3, and leaves the group. Returns the member's id."""
        done: list[int] = []
        stuck = asyncio.Event()

        async def handle(record: Record) -> None:
            if record.key == b"3":
                await stuck.wait()
            done.append(record.offset)

        async with self.member() as consumer:
            settings = {"concurrency": 20, "drain_timeout_s": 0.01, "commit_interval_s": 0.05}
            work = asyncio.ensure_future(consumer.process(handle, ordering="key", **settings))
            await wait_until_async(lambda: len(done) == 90 or work.done(), 30, "the other keys")
            work.cancel()
            await asyncio.wait({work})
            found = await consumer.committed(self.partition)
            assert (found.offset, found.metadata) == (3, "")
            return consumer.member_id


@pytest.mark.parametrize(("version", "options"), VERSIONS)
async def test_records_done_beyond_a_stuck_record_are_not_handled_again(
    cluster_factory: Any, topic_factory: Topics, group: str, version: str, options: dict[str, Any]
) -> None:
    cluster = cluster_factory(kafka=version)
    service = Keyed(cluster, topic_factory(1, cluster=cluster), group, **options)
    former = await service.leave_one_key()
    again: list[int] = []

    async def handle(record: Record) -> None:
        again.append(record.offset)

    async with service.member() as consumer:
        assert await consumer.former_owners(service.partition) == {service.partition: former}
        work = asyncio.ensure_future(consumer.process(handle, ordering="key", commit_interval_s=0.05))
        await wait_until_async(lambda: len(again) >= 10 or work.done(), 30, "the rest")
        cluster.produce(service.topic, [b"the end"])
        await wait_until_async(lambda: 100 in again or work.done(), 30, "the end")
        assert again == [*range(3, 100, 10), 100]
        await consumer.close()
        await work
    async with service.member() as consumer:
        found = await consumer.committed(service.partition)
        assert found.offset == 101


async def test_done_records_stay_done_when_retention_deletes_the_committed_offset(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    await service.leave_one_key()
    delete_records(kafka_cluster.bootstrap, service.topic, 8)
    again: list[int] = []

    async def handle(record: Record) -> None:
        again.append(record.offset)

    async with service.member() as consumer:
        work = asyncio.ensure_future(consumer.process(handle, ordering="key", commit_interval_s=0.05))
        await wait_until_async(lambda: 93 in again or work.done(), 30, "the rest")
        kafka_cluster.produce(service.topic, [b"the end"])
        await wait_until_async(lambda: 100 in again or work.done(), 30, "the end")
        assert again == [8, *range(13, 100, 10), 100], "only the record at the new start is handled once more"
        await consumer.close()
        await work


@pytest.mark.parametrize("there", ["a marker", "aborted records"])
async def test_a_topic_without_an_id_that_is_created_again_has_no_done_records(
    cluster_factory: Any, topic_factory: Topics, group: str, there: str
) -> None:
    """No record at the committed offset tells that it is another log."""
    cluster = cluster_factory(kafka="1.1.1")
    service = Keyed(cluster, topic_factory(1, cluster=cluster), group, isolation_level="read_committed")
    await service.leave_one_key()
    async with KafkaClient(cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group)
        kept = await offsets.fetch(service.partitions)
        await asyncio.to_thread(cluster.delete_topic, service.topic)
        await asyncio.to_thread(cluster.create_topic, service.topic, 1)
        await asyncio.to_thread(write_transaction, cluster, service.topic, aborted=there == "aborted records")
        cluster.produce(service.topic, [b"new"] * 50)
        await offsets.commit(kept)  # as if the coordinator was away at the deletion
    handled: list[int] = []

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    async with service.member() as consumer:
        work = asyncio.ensure_future(consumer.process(handle, ordering="key", commit_interval_s=0.05))
        end = (await consumer.end_offsets([service.partition]))[service.partition]
        await wait_until_async(lambda: end - 1 in handled or work.done(), 30, "the last record")
        assert handled == list(range(end - 50, end))
        await consumer.close()
        await work


def write_transaction(cluster: LocalCluster, topic: str, *, aborted: bool) -> None:
    """Writes three records in a transaction and its marker at offset 3, or aborted records from offset 3 on.

    The coordinator answers before it writes the marker: only then does the log end for a reader of committed records.
    """
    if aborted:
        cluster.produce(topic, [b"new"] * 3)
    with contextlib.closing(KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic)) as writer:
        writer.init_transactions()
        writer.begin_transaction()
        for sent in [writer.send(topic, b"in a transaction", partition=0) for _ in range(3)]:
            sent.get(30)
        if aborted:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    partition = KafkaTopicPartition(topic, 0)
    with contextlib.closing(
        KafkaConsumer(bootstrap_servers=cluster.bootstrap, isolation_level="read_committed")
    ) as reader:
        wait_until(
            lambda: reader.end_offsets([partition])[partition] == (7 if aborted else 4), 30, "the transaction's marker"
        )


async def test_without_metadata_the_plain_offset_counts_and_a_log_line_says_so(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group, offsets="zookeeper")
    await service.leave_one_key()
    assert [line for line in caplog.messages if "offsets in ZooKeeper have no metadata" in line]
    async with service.member() as consumer:
        record = await consumer.getone(30)
        assert record.offset == 3


@pytest.mark.parametrize(
    ("by_pattern", "settings", "fault"),
    [
        (False, {"dead_letter_topic": "TOPIC"}, "dead_letter_topic with topics: dead letters would be consumed again"),
        (True, {"dead_letter_topic": "TOPIC.x"}, "dead_letter_topic with pattern: dead letters would be consumed"),
        (False, {"retry_backoff_s": 9, "retry_backoff_max_s": 1}, "the first delay exceeds the maximum"),
        (False, {"retry_topics": ["5s"], "dead_letter_topic": "GROUP.retry-5s"}, "'.*retry-5s' is a retry topic"),
    ],
)
async def test_settings_that_contradict_each_other_are_refused(
    kafka_cluster: LocalCluster,
    topic_factory: Topics,
    group: str,
    by_pattern: bool,
    settings: dict[str, Any],
    fault: str,
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    called: list[Record] = []
    for name, value in settings.items():
        if isinstance(value, str):
            settings[name] = value.replace("TOPIC", service.topics[0]).replace("GROUP", group)
    async with service.consumer(**({"pattern": f"{service.topics[0]}.*"} if by_pattern else {})) as consumer:
        with pytest.raises(ConfigError, match=fault):
            await asyncio.wait_for(consumer.process(called.append, **settings), 20)
    assert not called


async def test_a_failing_handler_ends_the_call_and_the_consumer_continues_at_that_record(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)

    def handle(record: Record) -> None:
        if record.offset == 42:
            raise ValueError("never")

    async with service.member() as consumer:
        with pytest.raises(ConfigError, match="concurrency = 0: must be a whole number from 1 to 1024"):
            await consumer.process(handle, concurrency=0)
        with pytest.raises(HandlerFailed, match="offset 42"):
            await consumer.process(handle, retries=0)
        record = await consumer.getone(30)
        assert record.offset == 42


@pytest.mark.parametrize("how", ["close", "stop"])
async def test_a_handler_may_close_its_consumer(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, how: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    handled: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 42:
            await getattr(consumer, how)()
        handled.append(record.offset)

    async with service.member() as consumer:
        await asyncio.wait_for(consumer.process(handle, drain_timeout_s=60), 30)
    assert handled == list(range(len(handled)))
    assert len(handled) > 42
    async with service.member() as successor:
        found = await successor.committed(service.partition)
        assert found is not None
        assert found.offset == len(handled)


async def test_a_further_call_waits_for_a_call_of_the_handler_that_outlasts_the_first(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    inside, release, ended = threading.Event(), threading.Event(), threading.Event()
    early: list[int] = []
    handled: list[int] = []

    def block(record: Record) -> None:
        inside.set()
        release.wait(90)
        ended.set()

    def handle(record: Record) -> None:
        if not ended.is_set():
            early.append(record.offset)
        handled.append(record.offset)

    async with service.member() as consumer:
        first = asyncio.ensure_future(consumer.process(block, drain_timeout_s=0.01))
        await wait_until_async(inside.is_set, 30, "the first call")
        first.cancel()
        await asyncio.wait({first})
        cancelled = asyncio.ensure_future(consumer.process(handle))  # must not end the wait of the next one
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        second = asyncio.ensure_future(consumer.process(handle))
        asyncio.get_running_loop().call_later(1.0, release.set)  # a call that does not wait starts earlier
        await wait_until_async(lambda: 99 in handled or second.done(), 60, "the last record")
        assert not early
        second.cancel()
        await asyncio.wait({second})


async def test_errors_of_deserializers_count_as_errors_of_the_handler(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    values: list[int] = []

    def only_even(data: bytes) -> int:
        if int(data) % 2:
            raise ValueError("odd")
        return int(data)

    async def handle(record: Record) -> None:
        values.append(record.value)

    service.options["value_deserializer"] = only_even
    async with service.member() as consumer:
        work = asyncio.ensure_future(consumer.process(handle, ordering="key", skip_on=[DeserializationError]))
        await wait_until_async(lambda: consumer.measures.records_skipped == 50 or work.done(), 30, "all records")
        await consumer.close()
        await work
    assert sorted(values) == list(range(0, 100, 2))


async def test_a_second_call_of_process_is_rejected_and_the_first_keeps_its_partitions(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    service = Keyed(kafka_cluster, topic_factory(1), group)
    began, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Record) -> None:
        began.set()
        await go_on.wait()
        ended.set()

    consumer = service.member()
    await consumer.start()
    first = asyncio.ensure_future(consumer.process(handle))
    await asyncio.wait_for(began.wait(), 30)
    with pytest.raises(RuntimeError, match="process"):
        await asyncio.wait_for(consumer.process(handle), 30)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.wait({closing}, timeout=1)
    assert not closing.done(), "the partition was released while the handler works"
    go_on.set()
    await asyncio.wait_for(asyncio.gather(closing, first), 30)
    assert ended.is_set()


async def test_a_partition_assigned_again_while_its_handler_drains_continues(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    topic = topic_factory(2)
    busy, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    kafka_cluster.produce(topic, [(None, b"%d" % n, 0) for n in range(10)])
    calls, go_on, cut_off = [], asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        calls.append(record.offset)
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            cut_off.set()
            await go_on.wait()

    options: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "group": group, "membership": "fixed"}
    listener = Recording()
    consumer = Consumer(**options, listener=listener, max_wait_s=0.1)
    consumer.assign([busy])
    async with consumer:
        work = asyncio.ensure_future(consumer.process(handle, drain_timeout_s=0.1))
        await wait_until_async(lambda: calls == [0] or work.done(), 30, "the first call")
        consumer.assign([other])
        await asyncio.wait_for(cut_off.wait(), 30)
        assert busy not in consumer.assignment()
        consumer.assign([busy])
        go_on.set()
        await wait_until_async(lambda: calls[-1] == 9 or work.done(), 30, "the rest")
        assert consumer.assignment() == {busy}
        owned: frozenset[TopicPartition] = frozenset()
        for callback, partitions in listener.calls:
            owned = owned | partitions if callback == "assigned" else owned - partitions
        assert owned == {busy}
        work.cancel()
        await asyncio.wait({work})
        committed = await consumer.committed(busy)
        assert committed.offset == 10
    assert set(calls) == set(range(10))
