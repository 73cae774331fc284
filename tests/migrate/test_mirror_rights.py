"""A topic for which a right is missing stops alone, and the mirror names the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.admin import ACLOperation, ResourceType

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import CommitFailed
from allocator.migrate.report import TopicsStopped
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.migrate.mirroring import Pair, committed, mirroring, numbered
from tests.secured import USER, by_sasl, denied, with_an_authorizer

pytestmark = pytest.mark.deadline(180)
MakePair = Callable[..., Any]
READ = ACLOperation.READ


async def until_unreadable(pair: Pair, topic: str) -> None:
    """Returns once the old cluster refuses the topic."""

    async def refused() -> bool:
        async with KafkaClient(by_sasl(pair.old), security=USER) as client:
            await client.refresh([topic])
            try:
                store = GroupOffsets(client, f"{pair.group}-2")
                await store.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
            except CommitFailed as error:
                assert error.denied == {topic}
                return True
        return False

    await wait_until_async(refused, 60, "the brokers to know the rule")


@pytest.mark.parametrize("running", [False, True])
async def test_a_topic_that_may_not_be_read_stops_alone(
    running: bool, make_pair: MakePair, cluster_factory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old = await with_an_authorizer(cluster_factory, "2.8.2")
    pair: Pair = await make_pair(old, "3.9.1")
    topic, other = pair.topic, await pair.add_topic()
    login = {"old": by_sasl(old), "old_security": USER}
    for each in (topic, other):
        await pair.fill(20, topic=each)
    mirror = pair.mirror(**login)

    async def reached(end: int) -> bool:
        return await committed(old, pair.group, other) == {0: end}

    async def copy() -> None:
        async with mirroring(mirror):
            await wait_until_async(lambda: mirror.records == 40, 60, "the records")
            async with denied(old, ResourceType.TOPIC, topic, READ):
                await until_unreadable(pair, topic)
                await pair.fill(10, topic=topic)
                await wait_until_async(lambda: topic in mirror.stopped, 60, "the topic to stop")
                for end in (30, 40):  # after a commit
                    await pair.fill(10, topic=other)
                    await wait_until_async(lambda end=end: reached(end), 60, "the other topic")
                mirror.stop()

    stops = f"^topic '{topic}' is not mirrored: not authorised to read topic '{topic}'; grant this user READ"
    if running:
        with pytest.raises(TopicsStopped, match=stops):
            await copy()
    else:
        async with denied(old, ResourceType.TOPIC, topic, READ):
            await until_unreadable(pair, topic)
            with pytest.raises(TopicsStopped, match=stops):
                await mirror.run(until_caught_up=True)
        assert await pair.copied(topic) == []
        assert await pair.copied(other) == numbered("value", 20)
    assert "commit failed" not in caplog.text
    await pair.catch_up()
    assert len(await pair.copied(topic)) == (30 if running else 20)


@pytest.mark.parametrize("running", [False, True])
async def test_a_new_topic_that_may_not_be_described_stops_alone(
    running: bool, make_pair: MakePair, cluster_factory: Any
) -> None:
    """The brokers hide it, as if it did not exist."""
    new = await with_an_authorizer(cluster_factory, "3.9.1")
    pair: Pair = await make_pair("2.8.2", new)
    topic, other = pair.topic, await pair.add_topic()
    login = {"new": by_sasl(new), "new_security": USER}
    for each in (topic, other):
        await pair.fill(20, topic=each)
    await pair.catch_up(**login)
    mirror = pair.mirror(topics=[], pattern=f"{topic}|{other}", **login)

    async def hidden() -> bool:
        async with KafkaClient(by_sasl(new), security=USER) as client:
            return topic not in await client.list_topics()

    async def copy() -> None:
        async with mirroring(mirror):
            if running:
                await pair.fill(10, topic=topic)
                await wait_until_async(lambda: mirror.records == 10, 60, "the mirror to run")
            async with denied(new, ResourceType.TOPIC, topic, ACLOperation.DESCRIBE):
                await wait_until_async(hidden, 60, "the brokers to know the rule")
                await wait_until_async(lambda: topic in mirror.stopped, 60, "the topic to stop")
                await pair.fill(10, topic=other)
                await wait_until_async(lambda: mirror.records_of[other] == 10, 60, "the other topic")
                mirror.stop()

    stops = f"^topic '{topic}' is not mirrored: not authorised to describe topic '{topic}'; grant this user DESCRIBE on"
    if running:
        with pytest.raises(TopicsStopped, match=stops):
            await copy()
    else:
        await pair.fill(10, topic=other)
        async with denied(new, ResourceType.TOPIC, topic, ACLOperation.DESCRIBE):
            await wait_until_async(hidden, 60, "the brokers to know the rule")
            with pytest.raises(TopicsStopped, match=stops):
                await mirror.run(until_caught_up=True)
        assert mirror.records_of == {other: 10}
    await pair.catch_up(**login)
    for each in (topic, other):
        assert len(await pair.copied(each)) == (20 if each == topic and not running else 30)
