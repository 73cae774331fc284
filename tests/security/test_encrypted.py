"""A group over TLS and SASL, to real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from joining import joined
from secrets_and_doors import DIGEST_OPTIONS, PASSWORDS, Secured

from allocator import Consumer
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import ConfigError

Topics = Callable[..., str]


async def read_all(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        record = await consumer.getone(30)
        assert record is not None, f"{len(values)} of {count}"
        values.append(record.value)
    return values


@pytest.mark.parametrize(
    ("door", "mechanism"),
    [("SSL", ""), *(("SASL_SSL", mechanism) for mechanism in PASSWORDS), ("SASL_PLAINTEXT", "SCRAM-SHA-256")],
)
async def test_a_group_reads_and_commits(
    secured: Secured, topic_factory: Topics, group: str, door: str, mechanism: str
) -> None:
    topic = topic_factory(2, cluster=secured.cluster)
    await asyncio.to_thread(secured.cluster.produce, topic, [b"%d" % number for number in range(10)])
    settings = {
        "brokers": secured.brokers(door),
        "zookeeper": secured.zookeeper,
        "group": group,
        "security": secured.kafka(door, mechanism),
        "zookeeper_options": {**secured.zookeeper_options(), **DIGEST_OPTIONS},
    }
    async with Consumer(topic, **joined(**settings)) as consumer:
        assert sorted(await read_all(consumer, 10)) == [b"%d" % number for number in range(10)]
        await consumer.commit()
    await asyncio.to_thread(secured.cluster.produce, topic, [b"more"])
    async with Consumer(topic, **joined(**settings)) as consumer:
        assert await read_all(consumer, 1) == [b"more"]


async def test_files_that_cannot_be_read_are_named(secured: Secured) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        await ZooKeeperClient(secured.zookeeper, options={"use_ssl": True, "ca": "/nowhere/ca.pem"}).connect(5)
    with pytest.raises(ConfigError, match=r"client\.key"):
        await ZooKeeperClient(
            secured.zookeeper, options={**secured.zookeeper_options(), "keyfile_password": "wrong"}
        ).connect(5)
