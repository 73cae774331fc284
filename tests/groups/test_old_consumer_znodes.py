"""Registrations of Kafka 0.8's own consumers, and groups of allocator's members in their layouts."""

from __future__ import annotations

import asyncio
import json

import pytest

from allocator.documents.checked import InvalidZnode
from allocator.protocols.legacy.old_consumer import NUDGE_S, OldSubscription
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.groups.layout_bench import Bench
from tests.groups.lost_responses import lossy

# as kafka.tools.ConsoleConsumer 0.8.2.2 writes it
JAVA = b'{"version":1,"subscription":{"orders":2},"pattern":"white_list","timestamp":"1700000000000"}'


def test_subscriptions_of_java_are_decoded() -> None:
    assert OldSubscription.decode("/p", JAVA).threads("orders") == 2
    assert OldSubscription.decode("/p", JAVA).threads("orders2") == 0
    black = OldSubscription("black_list", {"a.*, b": 1})
    assert [black.threads(topic) for topic in ("abc", "b", "c", "__consumer_offsets")] == [0, 0, 1, 0]
    static = OldSubscription("static", {"a": 1, "b": 3})
    assert [static.threads(topic) for topic in ("a", "b", "c")] == [1, 3, 0]
    assert OldSubscription.decode("/p", static.encode()) == static


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"orders", "it looks like a member of pykafka"),
        (b'{"subscription": {}, "pattern": "other"}', "its pattern is 'other'"),
        (b'{"subscription": {"(": 1}, "pattern": "white_list"}', "missing"),
        (b"\xff", "not a subscription"),
        (b"[]", "not a subscription"),
    ],
)
def test_an_invalid_subscription_is_refused_with_its_path(data: bytes, why: str) -> None:
    with pytest.raises(InvalidZnode, match="znode /ids/x is not readable") as caught:
        OldSubscription.decode("/ids/x", data)
    assert why in str(caught.value)


@pytest.fixture(params=["consumers", "pykafka"])
def bench(zk_chroot: str, group: str, request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param, zk_chroot, group, t=10, u=3)


async def test_the_new_owner_waits_for_the_old_one(bench: Bench) -> None:
    async with bench.members("a") as (a,):
        await bench.settled(a)
        a.owner.may_drain.clear()
        async with bench.members("b") as (b,):
            await asyncio.wait_for(a.owner.draining.wait(), 30)
            assert not b.owner.owned
            a.owner.may_drain.set()
            await bench.settled(a, b)


async def test_a_claim_of_another_client_is_respected(bench: Bench) -> None:
    """A claim of another client, under its own name and with another leader."""
    name = {"consumers": "t/4", "pykafka": "b't'/1-4"}[bench.layout]
    path = f"/consumers/{bench.group}/owners/{name}"
    async with bench.zookeeper() as zk:
        await zk.ensure_path(path.rpartition("/")[0])
        await zk.create(path, b"another", ephemeral=True)
        async with bench.members("a") as (a,):
            await wait_until_async(lambda: len(a.owner.owned) == 12, 30, "all but one")
            assert TopicPartition("t", 4) not in a.owner.owned
            await zk.delete(path)
            await bench.settled(a)


async def test_a_member_in_the_other_dialect_is_reported(bench: Bench) -> None:
    data = {"consumers": b"t", "pykafka": JAVA}[bench.layout]
    async with bench.zookeeper() as zk:
        await zk.ensure_path(f"/consumers/{bench.group}/ids")
        await zk.create(f"/consumers/{bench.group}/ids/other", data, ephemeral=True)
        async with bench.members("a") as (a,):
            await wait_until_async(lambda: bool(a.owner.errors), 30, "the error")
            assert "ids/other" in str(a.owner.errors[0])
            assert "cannot have members of" in str(a.owner.errors[0])


@pytest.mark.parametrize("response", ["arrives", "is lost"])
async def test_java_members_rebalance_again_after_a_long_drain(zk_chroot: str, group: str, response: str) -> None:
    """They retry a few times and then wait for the next change of the members. The member keeps its partitions."""
    bench = Bench("consumers", zk_chroot, group, t=10, u=3)
    async with (
        bench.zookeeper() as zk,
        lossy(bench.hosts, session_timeout_s=6.0) as mine,
        bench.members("a", zk=mine) as (a,),
    ):
        await bench.settled(a)
        a.owner.may_drain.clear()
        subscription = json.dumps({"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "1"})
        await zk.create(f"/consumers/{group}/ids/zz-java", subscription.encode(), ephemeral=True)
        await asyncio.wait_for(a.owner.draining.wait(), 30)
        for _ in range(3):  # its znode is written several times
            assert await a.membership.confirm()
        changed = asyncio.Event()
        await zk.get_children(f"/consumers/{group}/ids", changed.set)
        await asyncio.sleep(NUDGE_S)  # longer than they try
        lost = mine.lose("create", "/ids/") if response == "is lost" else None
        a.owner.may_drain.set()
        await asyncio.wait_for(changed.wait(), 30)
        if lost is not None:
            await asyncio.wait_for(lost.wait(), 30)
        assert await a.membership.confirm()
        assert not a.owner.lost_partitions
        assert a.owner.owned == {TopicPartition("t", n) for n in range(5)} | {TopicPartition("u", n) for n in range(3)}
        assert set(await zk.get_children(f"/consumers/{group}/ids")) == {a.membership.member_id, "zz-java"}


async def test_a_znode_with_the_name_of_the_nudge_ends_no_membership(
    zk_chroot: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("consumers", zk_chroot, group, t=10, u=3)
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        a.owner.may_drain.clear()
        await zk.create(f"/consumers/{group}/ids/zz-java", JAVA.replace(b"orders", b"t"), ephemeral=True)
        await asyncio.wait_for(a.owner.draining.wait(), 30)
        await zk.create(f"/consumers/{group}/ids/{a.membership.member_id}-released", JAVA.replace(b"orders", b"z"))
        await asyncio.sleep(NUDGE_S)  # a shorter drain nudges nobody
        a.owner.may_drain.set()
        await wait_until_async(lambda: "may not notice" in caplog.text, 30, "the nudge to be refused")
        assert await a.membership.confirm()
        assert not a.owner.lost_partitions
        assert not a.owner.errors
