"""A znode chooses the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import allocator
from allocator import Consumer, GroupCommands, GroupedConsumer, Record
from allocator.core.consumer import client_of
from allocator.errors import AllocatorError, Closed, ConfigError
from allocator.operate import describe
from allocator.operate.switching import ChoiceWatcher, SwitchingConsumer
from allocator.protocols.zookeeper.client.client import SessionState, ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import FaultProxy, LocalCluster, produce, wait_until_async
from tests.consumer.real_service import read_on
from tests.groups.zookeeper_sessions import session
from tests.inside import member_of, session_of, watcher_of
from tests.joining import joined

pytestmark = pytest.mark.deadline(120)


class Group:
    """A topic, a group, and the choice of its cluster."""

    def __init__(self, cluster: LocalCluster, chroot: str, topic: str, group: str) -> None:
        self.brokers, self.zookeeper, self.topic, self.group = cluster.bootstrap, chroot, topic, group
        self.path = choice_path("/allocator", group)

    def consumer(self, **options: Any) -> SwitchingConsumer:
        where = {"brokers": self.brokers, "group": self.group, "zookeeper": self.zookeeper}
        return SwitchingConsumer(self.topic, **joined(**where, **options))

    async def produce(self, value: bytes) -> None:
        await asyncio.to_thread(produce, self.brokers, self.topic, [value])

    async def choose(self, ensemble: ZooKeeperClient, choice: ClusterChoice) -> None:
        await choose_cluster(ensemble, self.path, choice)

    async def members(self, ensemble: ZooKeeperClient) -> list[str]:
        return await ensemble.get_children(f"/allocator/{self.group}/members")


@pytest.fixture
def it(kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str) -> Group:
    return Group(kafka_cluster, str(zk_chroot), topic_factory(1), group)


async def _forever(consumer: SwitchingConsumer) -> None:
    while True:
        await consumer.getbatch(1.0)


async def _reads(consumer: SwitchingConsumer) -> bool:
    with contextlib.suppress(AllocatorError):  # the watcher has not been notified yet
        await consumer.getbatch(0.1)
    return bool(consumer.assignment())


async def _left(consumer: SwitchingConsumer) -> bool:
    await consumer.getbatch(0.1)
    return consumer.brokers is None


async def test_each_cluster_has_its_own_security(it: Group) -> None:
    await it.produce(b"v")
    other = it.brokers.replace("127.0.0.1", "localhost")
    consumer = it.consumer(securities={other: {"security_protocol": "SSL"}}, connect_timeout_s=3.0)
    async with session(it.zookeeper) as ensemble, consumer:
        batch = await consumer.getbatch(30)
        assert batch is not None
        assert consumer.may_act(batch)
        assert consumer.may_act(batch[0])
        await it.choose(ensemble, ClusterChoice(other))
        with pytest.raises(AllocatorError, match="localhost"):  # there is no TLS
            await _forever(consumer)
        assert consumer.brokers is None
        assert not consumer.may_act(batch[0])
        await it.choose(ensemble, ClusterChoice())
        await wait_until_async(lambda: _reads(consumer), 60, "the consumer to read again")
        assert consumer.brokers == it.brokers
        assert consumer.may_act()
        assert not consumer.may_act(batch[0])


async def test_an_evacuated_member_without_a_client_id_stays_evacuated_after_a_pause(it: Group) -> None:
    commands = GroupCommands(it.zookeeper, it.group)
    async with session(it.zookeeper) as ensemble, commands, it.consumer(assignor="sticky") as one:

        async def names() -> set[str]:
            state = await describe(ensemble, it.group)
            return set() if state is None else {each.name for each in state.members.values()}

        async def moved() -> bool:
            await _reads(one)
            return await _reads(two)

        await wait_until_async(lambda: _reads(one), 30, "the first member to read")
        (name,) = await names()
        await commands.evacuate(name)
        async with it.consumer(assignor="sticky") as two:
            await wait_until_async(moved, 30, "the partition to move")
            before = await names()
            assert len(before) == 2, "two consumers of one process have different names"
            await it.choose(ensemble, ClusterChoice(it.brokers, frozen=True))
            for each in (one, two):
                await wait_until_async(lambda each=each: _left(each), 30, "the member to leave")
            await it.choose(ensemble, ClusterChoice(it.brokers))
            await wait_until_async(lambda: _reads(one), 30, "the evacuated member to read, as the only one")
            await wait_until_async(moved, 30, "the partition to move again")
            assert await names() == before


# -- the sessions of the watcher and of the member ------------------------------------------------------------


async def test_a_record_on_which_its_reader_could_not_act_is_not_done_when_the_group_freezes(it: Group) -> None:
    for value in range(3):
        await it.produce(b"%d" % value)
    server, choice = it.zookeeper.partition("/")[0], ClusterChoice(it.brokers)
    acted: list[int] = []
    asked = False
    async with session(it.zookeeper) as ensemble, FaultProxy(int(server.rpartition(":")[2])) as proxy:
        it.zookeeper = it.zookeeper.replace(server, proxy.address)
        async with it.consumer(auto_commit_interval_s=0.1) as consumer:

            async def freeze(record: Record) -> None:
                await asyncio.to_thread(proxy.stop)
                await wait_until_async(lambda: not consumer.may_act(record), 30, "the end of the lease")
                await it.choose(ensemble, ClusterChoice(it.brokers, frozen=True))
                await asyncio.to_thread(proxy.start)
                await wait_until_async(watcher_of(consumer).changed.is_set, 30, "the watch")

            async def reads_all() -> bool:
                nonlocal asked
                for record in await consumer.getbatch(0.1) or ():
                    if record.offset == 1 and not asked:
                        asked = True
                        await freeze(record)
                        break
                    acted.append(record.offset)
                if asked and not consumer.assignment():
                    await it.choose(ensemble, choice)
                return {*acted} == {0, 1, 2}

            await wait_until_async(reads_all, 30, lambda: f"all records: {acted}")


async def expire(zk: ZooKeeperClient) -> None:
    """Ends the session, and waits for the next one."""
    before = zk.session_id
    zk.abort("the test ends the session")
    await wait_until_async(
        lambda: zk.session_id not in (None, before) and zk.state is SessionState.CONNECTED, 30, "another session"
    )


async def test_a_watcher_keeps_its_choice_when_its_session_is_lost(it: Group) -> None:
    zk = ZooKeeperClient(it.zookeeper, session_timeout_s=4.0)
    watcher = ChoiceWatcher(zk, it.path)
    async with session(it.zookeeper) as ensemble:
        try:
            await it.choose(ensemble, ClusterChoice("a:1"))
            await watcher.start()
            await expire(zk)
            assert watcher.current == ClusterChoice("a:1")
            assert not watcher.changed.is_set()
            await it.choose(ensemble, ClusterChoice("b:1"))
            await asyncio.wait_for(watcher.changed.wait(), 30)
            assert watcher.current == ClusterChoice("b:1")
        finally:
            await watcher.close()


async def test_a_consumer_whose_watcher_loses_its_session_stays_in_the_group(it: Group) -> None:
    options: dict[str, Any] = {"membership": allocator.ZooKeeper(session_timeout_s=7.0), "deserializer": bytes}
    consumer = GroupedConsumer(it.brokers, it.group, it.zookeeper, max_wait_time=200, **options)
    await consumer.connect()

    async def consumes() -> bool:
        return bool(await consumer.consume(it.topic))

    try:
        async with session(it.zookeeper) as ensemble:
            client, members = client_of(consumer), await it.members(ensemble)
            assert len(members) == 1
            await expire(session_of(watcher_of(consumer)))
            for value in (b"1", b"2"):
                await it.produce(value)
                await wait_until_async(consumes, 30, "a value")
            assert client_of(consumer) is client
            assert await it.members(ensemble) == members
    finally:
        await consumer.close()


async def test_a_member_that_lost_its_session_does_not_join_a_paused_group(it: Group) -> None:
    """Its watcher is disconnected, so it cannot know of the pause. An operator may be moving offsets at that time."""
    consumer = it.consumer(session_timeout_s=4.0)
    async with session(it.zookeeper) as ensemble, consumer:
        await wait_until_async(lambda: _reads(consumer), 30, "the consumer to read")
        member: Any = member_of(consumer).membership
        await watcher_of(consumer).close()
        await it.choose(ensemble, ClusterChoice(None, frozen=True))
        results, admitted = [], member.admitted

        async def recorded(zk: ZooKeeperClient) -> bool:
            results.append(await admitted(zk))
            return results[-1]

        member.admitted = recorded
        await expire(session_of(member))
        await wait_until_async(lambda: len(results) > 1, 30, "the check before it joins")
        assert results == [False] * len(results)
        assert await it.members(ensemble) == []
        await it.choose(ensemble, ClusterChoice())
        await wait_until_async(lambda: _reads(consumer), 30, "the consumer to join again")


async def test_a_close_during_a_join_leaves_no_member(it: Group) -> None:
    consumer = it.consumer()
    async with session(it.zookeeper) as ensemble:
        await it.choose(ensemble, ClusterChoice(frozen=True))
        await consumer.start()
        make, joining = consumer._make, asyncio.Event()

        def reported(**options: Any) -> Any:
            joining.set()
            return make(**options)

        consumer._make = reported  # type: ignore[assignment]
        await it.choose(ensemble, ClusterChoice())
        reading = asyncio.ensure_future(consumer.getbatch(30))
        await joining.wait()
        await consumer.close()
        await asyncio.wait({reading}, timeout=30)
        assert isinstance(reading.exception(), Closed)
        assert await it.members(ensemble) == []


async def test_a_consumer_closed_before_or_during_its_start_does_not_start() -> None:
    nowhere = {"brokers": "127.0.0.1:1", "group": "g", "zookeeper": "127.0.0.1:1"}
    consumer = SwitchingConsumer("t", **nowhere)
    await consumer.close()
    with pytest.raises(Closed):
        await consumer.start()
    consumer = SwitchingConsumer("t", **nowhere)
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed, match="closed while it connected"):
        await asyncio.wait_for(starting, 10)


# -- members that do not follow the choice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "why"),
    [(ClusterChoice("new:9092"), "read 'new:9092'.*SwitchingConsumer"), (ClusterChoice(frozen=True), "frozen")],
    ids=["moved", "frozen"],
)
async def test_a_member_with_other_brokers_than_its_group_is_refused(
    it: Group, choice: ClusterChoice, why: str
) -> None:
    """It would take partitions from the members on the other cluster, and nobody would read them there."""
    plain = {"brokers": it.brokers, "group": it.group, "membership": allocator.ZooKeeper(it.zookeeper)}
    async with session(it.zookeeper) as ensemble:
        await it.choose(ensemble, choice)
        with pytest.raises(ConfigError, match=why) as caught:
            await Consumer(it.topic, **plain).start()
        assert it.path in str(caught.value)
        assert await ensemble.exists(f"/allocator/{it.group}/members") is None
        await it.choose(ensemble, ClusterChoice(f"elsewhere:1,{it.brokers}"))
        await it.produce(b"v")
        async with Consumer(it.topic, **plain) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"v"


async def test_a_member_is_refused_whose_group_moves_while_it_joins(it: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process stands still after it has read the choice, while a cutover finds no members."""
    from allocator.protocols.zookeeper import membership

    check = membership.check_choice

    async def checked(*arguments: Any) -> None:
        await check(*arguments)
        await it.choose(ensemble, ClusterChoice("new:9092"))

    monkeypatch.setattr(membership, "check_choice", checked)
    async with session(it.zookeeper) as ensemble:
        consumer = Consumer(it.topic, brokers=it.brokers, group=it.group, membership=allocator.ZooKeeper(it.zookeeper))
        with pytest.raises(ConfigError, match="new:9092"):
            await consumer.start()
        assert await it.members(ensemble) == []


async def test_a_member_whose_group_has_moved_ends_when_its_session_does(it: Group) -> None:
    plain = {"brokers": it.brokers, "group": it.group, "membership": allocator.ZooKeeper(it.zookeeper)}
    async with session(it.zookeeper) as ensemble, Consumer(it.topic, **plain) as consumer:
        await wait_until_async(lambda: bool(consumer.assignment()), 30, "the partition")
        await it.choose(ensemble, ClusterChoice("new:9092"))
        [member] = await it.members(ensemble)
        await ensemble.delete(f"/allocator/{it.group}/members/{member}")
        with pytest.raises(ConfigError, match="new:9092"):
            await read_on(consumer)
        assert await it.members(ensemble) == []
