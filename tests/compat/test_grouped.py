"""`GroupedConsumer` in a service for kiel."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tornado import gen
from tornado.ioloop import IOLoop

from allocator import GroupedConsumer
from allocator.core.client.client import KafkaClient
from allocator.core.consumer import client_of
from allocator.errors import BrokersUnavailable, Closed, CommitFailed, ZooKeeperUnavailable
from allocator.operate import kafka_group
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from tests.compat.consuming import consume_values
from tests.groups.zookeeper_sessions import session
from tests.inside import member_of, watcher_of
from tests.joining import joined
from tests.stored import stored_offsets


class Service:
    """Creates consumers of one group on one topic."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, membership: str = "zookeeper") -> None:
        self.cluster, self.topic, self.group, self.membership = cluster, topic, group, membership

    def consumer(self, **options: Any) -> GroupedConsumer:
        return GroupedConsumer(
            self.cluster.bootstrap.split(","),
            options.pop("group", self.group),
            [options.pop("zookeeper", self.cluster.zookeeper)],
            **joined(membership=self.membership, **{"session_timeout_s": 15.0, "max_wait_time": 200, **options}),
        )

    @contextlib.asynccontextmanager
    async def through_a_proxy(self) -> AsyncIterator[tuple[FaultProxy, GroupedConsumer]]:
        """A consumer whose connection to ZooKeeper can be cut."""
        async with FaultProxy(int(self.cluster.zookeeper.rpartition(":")[2])) as proxy:
            yield proxy, self.consumer(zookeeper=proxy.address, autocommit=False, session_timeout_s=10.0)

    async def produce(self, values: list[Any]) -> None:
        records = [(None, json.dumps(value).encode(), number % 4) for number, value in enumerate(values)]
        await asyncio.to_thread(lambda: self.cluster.produce(self.topic, records))

    async def committed(self) -> dict[int, tuple[int, str]]:
        found = await stored_offsets(self.cluster.bootstrap, self.group, self.topic, 4)
        return {number: (at.offset, at.metadata) for number, at in found.items()}


@pytest.fixture
def service(
    request: pytest.FixtureRequest, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> Service:
    return Service(kafka_cluster, topic_factory(4), group, getattr(request, "param", "zookeeper"))


over_both = pytest.mark.parametrize("service", ["zookeeper", "kafka"], indirect=True)


@over_both
def test_a_tornado_service_with_yield(service: Service) -> None:
    """As its authors wrote it: gen.coroutine, IOLoop.run_sync, JSON by default."""
    asyncio.run(service.produce([{"n": number} for number in range(40)]))
    consumer = service.consumer()

    @gen.coroutine
    def run():
        yield consumer.connect()
        seen = []
        while len(seen) < 40:
            messages = yield consumer.consume(service.topic)
            seen.extend(messages)
        yield consumer.close()
        raise gen.Return(seen)

    seen = IOLoop(make_current=False).run_sync(run)
    assert sorted(value["n"] for value in seen) == list(range(40))


@over_both
async def test_consuming_raises_after_other_code_has_cancelled_the_tasks_of_the_consumer(service: Service) -> None:
    """Tornado's test case does that after each test. An empty list would look like a topic without new values."""
    others, consumer = asyncio.all_tasks(), service.consumer()
    await consumer.connect()
    await service.produce([1])
    await consume_values(consumer, service.topic, 1)
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.wait(asyncio.all_tasks() - others)
    await service.produce([2])
    with pytest.raises(Closed, match="was cancelled by code that had not started it"):
        await consumer.consume(service.topic)
    await consumer.close()


@over_both
async def test_autocommit_commits_before_the_values_are_returned(service: Service) -> None:
    await service.produce(list(range(40)))
    consumer = service.consumer()
    await consumer.connect()
    values = await consume_values(consumer, service.topic, 40)
    assert sorted(values) == list(range(40))
    committed = await service.committed()
    assert {number: offset for number, (offset, _) in committed.items()} == dict.fromkeys(range(4), 10)
    assert committed[0][1].startswith(f"committed by {consumer.name} topic ")
    assert consumer.topics_to_commit == set()
    assert consumer.allocation[service.topic] == [0, 1, 2, 3]
    assert consumer.offsets[service.topic] == dict.fromkeys(range(4), 10)
    assert consumer.coordinator_id == 0
    await consumer.close()


@over_both
async def test_without_autocommit_nothing_is_committed_before_commit_offsets(service: Service) -> None:
    await service.produce(list(range(40)))
    first = service.consumer(autocommit=False)
    await first.connect()
    assert len(await consume_values(first, service.topic, 40)) == 40
    assert await service.committed() == {}
    assert first.topics_to_commit == {service.topic}
    await first.close()
    second = service.consumer(autocommit=False)
    await second.connect()
    assert len(await consume_values(second, service.topic, 40)) == 40  # at least once
    await second.commit_offsets(metadata="after the batch")
    assert set((await service.committed()).values()) == {(10, "after the batch")}
    await second.close()


@pytest.mark.parametrize("commits", [False, True])
async def test_values_on_which_the_user_could_not_act_come_again(service: Service, *, commits: bool) -> None:
    """ZooKeeper is away for a moment, within the session."""
    await service.produce(list(range(12)))
    done: set[int] = set()
    asked = False
    async with service.through_a_proxy() as (proxy, consumer):
        await consumer.connect()
        while done != {*range(12)}:
            for value in await consumer.consume(service.topic) or ():
                if value == 2 and not asked:
                    asked = True
                    await asyncio.to_thread(proxy.stop)
                    await wait_until_async(lambda: not member_of(consumer).may_act(), 30, "the end of the lease")
                    assert not consumer.may_act()
                    await asyncio.to_thread(proxy.start)
                    await wait_until_async(member_of(consumer).may_act, 30, "the lease")
                else:
                    done.add(value)
            if commits:
                await consumer.commit_offsets()
        await consumer.close()


async def test_values_of_several_topics_come_again(service: Service, topic_factory: Callable[..., str]) -> None:
    topics = [service.topic, topic_factory(4)]
    for topic in topics:
        await Service(service.cluster, topic, service.group).produce(list(range(3)))
    done: set[tuple[str, Any]] = set()
    refused = 0
    async with service.through_a_proxy() as (proxy, consumer):
        await consumer.connect()
        while len(done) < 6 and refused < 20:
            for topic in topics:
                for value in await consumer.consume(topic) or ():
                    if not refused and topic == topics[1]:
                        await asyncio.to_thread(proxy.stop)
                        await wait_until_async(lambda: not member_of(consumer).may_act(), 30, "the end of the lease")
                        assert not consumer.may_act()
                        await asyncio.to_thread(proxy.start)
                        await wait_until_async(member_of(consumer).may_act, 30, "the lease")
                        refused += 1
                        break
                    if not consumer.may_act():
                        refused += 1
                        break
                    done.add((topic, value))
        await consumer.close()
    assert len(done) == 6
    assert refused == 1


@over_both
async def test_two_members_are_assigned_by_a_function_with_kiels_signature(service: Service) -> None:
    def last_member_gets_partition_zero(members, partitions):
        mapping: dict = {}
        for partition in partitions:
            topic, identifier = partition.split(":")
            owner = members[-1] if identifier == "0" else members[0]
            mapping.setdefault(owner, {}).setdefault(topic, []).append(int(identifier))
        return mapping

    members = [service.consumer(partition_allocator=last_member_gets_partition_zero) for _ in range(2)]
    for member in members:
        await member.connect()
    expected = sorted(member.name for member in members)
    by_name = {member.name: member for member in members}
    await wait_until_async(
        lambda: (
            by_name[expected[-1]].allocation.get(service.topic) == [0]
            and by_name[expected[0]].allocation.get(service.topic) == [1, 2, 3]
        ),
        30,
        lambda: str([member.allocation for member in members]),
    )
    await service.produce(list(range(40)))
    values = await asyncio.gather(
        consume_values(by_name[expected[-1]], service.topic, 10),
        consume_values(by_name[expected[0]], service.topic, 30),
    )
    assert sorted(values[0]) == list(range(0, 40, 4))
    assert sorted(values[0] + values[1]) == list(range(40))
    for member in members:
        await member.close()


async def test_an_unknown_topic_returns_no_values_and_is_logged(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = service.consumer()
    await consumer.connect()
    assert await consumer.consume("no-such-topic") == []
    assert "no-such-topic" in caplog.text
    await consumer.close()
    assert await consumer.consume("no-such-topic") is None


@over_both
async def test_a_moved_partition_starts_after_commits_that_no_caller_awaits(service: Service) -> None:
    """As kiel's own example calls it: `consumer.commit_offsets()`, without a yield."""
    members = [service.consumer(autocommit=False, max_wait_time=50) for _ in range(2)]
    values: list[Any] = []
    stop = asyncio.Event()

    async def work(consumer: GroupedConsumer) -> None:
        while not stop.is_set():
            found = await consumer.consume(service.topic)
            if found is None:
                return
            values.extend(found)
            if found:
                consumer.commit_offsets()

    await members[0].connect()
    workers = [asyncio.ensure_future(work(members[0]))]
    # late responses, so that commits are in flight while partitions move
    client = client_of(members[0])
    send = client.send

    async def slow(node_id: int, request: Any, timeout_s: float | None = None) -> Any:
        if request.API_KEY == 8:
            await asyncio.sleep(0.3)
        return await send(node_id, request, timeout_s)

    client.send = slow  # type: ignore[method-assign]
    await service.produce(list(range(400)))
    await wait_until_async(lambda: values, 30, "values")
    await members[1].connect()
    workers.append(asyncio.ensure_future(work(members[1])))
    await wait_until_async(lambda: members[1].allocation.get(service.topic), 30, "the move")
    await service.produce(list(range(400, 500)))
    await wait_until_async(lambda: set(values) == set(range(500)), 30, lambda: f"{len(values)} of 500")
    stop.set()
    await asyncio.gather(*workers)
    for each in members:
        await each.close()
    assert sorted(values) == list(range(500))


async def test_values_of_a_lost_partition_do_not_block_a_move_to_another_cluster(
    service: Service, topic_factory: Callable[..., str]
) -> None:
    """The service still has values of one topic when it consumes another. The member must not wait for them there."""
    another = topic_factory(1)
    await service.produce(list(range(4)))
    consumer = service.consumer(autocommit=False)
    await consumer.connect()
    await consume_values(consumer, service.topic, 4)

    def tokens() -> list[Any]:
        state = member_of(consumer).state
        return [
            (each.partition, each.fence) for each in state.assignment.values() if each.partition.topic == service.topic
        ]

    async with session(service.cluster.zookeeper) as ensemble:
        members = f"/allocator/{service.group}/members"
        before = {*tokens()}
        (member,) = await ensemble.get_children(members)
        await ensemble.delete(f"{members}/{member}")
        # the loss may be too short to be seen: the partitions come back with other fencing tokens
        await wait_until_async(lambda: not before.intersection(tokens()) and len(tokens()) == 4, 30, "a new claim")
        assert not consumer.may_act()
        await choose_cluster(ensemble, choice_path("/allocator", service.group), ClusterChoice(frozen=True))
        while True:
            assert await asyncio.wait_for(consumer.consume(another), 30) == []
            assert await asyncio.wait_for(consumer.consume(service.topic), 30) is not None
            if not consumer.allocation[service.topic]:
                break
    await consumer.close()


async def test_a_commit_without_a_lease_waits_for_it(service: Service) -> None:
    await service.produce(list(range(4)))
    async with service.through_a_proxy() as (proxy, consumer):
        assert not consumer.may_act()
        await consumer.connect()
        await consume_values(consumer, service.topic, 4)
        assert consumer.may_act()
        proxy.drop()
        proxy.reset()
        await wait_until_async(lambda: not member_of(consumer).may_act(), 30, "the loss of the lease")
        commit = consumer.commit_offsets()
        await asyncio.wait({commit}, timeout=0.5)
        assert not commit.done()
        proxy.heal()
        await asyncio.wait_for(commit, 30)
        assert {offset for offset, _ in (await service.committed()).values()} == {1}
        await consumer.close()


async def test_closing_does_not_wait_for_a_lease_that_does_not_come(service: Service) -> None:
    await service.produce(list(range(4)))
    async with service.through_a_proxy() as (proxy, consumer):
        await consumer.connect()
        await consume_values(consumer, service.topic, 4)
        proxy.drop()
        proxy.reset()
        await wait_until_async(lambda: not member_of(consumer).may_act(), 30, "the loss of the lease")
        commit = consumer.commit_offsets()
        await asyncio.sleep(0)
        await asyncio.wait_for(consumer.close(), 30)
        with pytest.raises(CommitFailed, match="another member may own them now"):
            await commit


@over_both
def test_a_service_that_ctrl_c_stopped_leaves_at_once(service: Service) -> None:
    """Like kiel's worker: Ctrl-C interrupts the loop, and the service calls `close` when the loop no longer runs."""
    asyncio.run(service.produce(list(range(8))))
    consumer = service.consumer()
    loop = IOLoop(make_current=False)

    def interrupt() -> None:
        raise KeyboardInterrupt

    @gen.coroutine
    def run():
        yield consumer.connect()
        while True:
            messages = yield consumer.consume(service.topic)
            if messages is None:
                return
            if messages:
                loop.call_later(0.05, interrupt)

    loop.add_callback(run)
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    assert consumer.allocation[service.topic]
    consumer.close()
    assert asyncio.run(members_of(service)) == []
    consumer.close()  # once more does no harm
    loop.close(all_fds=True)
    consumer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_closing_after_the_loop_was_closed_ends_the_membership(service: Service) -> None:
    """Otherwise kazoo's threads would keep the session alive, and no other member would get the partitions."""
    consumer = service.consumer()
    loop = IOLoop(make_current=False)
    loop.run_sync(consumer.connect)
    assert consumer.allocation[service.topic]
    loop.close()
    assert len(asyncio.run(members_of(service))) == 1
    consumer.close()
    assert asyncio.run(members_of(service)) == []
    del consumer, loop
    gc.collect()  # here, because the tasks of the closed loop complain


async def members_of(service: Service) -> list[str]:
    if service.membership == "kafka":
        async with KafkaClient(service.cluster.bootstrap) as client:
            found = await kafka_group(client, service.group)
            return [] if found is None else [info.name for info in found.members.values()]
    async with session(service.cluster.zookeeper) as ensemble:
        return await ensemble.get_children(f"/allocator/{service.group}/members")


async def test_servers_that_do_not_respond_are_named(service: Service) -> None:
    with pytest.raises(BrokersUnavailable, match=r"127\.0\.0\.1:1"):
        await GroupedConsumer(["127.0.0.1:1"], "g", [service.cluster.zookeeper], connect_timeout_s=3.0).connect()
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1"):
        await GroupedConsumer([service.cluster.bootstrap], "g", ["127.0.0.1:1"], connect_timeout_s=3.0).connect()


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_member_follows_the_cluster_choice_of_its_group(
    service: Service, topic_factory: Callable[..., str], autocommit: bool
) -> None:
    """It returns no more values, waits for commits, pauses, and continues with the other brokers."""
    ensemble, path = ZooKeeperClient(service.cluster.zookeeper), choice_path("/allocator", service.group)
    await ensemble.connect()
    idle = await asyncio.to_thread(topic_factory, 1)
    await service.produce(list(range(40)))
    consumer = service.consumer(autocommit=autocommit)
    try:
        await consumer.connect()
        values = await consume_values(consumer, service.topic, 40)
        await choose_cluster(ensemble, path, ClusterChoice(None, frozen=True))
        if not autocommit:
            await wait_until_async(lambda: watcher_of(consumer).current.frozen, 30, "the choice to be noticed")
            for _ in range(5):
                assert await consumer.consume(idle) == []
            assert consumer.allocation[service.topic], "it owns the partitions until their values are committed"
            await consumer.commit_offsets()

        async def left() -> bool:
            assert await consumer.consume(idle) == []
            return consumer.allocation == {}

        await wait_until_async(left, 60, "the member to leave")
        assert await ensemble.get_children(path.replace("/cluster", "/members")) == []

        await service.produce(list(range(40, 60)))
        assert await consumer.consume(service.topic) == []
        await consumer.commit_offsets()  # there is nothing to commit

        # the same cluster, so it has the committed offsets
        other = service.cluster.bootstrap.replace("127.0.0.1", "localhost")
        await choose_cluster(ensemble, path, ClusterChoice(other))
        values += await consume_values(consumer, service.topic, 20)
        assert sorted(values) == list(range(60))
        await consumer.commit_offsets()
        assert sum(offset for offset, _ in (await service.committed()).values()) == 60
    finally:
        await consumer.close()
        await ensemble.close()


async def test_a_member_of_a_paused_group_waits(service: Service) -> None:
    path = choice_path("/allocator", service.group)
    async with session(service.cluster.zookeeper) as ensemble:
        await choose_cluster(ensemble, path, ClusterChoice(None, frozen=True))
        await service.produce([1, 2, 3])
        consumer = service.consumer()
        await consumer.connect()
        assert await consumer.consume(service.topic) == []
        waiting = asyncio.gather(*(consumer.consume(service.topic) for _ in range(3)))  # side by side, as services do
        await choose_cluster(ensemble, path, ClusterChoice())
    values = [value for found in await waiting for value in found or ()]
    values += await consume_values(consumer, service.topic, 3 - len(values)) if len(values) < 3 else []
    assert sorted(values) == [1, 2, 3]
    await consumer.close()
    assert await consumer.consume(service.topic) is None
