"""`produce`, read back by kafka-python's consumer, which has another decoder."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from allocator.testing import ClusterError, ProducedRecord, produce, wait_until


def consumed(cluster, topic, count=None):
    """The first `count` records of all partitions, or all that are there now; in order within each."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        partitions = [TopicPartition(topic, partition) for partition in cluster.metadata()[0].topics[topic]]
        consumer.assign(partitions)
        if count is None:
            count = sum(consumer.end_offsets(partitions).values())
        records = []

        def poll():
            for more in consumer.poll(timeout_ms=200).values():
                records.extend(more)
            return len(records) >= count

        wait_until(poll, 30, lambda: f"{count} records of {topic}, not {len(records)}")
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def test_every_field_of_a_record_is_read_back(kafka_cluster, topic_factory):
    topic = topic_factory(partitions=2)
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    sent = [
        ProducedRecord(b"key", b"value", 1, 1_600_000_000_000, headers),
        ProducedRecord(None, None, 1, 1_500_000_000_000),
        ProducedRecord(b"", b"", 0, 1_700_000_000_001),
    ]
    assert kafka_cluster.produce(topic, sent) == {0: 1, 1: 2}
    empty, full, nothing = consumed(kafka_cluster, topic, 3)
    assert (full.key, full.value, full.timestamp, full.headers) == (b"key", b"value", 1_600_000_000_000, headers)
    assert (nothing.key, nothing.value, nothing.timestamp) == (None, None, 1_500_000_000_000)
    assert (empty.key, empty.value, empty.timestamp, empty.offset) == (b"", b"", 1_700_000_000_001, 0)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_new_broker_accepts_all_formats(kafka_cluster, topic_factory, magic, compression):
    topic = topic_factory(config={"message.format.version": "0.9.0"} if magic == 0 else None)
    values = [b"%d" % number for number in range(1000)]
    assert kafka_cluster.produce(topic, values, magic=magic, compression=compression, batch_records=300) == {0: 1000}
    got = consumed(kafka_cluster, topic, 1000)
    assert [record.value for record in got] == values
    assert [record.offset for record in got] == list(range(1000))


def test_keys_choose_the_partition_that_kafka_python_would(kafka_cluster, topic_factory):
    from kafka.partitioner import DefaultPartitioner

    topic = topic_factory(partitions=5)
    keys = [b"key-%d" % number for number in range(50)]
    kafka_cluster.produce(topic, [(key, None) for key in keys])

    def five(name):
        return set(range(5))

    known = SimpleNamespace(topics=lambda: {topic}, partitions_for_topic=five, available_partitions_for_topic=five)
    expected = {key: DefaultPartitioner().partition(topic, key, key, None, None, known) for key in keys}
    assert {record.key: record.partition for record in consumed(kafka_cluster, topic, 50)} == expected


def test_records_wait_for_a_broker_that_comes_back(kafka_cluster, topic_factory):
    from concurrent.futures import ThreadPoolExecutor

    topic = topic_factory()
    taken = []

    def values():
        for number in range(20_000):
            taken.append(number)
            yield b"%d" % number

    with ThreadPoolExecutor(1) as pool:
        counts = pool.submit(kafka_cluster.produce, topic, values(), batch_records=500)
        wait_until(lambda: len(taken) > 1500, 30, "the first batches")
        kafka_cluster.brokers[0].kill()
        kafka_cluster.brokers[0].start()
        assert counts.result(60) == {0: 20_000}
    # records that the broker stored but could not acknowledge are there twice
    got = [int(record.value) for record in consumed(kafka_cluster, topic)]
    assert set(got) == set(range(20_000))


def test_a_refused_record_is_reported_with_its_partition(kafka_cluster, topic_factory):
    topic = topic_factory(config={"max.message.bytes": "1000"})
    with pytest.raises(ClusterError, match=rf"refused '{topic}':0 with error 10"):
        kafka_cluster.produce(topic, [b"x" * 2000])


def test_a_missing_topic_partition_or_broker_is_named(kafka_cluster, topic_factory):
    with pytest.raises(ClusterError, match="does not know the topic 'missing'"):
        kafka_cluster.produce("missing", [b"x"], timeout_s=0.2)
    with pytest.raises(ClusterError, match=r"record 0: .* has no partition 7"):
        kafka_cluster.produce(topic_factory(), [(None, b"x", 7)])
    with pytest.raises(ClusterError, match=r"no broker of 127\.0\.0\.1:1 can be reached"):
        produce("127.0.0.1:1", "t", [b"x"])


@pytest.mark.long
def test_a_slow_broker_is_not_taken_for_an_old_one(kafka_cluster, topic_factory, fault_proxy):
    """Records in the format of 0.9 would have no timestamps and no headers."""
    topic = topic_factory()
    proxy = fault_proxy(kafka_cluster.brokers[0].port)
    proxy.latency(3.5, direction="to_client")  # of the bootstrap address only
    produce(proxy.address, topic, [ProducedRecord(b"k", b"v", 0, 7, [("h", b"x")])])
    (record,) = consumed(kafka_cluster, topic)
    assert (record.timestamp, record.headers) == (7, [("h", b"x")])
