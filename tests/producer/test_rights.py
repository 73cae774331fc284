"""A user without a right is told which one and on what. Other topics go on, and the producer does once it has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.admin import ACLOperation, ResourceType

from allocator import Consumer, DeliveryFailed, Producer
from allocator.errors import AllocatorError, BrokerError, TopicAuthorizationFailed
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from tests.secured import USER, by_sasl, denied, with_an_authorizer

TopicFactory = Callable[..., str]
VERSIONS = ["2.8.2", *(pytest.param(each, marks=pytest.mark.long) for each in ("1.1.1", "3.9.1", NEWEST))]


async def until_refused(send: Callable[[], Any]) -> AllocatorError:
    """Returns the error of the call, once the brokers know the rule."""
    errors: list[AllocatorError] = []

    async def refused() -> bool:
        try:
            await send()
        except AllocatorError as error:
            errors.append(error)
        return bool(errors)

    await wait_until_async(refused, 30, "the refusal")
    return errors[0]


async def until_done(send: Callable[[], Any]) -> None:
    async def done() -> bool:
        try:
            await send()
        except AllocatorError:
            return False
        return True

    await wait_until_async(done, 30, "the right")


async def topics_of(cluster: LocalCluster, topic_factory: TopicFactory, count: int) -> list[str]:
    return [await asyncio.to_thread(topic_factory, 1, 1, None, cluster) for _ in range(count)]


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_topic_that_a_user_may_not_write_is_named_at_once(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    cluster = await with_an_authorizer(cluster_factory, kafka)
    secret, free = await topics_of(cluster, topic_factory, 2)
    async with Producer(brokers=by_sasl(cluster), security=USER) as producer:
        await producer.send_and_wait(secret, b"before")
        async with denied(cluster, ResourceType.TOPIC, secret, ACLOperation.WRITE):
            error = await until_refused(lambda: producer.send_and_wait(secret, b"v"))
            assert isinstance(error, DeliveryFailed)
            assert f"{secret}:0" in str(error)
            assert "grant" in str(error)
            assert (error.retriable, error.maybe_written) == (False, False)
            await producer.send_and_wait(free, b"v")
        await until_done(lambda: producer.send_and_wait(secret, b"after"))
        async with (
            denied(cluster, ResourceType.TOPIC, secret),
            Producer(brokers=by_sasl(cluster), security=USER) as another,
        ):
            error = await until_refused(lambda: another.send_and_wait(secret, b"v"))
            assert isinstance(error, TopicAuthorizationFailed)
            assert "grant this user WRITE and DESCRIBE on it" in str(error)
            assert not error.retriable
            await another.send_and_wait(free, b"v")


@pytest.mark.parametrize("kafka", ["1.1.1"])
async def test_the_right_to_be_idempotent_is_named(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory
) -> None:
    """Newer brokers take the right to write any topic instead (KIP-679)."""
    cluster = await with_an_authorizer(cluster_factory, kafka)
    (topic,) = await topics_of(cluster, topic_factory, 1)
    async with denied(cluster, ResourceType.CLUSTER, "kafka-cluster", ACLOperation.IDEMPOTENT_WRITE):

        async def send() -> None:
            async with Producer(brokers=by_sasl(cluster), security=USER) as producer:
                await producer.send_and_wait(topic, b"idempotent")

        error = await until_refused(send)
        assert isinstance(error, BrokerError)
        assert not error.retriable
        assert "IdempotentWrite" in str(error)
        async with Producer(brokers=by_sasl(cluster), security=USER, acks="1") as producer:
            await producer.send_and_wait(topic, b"not idempotent")


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_what_a_transaction_may_not_do_is_named_and_its_records_are_read_again(
    kafka: str, cluster_factory: Any, topic_factory: TopicFactory, group: str
) -> None:
    cluster = await with_an_authorizer(cluster_factory, kafka)
    source, *rest = await topics_of(cluster, topic_factory, 3)
    free, secret = sorted(rest)  # brokers name the topics in this order, and the first one as not attempted
    settings: dict[str, Any] = {"brokers": by_sasl(cluster), "security": USER}
    async with (
        Producer(brokers=cluster.bootstrap) as feeder,
        Producer(**settings) as producer,
        Consumer(
            **settings,
            group=group,
            membership="fixed",
            auto_offset_reset="earliest",
            auto_commit_interval_s=None,
            transactions=producer,
        ) as consumer,
    ):
        consumer.assign([(source, 0)])

        async def transact() -> None:
            await feeder.send_and_wait(source, b"in")  # for an attempt before the brokers know the rule
            assert await consumer.getbatch()
            async with producer.transaction(consumer) as tx:
                await tx.send(free, b"out")
                await tx.send(secret, b"out")

        async with denied(cluster, ResourceType.TRANSACTIONAL_ID, f"{group}:{source}:0"):
            error = await until_refused(transact)
            assert f"{group}:{source}:0" in str(error)
            assert "grant this user the right to use the transactional id" in str(error)
            assert not error.retriable
        async with denied(cluster, ResourceType.TOPIC, secret, ACLOperation.WRITE):
            error = await until_refused(transact)
            assert isinstance(error, TopicAuthorizationFailed)
            assert secret in str(error)
        await until_done(transact)
        assert await consumer.committed((source, 0))
