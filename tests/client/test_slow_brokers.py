"""A slow or distant broker returns the same records as a fast one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer as RdKafkaProducer

from allocator import Consumer
from allocator.testing import LocalCluster, ProducedRecord
from allocator.types import TopicPartition
from tests.client.slow_listeners import SlowListeners, slow_listeners
from tests.joining import joined
from tests.kafka_versions import detected, on_versions

pytestmark = [pytest.mark.servers, pytest.mark.deadline(900), pytest.mark.timeout(1200)]

LONG_DELAYS = [(0.3, "both"), (1.0, "to_client"), (1.5, "both"), (3.0, "to_client"), (3.0, "to_server")]


class Filled(NamedTuple):
    listeners: SlowListeners
    topic: str
    kafka: str

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.kafka.split(".")))


@pytest.fixture(scope="module", params=on_versions("3.9.1", without=["4.1.1"]))
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A topic with keys, timestamps, headers, a committed and two aborted transactions, if the version has them."""
    with slow_listeners(request.param, tmp_path_factory.mktemp("listeners")) as listeners:
        it = Filled(listeners, "filled", request.param)
        listeners.cluster.create_topic(it.topic, 2)
        produced = [
            ProducedRecord(
                b"k%d" % n,
                b"value %d" % n,
                n % 2,
                1_700_000_000_000 + n,
                [("n", b"%d" % n), ("none", None)] if it.version >= (0, 11) else [],
            )
            for n in range(100)
        ]
        listeners.cluster.produce(it.topic, produced)
        if it.version >= (0, 11):
            transactions(listeners.cluster, it.topic)
        yield it


def transactions(cluster: LocalCluster, topic: str) -> None:
    producer = RdKafkaProducer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "writer", "linger.ms": 0})
    producer.init_transactions(60)
    for number, commit in enumerate((False, True, False)):
        producer.begin_transaction()
        for n in range(20):
            value = b"committed" if commit else b"aborted"
            producer.produce(topic, value, b"%d of %d" % (n, number), partition=n % 2)
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)


def warnings_of_old_brokers(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if " is Kafka 0." in text]


async def read(consumer: Consumer, topic: str) -> dict[int, list[Any]]:
    """Reads every record from the start to the end."""
    found: dict[int, list[Any]] = {0: [], 1: []}
    parts = [TopicPartition(topic, n) for n in found]
    for tp in parts:
        consumer.seek(tp, 0)
    ends = await consumer.end_offsets(parts)
    while [tp for tp in parts if await consumer.position(tp) < ends[tp]]:
        batch = await consumer.getbatch(5.0)
        for r in batch or ():
            found[r.partition].append((r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers))
    return found


def consumer(topic: str, isolation: Any = "read_committed", **where: Any) -> Consumer:
    return Consumer(
        **joined(
            group=None,
            membership="fixed",
            partitions=[TopicPartition(topic, n) for n in range(2)],
            isolation_level=isolation,
            connect_timeout_s=120.0,
            **where,
        )
    )


async def read_twice(it: Filled, listener: str, again: Callable[[], Any]) -> list[Any]:
    """Reads over new connections, and over those that replace them after `again`."""
    async with consumer(it.topic, **it.listeners.settings(listener)) as reader:
        first = await read(reader, it.topic)
        await again()
        return [first, await read(reader, it.topic)]


@pytest.mark.parametrize(
    ("delay_s", "direction"),
    [(0.6, "to_client"), *(pytest.param(*each, marks=pytest.mark.long) for each in LONG_DELAYS)],
)
async def test_a_slow_broker_is_read_like_a_fast_one(
    filled: Filled, delay_s: float, direction: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Records, headers, timestamps and aborted ranges, over each listener, with new and with replaced connections."""
    listeners = filled.listeners
    listeners.delay(0.0)
    async with consumer(filled.topic, **listeners.settings("plain")) as reader:
        expected = await read(reader, filled.topic)
    values = {row[4] for rows in expected.values() for row in rows}
    assert b"aborted" not in values
    if filled.version >= (0, 11):
        assert b"committed" in values
        async with consumer(filled.topic, "read_uncommitted", **listeners.settings("plain")) as reader:
            assert b"aborted" in {row[4] for rows in (await read(reader, filled.topic)).values() for row in rows}
        assert [row[5] for row in expected[0]][:1] == [[("n", b"0"), ("none", None)]]
    caplog.clear()
    listeners.delay(delay_s, direction)
    waiting = len(listeners.names)
    reset = asyncio.Event()

    async def again() -> None:
        """Replaces the connections after all readers read once."""
        nonlocal waiting
        waiting -= 1
        if not waiting:
            listeners.reset()
            reset.set()
        await reset.wait()

    reads = await asyncio.gather(*(read_twice(filled, listener, again) for listener in listeners.names))
    for listener, found in zip(listeners.names, reads):
        assert found == [expected, expected], listener
    name = detected(filled.kafka)
    # a process warns once of each address and version, so this names a slow broker that is taken for another version
    assert {text.partition(" is Kafka ")[2].partition(":")[0] for text in warnings_of_old_brokers(caplog)} <= (
        {".".join(map(str, name))} if name < (0, 10) else set()
    )
