"""Topics that are deleted and created again where requests for records do not name them, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, GroupedConsumer
from allocator.core.consumer import client_of
from allocator.core.fetch import planner
from allocator.core.offsets import GroupOffsets
from allocator.errors import CommitFailed, Fenced
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from tests.constants import SetConstant
from tests.consumer.real_service import Service, owns, read
from tests.consumer.test_late_commits import hold_commits_of
from tests.inside import member_of

Options = Callable[[LocalCluster], "dict[str, Any]"]


POLL_S = 0.1  # how long a request for records waits (`Service.consumer`)


def long(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


def shares_zookeeper(cluster: LocalCluster) -> dict[str, Any]:
    """With the brokers: the znodes of topics tell."""
    return {"zookeeper": cluster.zookeeper}


def own_zookeeper(cluster: LocalCluster) -> dict[str, Any]:
    """The coordinator tells, from 0.10.2 on, and ids tell, from 2.8 on."""
    return {}


def kafka(cluster: LocalCluster) -> dict[str, Any]:
    return {"membership": "kafka"}


@pytest.fixture
def setting(
    request: pytest.FixtureRequest,
    cluster_factory: Callable[..., LocalCluster],
    topic_factory: Callable[..., str],
    group: str,
) -> Service:
    cluster: LocalCluster = cluster_factory(kafka=request.param)
    return Service(cluster, topic_factory(1, cluster=cluster), group, partitions=1)


@pytest.fixture
def short_absence(set_constant: SetConstant) -> None:
    """A partition that was not read for one poll comes into doubt."""
    set_constant(planner, UNSEEN_S=POLL_S)


async def recreate(setting: Service) -> None:
    await asyncio.to_thread(setting.cluster.delete_topic, setting.topic)
    await asyncio.sleep(3 * POLL_S)  # a request that waits at the broker meanwhile may notice nothing
    await asyncio.to_thread(setting.cluster.create_topic, setting.topic, len(setting.partitions))
    await setting.produce(1000, 1080)  # more than were read of the old one


def pause(consumer: Consumer) -> asyncio.Event:
    """Pauses all partitions. No doubt about them is decided until the event is set."""
    decide, refresh = asyncio.Event(), client_of(consumer).refresh

    async def wait(*topics: Any) -> bool:
        await decide.wait()
        return await refresh(*topics)

    client_of(consumer).refresh = wait  # type: ignore[method-assign]
    consumer.pause(*consumer.assignment())
    return decide


async def resume(consumer: Consumer) -> None:
    """Resumes all partitions after a pause that brings them into doubt."""
    await asyncio.sleep(4 * POLL_S)  # also after the response to the last request
    consumer.resume(*consumer.assignment())
    state = member_of(consumer).state
    await wait_until_async(lambda: all(map(state.is_in_doubt, state.assignment)), 10, "the doubt")


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("0.9.0.1", shares_zookeeper),
        ("1.1.1", shares_zookeeper),
        ("1.1.1", own_zookeeper),
        ("1.1.1", kafka),
        long("0.8.2.2", shares_zookeeper),
        long("0.10.2.2", own_zookeeper),
        long("2.8.2", own_zookeeper),
    ],
    indirect=["setting"],
)
@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
async def test_a_topic_created_again_under_a_member_is_read_from_its_beginning(
    setting: Service, options: Options, paused: bool, short_absence: None
) -> None:
    await setting.produce(0, 50)
    async with setting.consumer(auto_commit_interval_s=0.2, **options(setting.cluster)) as consumer:
        assert await read(consumer, 50) == list(range(50))
        await consumer.commit()
        if paused:
            consumer.pause(*setting.partitions)
            await recreate(setting)
            consumer.resume(*consumer.assignment())
            values = await read(consumer, 80)
        else:
            reading = asyncio.ensure_future(read(consumer, 80))
            await recreate(setting)
            values = await reading
        assert values == list(range(1000, 1080))
        await consumer.commit()
        assert (await consumer.committed(setting.partitions[0])).offset == 80


@pytest.mark.parametrize("setting", ["1.1.1"], indirect=True)
@pytest.mark.parametrize("reconnected", [False, True])
async def test_a_topic_created_again_at_once_is_read_from_its_beginning(setting: Service, reconnected: bool) -> None:
    """The request that waits at the broker meanwhile gets records of the new topic, and no error."""
    await setting.produce(0, 50)
    assert setting.cluster.zookeeper is not None
    zookeeper = FaultProxy(int(setting.cluster.zookeeper.rpartition(":")[2]))
    async with zookeeper as proxy, setting.consumer(auto_commit_interval_s=0.2, zookeeper=proxy.address) as consumer:
        assert await read(consumer, 50) == list(range(50))
        if reconnected:
            member = member_of(consumer).membership
            proxy.reset()
            await wait_until_async(lambda: not member.may_act(), 30, "the connection to end", interval_s=0.001)
            await wait_until_async(member.may_act, 30, "the connection")
            await setting.produce(50, 60)
            assert await read(consumer, 10) == list(range(50, 60))
        for start in range(1000, 7000, 1000):
            await consumer.commit()
            await asyncio.to_thread(setting.cluster.delete_topic, setting.topic)
            await asyncio.to_thread(setting.cluster.create_topic, setting.topic, 1)
            await setting.produce(start, start + 80)
            values: set[int] = set()
            while not values.issuperset(range(start, start + 80)):
                values.update(await read(consumer, 1))


@pytest.mark.parametrize("setting", ["1.1.1"], indirect=True)
async def test_a_committed_offset_of_a_topic_that_is_created_again_meanwhile_does_not_count(
    setting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the member that begins reads it."""
    here = {"auto_commit_interval_s": None, "zookeeper": setting.cluster.zookeeper}
    await setting.produce(0, 50)
    async with setting.consumer(**here) as former:
        assert await read(former, 50) == list(range(50))
        await former.commit()
    fetch, found, goes_on = GroupOffsets.fetch, asyncio.Event(), asyncio.Event()

    async def held(offsets: GroupOffsets, *args: Any, **options: Any) -> Any:
        committed = await fetch(offsets, *args, **options)
        found.set()
        await goes_on.wait()
        return committed

    monkeypatch.setattr(GroupOffsets, "fetch", held)
    async with setting.consumer(**here) as consumer:
        await asyncio.wait_for(found.wait(), 30)
        await recreate(setting)
        doubts = member_of(consumer).state.doubts
        await wait_until_async(lambda: doubts[setting.topic], 30, "the event")
        goes_on.set()
        assert await read(consumer, 80) == list(range(1000, 1080))


@pytest.mark.parametrize(("setting", "storage"), [("0.9.0.1", "both"), ("1.1.1", "zookeeper")], indirect=["setting"])
async def test_an_offset_in_zookeeper_of_a_former_topic_does_not_count(setting: Service, storage: str) -> None:
    def consumer() -> Consumer:
        return setting.consumer(zookeeper=setting.cluster.zookeeper, offsets=storage)

    await setting.produce(0, 50)
    async with consumer() as one:
        assert await read(one, 50) == list(range(50))
        await one.commit()
    async with consumer() as one:
        await setting.produce(50, 60)
        assert await read(one, 10) == list(range(50, 60)), "the offset of the same topic counts"
        await one.commit()
    if setting.cluster.version == "0.9.0.1":  # whose coordinators keep the offsets of deleted topics, without an id
        async with setting.consumer(zookeeper=setting.cluster.zookeeper, auto_commit_interval_s=None) as one:
            await wait_until_async(one.assignment, 30, "an assignment")
            await one.commit({setting.partitions[0]: 0})
    await recreate(setting)
    async with consumer() as one:
        assert await read(one, 80) == list(range(1000, 1080))


@pytest.mark.parametrize("setting", ["1.1.1"], indirect=True)
async def test_an_offset_that_kiel_left_for_a_former_topic_does_not_count(setting: Service) -> None:
    await setting.produce(0, 50)
    async with setting.consumer(zookeeper=setting.cluster.zookeeper, offsets="zookeeper") as one:
        await wait_until_async(one.assignment, 30, "an assignment")
        await one.commit({setting.partitions[0]: 20})

    async def values(count: int) -> list[int]:
        consumer = GroupedConsumer(
            [setting.cluster.bootstrap], setting.group, [setting.cluster.zookeeper], max_wait_time=100
        )
        await consumer.connect()
        found: list[int] = []
        while len(found) < count:
            found += await consumer.consume(setting.topic) or ()
        await consumer.commit_offsets()
        await consumer.close()
        return found

    assert await values(30) == list(range(20, 50))
    await recreate(setting)
    assert await values(80) == list(range(1000, 1080))


@pytest.mark.parametrize(
    ("version", "options"), [("1.1.1", own_zookeeper), long("0.9.0.1", shares_zookeeper), long("2.8.2", kafka)]
)
async def test_a_restart_of_the_brokers_repeats_nothing(
    version: str, options: Options, topic_factory: Callable[..., str], group: str
) -> None:
    """Brokers that have just started lack topics for a moment."""
    with LocalCluster(version, brokers=1) as cluster:
        topic: str = topic_factory(1, cluster=cluster)
        setting = Service(cluster, topic, group, partitions=1)
        await setting.produce(0, 50)
        async with setting.consumer(auto_commit_interval_s=0.2, **options(cluster)) as consumer:
            assert await read(consumer, 50) == list(range(50))
            for turn in range(1, 4):
                await asyncio.to_thread(cluster.brokers[0].stop)
                await asyncio.to_thread(cluster.brokers[0].start)
                await setting.produce(50 * turn, 50 * turn + 50)
                assert await read(consumer, 50) == list(range(50 * turn, 50 * turn + 50))
            assert consumer.losses == ()


# -- while it is in doubt --------------------------------------------------------------------------------------------


@pytest.fixture
def pair(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str, short_absence: None
) -> Service:
    """Two partitions where only the coordinator tells."""
    cluster = cluster_factory(kafka="1.1.1")
    return Service(cluster, topic_factory(2, cluster=cluster), group, partitions=2)


async def read_old(setting: Service, consumer: Consumer) -> None:
    await setting.produce(0, 50)
    assert sorted(await read(consumer, 50)) == list(range(50))


def committing(consumer: Consumer, offsets: Any, asynchronous: bool) -> asyncio.Future[Any]:
    """Starts a commit, and returns a future of its error."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if asynchronous:
        consumer.commit_async(offsets, lambda _, error: done.set_result(error))
    else:
        commit = asyncio.ensure_future(consumer.commit(offsets))
        commit.add_done_callback(lambda _: done.set_result(commit.exception()))
    return done


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_offset_of_the_former_topic_is_not_committed_to_the_next_one(
    pair: Service, asynchronous: bool
) -> None:
    first, second = pair.partitions
    async with pair.consumer(auto_commit_interval_s=None) as consumer:
        await read_old(pair, consumer)
        await consumer.commit({first: 25})
        decide = pause(consumer)
        await recreate(pair)
        await resume(consumer)
        done = committing(consumer, {first: 25}, asynchronous)
        await consumer.committed(first)  # the response to a commit would come before
        assert not done.done()
        decide.set()
        error = await done
        assert isinstance(error, CommitFailed)
        assert "created again" in str(error)
        assert await consumer.committed(first) is None
        # the second partition had no committed offset to compare, and belongs to the same topic
        assert sorted(await read(consumer, 80)) == list(range(1000, 1080))
        assert {loss.partition for loss in consumer.losses} == {first, second}


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_commit_that_waits_is_given_up_when_the_log_turns_out_shorter(
    pair: Service, asynchronous: bool
) -> None:
    """Nothing tells that the topic is another one: it has no id, and nothing was committed."""
    first, second = pair.partitions
    async with pair.consumer(auto_commit_interval_s=None) as consumer:
        await read_old(pair, consumer)
        reachable = hold_commits_of(consumer)
        ended = committing(consumer, {first: 25}, asynchronous)
        await asyncio.to_thread(pair.cluster.delete_topic, pair.topic)
        await asyncio.to_thread(pair.cluster.create_topic, pair.topic, 2)
        await pair.produce(1000, 1020)
        assert sorted(await read(consumer, 20)) == list(range(1000, 1020))
        assert {loss.partition for loss in consumer.losses} == {first, second}
        reachable.set()
        error = await asyncio.wait_for(ended, 30)
        assert isinstance(error, Fenced), error
        assert "belongs to what was read before" in str(error)
        assert await consumer.committed(first) is None
        await consumer.commit({first: 10})
    async with pair.consumer() as consumer:
        assert sorted(await read(consumer, 10)) == [n for n in range(1000, 1020) if n % 2]


@pytest.mark.parametrize("at_close", [False, True])
async def test_a_commit_waits_for_the_decision(pair: Service, at_close: bool) -> None:
    async with pair.consumer(auto_commit_interval_s=60.0 if at_close else None) as consumer:
        await read_old(pair, consumer)
        if at_close:
            await consumer.getbatch(0)  # all records are done
        decide = pause(consumer)
        await resume(consumer)
        asyncio.get_running_loop().call_later(0.05, decide.set)
        if not at_close:
            await consumer.commit()
    async with pair.consumer() as consumer:
        offsets = [await consumer.committed(each) for each in pair.partitions]
        assert [at and at.offset for at in offsets] == [25, 25]


async def test_a_partition_that_moves_away_in_doubt_ends_nothing(pair: Service) -> None:
    async with pair.consumer() as one:
        await read_old(pair, one)
        await one.commit()
        decide = pause(one)
        await resume(one)
        async with pair.consumer() as other:
            await asyncio.gather(owns(one, 1), owns(other, 1))
            decide.set()
            await pair.produce(50, 60)
            assert sorted([*await read(one, 5), *await read(other, 5)]) == list(range(50, 60))


async def test_a_position_beyond_the_end_of_one_log_says_nothing_of_the_topic(pair: Service) -> None:
    one, other = pair.partitions
    async with pair.consumer(auto_commit_interval_s=None) as consumer:
        await read_old(pair, consumer)
        await consumer.commit()
        consumer.pause(other)
        consumer.seek(other, 45)
        decide = pause(consumer)
        await resume(consumer)
        decide.set()
        await pair.produce(50, 60)  # up to offset 30
        records = [await consumer.getone() for _ in range(35)]  # `other` once more from its beginning
        assert [record.offset for record in records if record.partition == one.partition] == list(range(25, 30))
        assert [(loss.partition, loss.recreated) for loss in consumer.losses] == [(other, False)]


async def test_topics_of_another_cluster_tell_nothing(
    pair: Service, cluster_factory: Callable[..., LocalCluster]
) -> None:
    """The group keeps the ZooKeeper of its old brokers."""
    old = cluster_factory(kafka="0.9.0.1")
    await asyncio.to_thread(old.create_topic, pair.topic, 2)
    async with pair.consumer(zookeeper=old.zookeeper) as consumer:
        await read_old(pair, consumer)
        await consumer.commit()
        decide = pause(consumer)
        await asyncio.to_thread(old.delete_topic, pair.topic)
        await asyncio.to_thread(old.create_topic, pair.topic, 2)
        await resume(consumer)
        decide.set()
        await pair.produce(50, 60)
        assert sorted(await read(consumer, 10)) == list(range(50, 60))
        assert consumer.losses == ()


async def test_a_log_that_ended_before_the_position_is_another_one(pair: Service) -> None:
    """The coordinator was away at the deletion and has kept the offsets. The new log grows before it responds."""
    asked, answer = asyncio.Event(), asyncio.Event()
    async with pair.consumer(auto_commit_interval_s=None) as consumer:
        await read_old(pair, consumer)
        await consumer.commit()
        decide, send = pause(consumer), client_of(consumer).send

        async def late(broker: int, request: Any, *rest: Any) -> Any:
            if type(request).__name__ == "OffsetFetchRequest":
                asked.set()
                await answer.wait()
            return await send(broker, request, *rest)

        client_of(consumer).send = late  # type: ignore[method-assign]
        await asyncio.to_thread(pair.cluster.delete_topic, pair.topic)
        await asyncio.sleep(3 * POLL_S)
        await asyncio.to_thread(pair.cluster.create_topic, pair.topic, 2)
        async with pair.consumer(membership="fixed", partitions=pair.partitions, auto_commit_interval_s=None) as other:
            await other.commit(dict.fromkeys(pair.partitions, 25))
        await resume(consumer)
        decide.set()
        reading = asyncio.ensure_future(read(consumer, 80))
        await wait_until_async(lambda: asked.is_set() or consumer.losses, 30, "the decision")
        await pair.produce(1000, 1080)
        answer.set()
        assert sorted(await reading) == list(range(1000, 1080))
        assert {loss.partition for loss in consumer.losses} == {*pair.partitions}


@pytest.mark.long
async def test_a_znode_decides_while_the_coordinator_is_away(
    topic_factory: Callable[..., str], group: str, short_absence: None
) -> None:
    settings = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 4}
    with LocalCluster("1.1.1", brokers=2, broker_config=settings) as cluster:
        setting = Service(cluster, topic_factory(2, cluster=cluster), group, partitions=2)
        async with setting.consumer(zookeeper=cluster.zookeeper) as consumer:
            await read_old(setting, consumer)
            await consumer.commit()
            client = client_of(consumer)
            away = await GroupOffsets(client, group).find()
            (there,) = [tp for tp in setting.partitions if client.leader(tp) != away]
            consumer.pause(*setting.partitions)
            await asyncio.sleep(4 * POLL_S)
            broker = cluster.brokers[sorted(each.node_id for each in client.brokers).index(away)]
            await asyncio.to_thread(broker.stop)
            consumer.resume(*setting.partitions)
            await asyncio.to_thread(cluster.produce, setting.topic, [(None, b"7", there.partition)] * 10)
            assert await read(consumer, 10) == [7] * 10
