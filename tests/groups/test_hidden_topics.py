"""A topic that the brokers hide from a user (no right to DESCRIBE it) is not a missing topic, and starves no group."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kafka.admin import ResourceType

from allocator import Consumer, ConsumerGroup, ConsumerGroupConfig, KafkaGroupCommands, Producer
from allocator.errors import AllocatorError, DeliveryFailed, TopicAuthorizationFailed
from allocator.protocols import command_topic
from allocator.protocols.kafka_classic.plan import DOUBT_S
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.types import TopicPartition
from tests.constants import SetConstant
from tests.secured import USER, by_sasl, denied, with_an_authorizer

VERSIONS = ["2.8.2", *(pytest.param(each, marks=pytest.mark.long) for each in ("1.1.1", "3.9.1"))]
MEMBERSHIPS = ["zookeeper", "kafka"]


class Group:
    """A group on a cluster with an authorizer, two topics, and consumers of `USER` or of a user with all rights."""

    def __init__(self, cluster: LocalCluster, group: str, membership: str, topics: tuple[str, str]) -> None:
        self.cluster, self.group, self.membership = cluster, group, membership
        self.free, self.secret = topics

    def consumer(self, *topics: str, restricted: bool = True, **settings: Any) -> Consumer:
        where: dict[str, Any] = {"brokers": self.cluster.bootstrap}
        if restricted:
            where = {"brokers": by_sasl(self.cluster), "security": USER}
        if self.membership == "zookeeper":
            where["zookeeper"] = self.cluster.zookeeper
        given = {"auto_offset_reset": "earliest", "group": self.group, "membership": self.membership, **settings}
        return Consumer(*topics, **given, **where)

    @contextlib.asynccontextmanager
    async def hidden(self) -> AsyncIterator[None]:
        """Hides `secret` from `USER`, and waits until the brokers do so."""
        async with denied(self.cluster, ResourceType.TOPIC, self.secret):
            await wait_until_async(self._is_hidden, 30, "the rule")
            yield

    async def _is_hidden(self) -> bool:
        async with Producer(brokers=by_sasl(self.cluster), security=USER) as producer:
            try:
                await producer.send_and_wait(self.secret, b"v")
            except TopicAuthorizationFailed:
                return True
            except DeliveryFailed:
                pass  # the rule came after the metadata
        return False


@pytest.fixture
def make(cluster_factory: Any, topic_factory: Callable[..., str], group: str) -> Callable[..., Any]:
    async def make(kafka: str, membership: str, partitions: int = 3) -> Group:
        cluster = await with_an_authorizer(cluster_factory, kafka)
        free, secret = [await asyncio.to_thread(topic_factory, partitions, 1, None, cluster) for _ in range(2)]
        for topic in (free, secret):
            await asyncio.to_thread(produce, cluster.bootstrap, topic, [b"v"] * partitions)
        return Group(cluster, group, membership, (free, secret))

    return make


async def topics_read(consumer: Consumer, until: Callable[[set[str], list[AllocatorError]], bool]) -> None:
    """Reads, and goes on after errors, until the topics that were read and the errors satisfy `until`."""
    topics: set[str] = set()
    errors: list[AllocatorError] = []

    async def read() -> bool:
        try:
            batch = await consumer.getbatch(0.2)
        except AllocatorError as error:
            errors.append(error)
        else:
            topics.update(() if batch is None else [batch.topic])
        return until(topics, errors)

    await wait_until_async(read, 30, "the records and errors")


@pytest.mark.parametrize("membership", [*MEMBERSHIPS, "fixed"])
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_member_that_may_not_see_its_topic_names_the_right_and_never_leads(
    make: Any, kafka: str, membership: str
) -> None:
    it = await make(kafka, membership)
    async with it.hidden():
        for topics in ([it.secret], [it.free, it.secret]):
            with pytest.raises(TopicAuthorizationFailed, match=f"{it.secret}.*DESCRIBE") as refused:
                await it.consumer(*topics).start()
            assert refused.value.topic == it.secret
            assert not refused.value.retriable
        async with it.consumer(it.secret, restricted=False) as other:
            await wait_until_async(lambda: len(other.assignment()) == 3, 30, "its partitions")
    async with it.consumer(it.secret):
        pass  # with the right, the same member joins


@pytest.mark.parametrize("membership", MEMBERSHIPS)
async def test_a_leader_that_loses_sight_of_a_topic_keeps_assigning_it(make: Any, membership: str) -> None:
    it = await make("2.8.2", membership)
    every = {TopicPartition(it.secret, number) for number in range(3)}

    def shared(*consumers: Consumer) -> bool:
        owned = [partition for each in consumers for partition in each.assignment()]
        return set(owned) == every and len(owned) == len(every) and all(each.assignment() for each in consumers)

    async with it.consumer(it.secret) as leader, it.consumer(it.secret, restricted=False) as other:
        await wait_until_async(lambda: shared(leader, other), 30, "both to own some")
        async with it.hidden():
            await topics_read(leader, lambda topics, errors: TopicAuthorizationFailed in map(type, errors))
            assert await leader.partitions_for_topic(it.secret) is None, "its metadata has the rule"
            until = time.monotonic() + 2 * DOUBT_S  # a deleted topic is given up by then
            while time.monotonic() < until:  # each new member makes the leader count the partitions again
                async with it.consumer(it.secret, restricted=False) as third:
                    await wait_until_async(lambda third=third: shared(leader, other, third), 30, "each to own one")
                await wait_until_async(lambda: shared(leader, other), 30, "the two to own all")
        await asyncio.to_thread(produce, it.cluster.bootstrap, it.secret, [b"v"] * 3)
        await topics_read(leader, lambda topics, errors: it.secret in topics)


@pytest.mark.parametrize("membership", MEMBERSHIPS)
async def test_a_leader_with_a_pattern_keeps_assigning_a_hidden_topic_that_others_name(
    make: Any, membership: str
) -> None:
    it = await make("2.8.2", membership)
    every = {TopicPartition(it.secret, number) for number in range(3)}

    def divided(owner: Consumer, *others: Consumer) -> bool:
        owned = [p for each in (owner, *others) for p in each.assignment() if p.topic == it.secret]
        return set(owned) == every and len(owned) == len(every) and bool(owner.assignment())

    pattern = f"({it.free}|{it.secret})$"
    async with it.consumer(pattern=pattern) as leader, it.consumer(it.secret, restricted=False) as other:
        await wait_until_async(lambda: divided(other, leader), 30, "the partitions to be divided")
        async with it.hidden():
            until = time.monotonic() + 3 * DOUBT_S  # a deleted topic is given up by then
            while time.monotonic() < until:  # each new member makes the leader count the partitions again
                async with it.consumer(it.secret, restricted=False) as third:
                    await wait_until_async(lambda third=third: divided(third, other, leader), 20, "a share of the new")
                await wait_until_async(lambda: divided(other, leader), 20, "the two to own all")


@pytest.mark.parametrize("membership", [*MEMBERSHIPS, "fixed"])
async def test_a_hidden_topic_of_a_later_subscription_is_reported_and_the_others_are_read(
    make: Any, membership: str
) -> None:
    it = await make("2.8.2", membership)
    async with it.hidden(), it.consumer(it.free) as consumer:
        consumer.subscribe([it.free, it.secret])
        await topics_read(consumer, lambda topics, errors: it.free in topics and len(errors) > 2)
        with pytest.raises(TopicAuthorizationFailed, match=it.secret):
            await consumer.getbatch(10)
        consumer.subscribe([it.free])
        assert await consumer.getbatch(0.5) is None, "nobody subscribes to it any more"
        consumer.subscribe([it.free, it.secret])
        with pytest.raises(TopicAuthorizationFailed, match=it.secret):
            await consumer.getbatch(10)


async def test_a_partition_of_a_hidden_topic_is_reported_until_another_one_is_assigned(make: Any) -> None:
    it = await make("2.8.2", "fixed")
    async with it.hidden(), it.consumer(group=None) as consumer:
        consumer.assign([(it.secret, 0)])
        with pytest.raises(TopicAuthorizationFailed, match=it.secret):
            await consumer.getbatch(10)
        consumer.assign([(it.free, 0)])
        batch = await consumer.getbatch(10)
        assert batch is not None
        assert batch.topic == it.free
        assert await consumer.getbatch(0.5) is None


async def test_a_pattern_ignores_hidden_topics(make: Any) -> None:
    it = await make("2.8.2", "kafka")
    async with it.hidden(), it.consumer(pattern=f"({it.free}|{it.secret})$") as consumer:
        await topics_read(consumer, lambda topics, errors: it.free in topics or bool(errors))
        assert {partition.topic for partition in consumer.assignment()} == {it.free}


@pytest.mark.parametrize("membership", MEMBERSHIPS)
async def test_the_next_generation_of_a_hidden_topic_raises(make: Any, membership: str) -> None:
    it = await make("2.8.2", membership)
    where = {"zookeeper": it.cluster.zookeeper} if membership == "zookeeper" else {}
    config = ConsumerGroupConfig(
        group=it.group, topics=[it.secret], brokers=by_sasl(it.cluster), security=USER, membership=membership, **where
    )
    async with it.hidden(), ConsumerGroup(config) as generations:
        with pytest.raises(TopicAuthorizationFailed, match=it.secret):
            await asyncio.wait_for(generations.next(), 30)


@pytest.mark.parametrize("by_pattern", [False, True], ids=["topic", "pattern"])
async def test_a_member_that_may_not_see_the_command_topic_warns_and_keeps_the_commands_that_it_knows(
    make: Any, by_pattern: bool, set_constant: SetConstant, caplog: pytest.LogCaptureFixture
) -> None:
    set_constant(command_topic, LOOK_S=1.0)
    it = await make("2.8.2", "kafka")
    it.secret = f"{it.group}.orders"
    async with KafkaGroupCommands(it.cluster.bootstrap, it.group, create=True) as commands:
        await commands.pause([TopicPartition(it.free, 0)])

    def logged(text: str) -> list[str]:
        return [each for each in caplog.messages if text in each]

    right = f"not authorised to read topic {it.secret!r}; grant this user READ and DESCRIBE on it"
    async with contextlib.AsyncExitStack() as rule:
        await rule.enter_async_context(it.hidden())
        async with it.consumer(pattern=f"{it.free}$") if by_pattern else it.consumer(it.free) as member:
            (warning,) = logged(right)
            assert f"the operator commands in topic {it.secret} cannot be read" in warning
            await rule.aclose()
            await wait_until_async(lambda: logged("takes effect: pause"), 30, "the pause")
            async with it.hidden():
                await wait_until_async(lambda: len(logged(right)) == 2, 30, "the second warning")
                await member.seek_to_beginning()
                await asyncio.to_thread(produce, it.cluster.bootstrap, it.free, [b"v"] * 3)
                seen: dict[int, int] = {}

                async def read_both() -> bool:
                    batch = await member.getbatch(0.2)
                    if batch is not None:
                        seen[batch.partition] = batch[len(batch) - 1].offset
                    return seen.get(1) == seen.get(2) == 1

                await wait_until_async(read_both, 30, lambda: f"the records: {seen}")
                assert 0 not in seen
                assert not logged("no longer in effect")
                await asyncio.to_thread(it.cluster.delete_topic, it.secret)
            await wait_until_async(lambda: logged("no longer in effect"), 30, "the end of the pause of a deleted topic")
