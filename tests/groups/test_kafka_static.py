"""Static members of Kafka's protocols (KIP-345) restart, change their topics and leave for good, on real brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from allocator import Consumer, Kafka
from allocator.errors import Closed
from allocator.testing import wait_until_async
from allocator.testing.versions import NEWEST
from tests.groups.kafka_members import ClassicMember, partitions, shared, start, topic_with
from tests.groups.kip848_members import QUICK
from tests.kafka_versions import on_versions

pytestmark = pytest.mark.deadline(180)

SESSION_S = 60.0  # longer than any wait of these tests, so that no session ends in them

on_brokers = pytest.mark.parametrize("kafka", on_versions("3.9.1", NEWEST, since="2.8.2"))


async def brokers(cluster_factory: Any, kafka: str) -> Any:
    kraft = {"zookeepers": 0} if kafka[0] == "4" else {}
    return await start(cluster_factory, kafka=kafka, **kraft)


class Restarting:
    """Starts the processes of static members, one after the other for each instance."""

    def __init__(self, cluster: Any, group: str, **options: Any) -> None:
        self.cluster, self._group, self._options = cluster, group, options
        self._processes: dict[str, contextlib.AsyncExitStack] = {}

    async def __aenter__(self) -> Restarting:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            await process.aclose()

    async def run(self, instance: str, topics: Any, **options: Any) -> ClassicMember:
        """Stops the process of `instance`, if there is one, and starts the next."""
        await self.stop(instance)
        timing = {"session_timeout_s": SESSION_S, "instance_id": instance}
        found = {**self._options, **options}
        member = ClassicMember(self.cluster.bootstrap, self._group, topics, name=instance, timing=timing, **found)
        self._processes[instance] = process = contextlib.AsyncExitStack()
        return await process.enter_async_context(member)

    async def stop(self, instance: str) -> None:
        if instance in self._processes:
            await self._processes.pop(instance).aclose()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@on_brokers
async def test_partitions_that_are_added_after_static_members_restarted_get_owners(
    kafka: str, assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await brokers(cluster_factory, kafka)
    topic = unique_name()
    counts = await topic_with(cluster, topic, 4)
    async with Restarting(cluster, group, assignors=[assignor]) as members:
        a, b = await members.run("a", counts), await members.run("b", counts)
        await shared([a, b], counts)
        before = a.held, b.held
        a = await members.run("a", counts)
        b = await members.run("b", counts)
        await shared([a, b], counts)
        assert (a.held, b.held) == before
        assert [a.leads, b.leads].count(True) == 1
        await asyncio.to_thread(cluster.add_partitions, topic, 8)
        await shared([a, b], {topic: 8})
        assert a.owner.errors == b.owner.errors == []


@on_brokers
async def test_partitions_that_are_added_while_the_static_leader_restarts_get_owners(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await brokers(cluster_factory, kafka)
    topic = unique_name()
    counts = await topic_with(cluster, topic, 2)
    async with Restarting(cluster, group) as members:
        await shared([await members.run("a", counts)], counts)
        await members.stop("a")
        await asyncio.to_thread(cluster.add_partitions, topic, 4)
        await shared([await members.run("a", counts)], {topic: 4})


@on_brokers
async def test_a_topic_that_begins_to_match_a_pattern_is_read_after_a_restart(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await brokers(cluster_factory, kafka)
    stem = unique_name()
    counts = await topic_with(cluster, f"{stem}-1", 2)
    async with Restarting(cluster, group, pattern=f"{stem}-.*") as members:
        a, b = await members.run("a", ()), await members.run("b", ())
        await shared([a, b], counts)
        await members.stop("a")
        counts |= await topic_with(cluster, f"{stem}-2", 2)
        a = await members.run("a", ())
        b = await members.run("b", ())
        await shared([a, b], counts)
        counts |= await topic_with(cluster, f"{stem}-3", 2)
        await shared([a, b], counts)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "in a group"])
@pytest.mark.parametrize("assignor", ["range", "sticky", "cooperative-sticky"])
@on_brokers
async def test_a_static_member_that_restarts_with_other_topics_reads_these(
    kafka: str, assignor: str, others: int, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await brokers(cluster_factory, kafka)
    stem = unique_name()
    old, new = await topic_with(cluster, f"{stem}-old", 4), await topic_with(cluster, f"{stem}-new", 4)
    async with Restarting(cluster, group, assignors=[assignor]) as members:
        rest = [await members.run(f"other-{n}", old) for n in range(others)]
        one = await members.run("one", old)
        await shared([*rest, one], old)
        for topics in (old | new, new, old | new):  # a topic more, a topic less, and another one
            one = await members.run("one", topics)
            await shared([*rest, one], old | new if rest else topics)
            assert {p.topic for p in one.held} <= topics.keys()
            before = [member.held for member in (*rest, one)]
            one = await members.run("one", topics)  # with the same topics, nothing moves
            await shared([*rest, one], old | new if rest else topics)
            assert [member.held for member in (*rest, one)] == before
        assert one.owner.errors == []


@contextlib.asynccontextmanager
async def reading(consumer: Consumer) -> AsyncIterator[Consumer]:
    """Reads until the block ends; then the caller closes the consumer."""

    async def read() -> None:
        with contextlib.suppress(Closed):
            while True:
                await consumer.getbatch(0.3)

    await consumer.start()
    task = asyncio.ensure_future(read())
    try:
        yield consumer
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(
    ("protocol", "kafka"),
    [
        *(
            pytest.param("classic", *getattr(v, "values", (v,)), marks=getattr(v, "marks", ()))
            for v in on_versions("3.9.1", NEWEST, since="2.8.2")
        ),
        ("consumer", NEWEST),
        pytest.param("consumer", "4.1.1", marks=pytest.mark.long),
    ],
)
async def test_a_static_member_that_closes_for_good_frees_its_partitions_at_once(
    protocol: Any, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    quick = {**QUICK, "group.consumer.session.timeout.ms": round(1000 * SESSION_S)}
    options = {"zookeepers": 0, "broker_config": quick} if kafka[0] == "4" else {}
    cluster = await start(cluster_factory, kafka=kafka, **options)
    topic = unique_name()
    whole = partitions(await topic_with(cluster, topic, 4))

    def member(instance: str) -> Consumer:
        how = Kafka(protocol, session_timeout_s=SESSION_S, instance_id=instance)
        return Consumer(topic, brokers=cluster.bootstrap, group=group, membership=how)

    a, b = member("a"), member("b")
    async with reading(b):
        async with reading(a):
            await wait_until_async(lambda: a.assignment() and b.assignment(), 30, "both to own partitions")
            await wait_until_async(lambda: a.assignment() | b.assignment() == whole, 30, "an owner for each")
        kept = b.assignment()
        await a.close()
        again = member("a")
        async with reading(again):  # a restart moves nothing
            await wait_until_async(lambda: again.assignment() | b.assignment() == whole, 30, "the same partitions")
            assert b.assignment() == kept
        await again.close(restart=False)
        await wait_until_async(lambda: b.assignment() == whole, SESSION_S / 2, "all partitions to move")
    await b.close()
