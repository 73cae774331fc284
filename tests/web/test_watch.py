"""The watcher while a group changes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from allocator.assignors.load_report import LoadReport
from allocator.cli.access import Access
from allocator.core.aio.tasks import BackgroundTasks
from allocator.operate import Clusters, read_group
from allocator.operate.doctor import observe
from allocator.protocols.zookeeper import Paths, Store, ZooKeeperClient
from allocator.testing import FaultProxy
from allocator.testing.waiting import wait_until_async
from allocator.web import watch
from allocator.web.daemon import Demand
from allocator.web.watch import Watcher
from tests.constants import SetConstant
from tests.groups.members import History, StaticTopics, TestMember, settled
from tests.web.served import PATIENCE_S, as_described, served
from tests.web.written_group import parts, written


async def test_the_load_that_members_report_is_shown_as_it_changes(zk_chroot: str, set_constant: SetConstant) -> None:
    set_constant(watch, LOADS_S=0.05)
    async with written(zk_chroot) as group:
        a, b = await group.join(0, 1)
        store, zk = group.store, group.store.zk
        held = {a: frozenset(parts(t=4)[:2]), b: frozenset(parts(t=4)[2:])}
        for member in held:
            info = await store.member(member)
            assert info is not None
            await zk.set(store.paths.member(member), replace(info, load_tolerance=1.1).encode())
        await group.assign(held)
        _, version = await store.document()
        await store.write_document(group.document.but(revision=2, strategy="load-bytes"), version)
        await group.claim(held)

        async def report(member: str, load: float) -> None:
            await store.write_load_report(member, LoadReport.of("bytes", dict.fromkeys(held[member], load)))

        await report(a, 10.0)
        async with served(zk_chroot) as it:
            for load, shown in ((10.0, 1.0), (30.0, 1.5)):
                await report(b, load)

                loads = {"source": "bytes", "mean": 10.0 + load, "max_over_mean": shown, "unknown": 0}
                loads["members"] = {a: 20.0, b: 2 * load}

                async def seen(loads: Any = loads) -> bool:
                    found = await it.json("/api/groups/g")
                    as_described("/api/groups/{group}", found)
                    return bool(found["loads"] == loads)

                await wait_until_async(seen, PATIENCE_S, f"max/mean of {shown}")
                metrics = (await it.request("/metrics")).body.decode()
                assert f'allocator_group_load_max_over_mean{{group="g"}} {shown}\n' in metrics


async def test_an_empty_znode_delays_no_request_and_its_group_is_shown_once_it_has_members(zk_chroot: str) -> None:
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    try:
        await zk.ensure_path("/allocator/leftover")
        async with served(zk_chroot) as it:
            await asyncio.wait_for(it.watcher.until_ready(10 * PATIENCE_S), PATIENCE_S)
            assert not it.watcher.groups["leftover"].seen
            assert json.loads((await it.request("/api/groups")).body)["groups"] == [], "as its page says"
            store = Store(zk, Paths("/allocator", "leftover"))
            await store.prepare()

            async def shown() -> bool:
                return (await it.request("/api/groups/leftover")).code == 200

            await wait_until_async(shown, PATIENCE_S, "the group in the leftover znode")
    finally:
        await zk.close()


async def test_a_group_without_a_znode_for_claims_is_a_group_everywhere(zk_chroot: str) -> None:
    """Another program may have created it, or deleted that znode."""
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    try:
        paths = Paths("/allocator", "g")
        await zk.ensure_path(paths.members)
        assert (await read_group(Clusters(zookeeper=zk_chroot), "g")).state.members == {}
        async with served(zk_chroot) as it:
            await asyncio.wait_for(it.watcher.until_ready(10 * PATIENCE_S), PATIENCE_S)
            listed = json.loads((await it.request("/api/groups")).body)["groups"]
            assert [group["group"] for group in listed] == ["g"]
            assert (await it.request("/api/groups/g")).code == 200
            await zk.ensure_path(paths.claims)
            await zk.create(f"{paths.claims}/foreign", b"", ephemeral=True)

            async def noticed() -> bool:
                return "foreign" in it.watcher.groups["g"].report.state.present

            await wait_until_async(noticed, PATIENCE_S, "the claim in the new znode")
    finally:
        await zk.close()


async def test_the_time_until_a_crash_was_noticed_is_not_part_of_the_rebalance(zk_chroot: str) -> None:
    hosts, _, chroot = zk_chroot.partition("/")
    topics, events = StaticTopics({"t": 6}), History()
    async with FaultProxy(int(hosts.rpartition(":")[2])) as proxy, served(zk_chroot) as it:
        stays, leaves = (TestMember(zk_chroot, "g", name, topics, events) for name in ("stays", "leaves"))
        crashes = TestMember(f"{proxy.address}/{chroot}", "g", "crashes", topics, events)
        async with stays, crashes:
            async with leaves:
                await wait_until_async(lambda: settled([stays, leaves, crashes], topics), PATIENCE_S)
                # 3 or less: a member that joins while the leader allocates may get the same generation
                full = stays.membership.generation
                await it.settled("g", full)
            await wait_until_async(lambda: settled([stays, crashes], topics), PATIENCE_S)
            await it.settled("g", full + 1)
            (left, *_) = (await it.json("/api/groups/g"))["rebalances"]
            assert left["why"][0].startswith("left: leaves@")
            assert left["unnoticed_s"] == 0
            proxy.drop()
            await wait_until_async(lambda: settled([stays], topics), PATIENCE_S)
            await it.settled("g", full + 2)
            (lost, *_) = (await it.json("/api/groups/g"))["rebalances"]
            assert lost["why"][0].startswith("crashed or lost its session: crashes@")
            assert lost["unnoticed_s"] == stays.zk.session_timeout_s, "the crash was at most this long before"
            assert 0 < lost["took_s"] < lost["unnoticed_s"] + PATIENCE_S
            metrics = (await it.request("/metrics")).body.decode()
            assert f'allocator_group_unnoticed_seconds_total{{group="g"}} {lost["unnoticed_s"]}' in metrics
            proxy.heal()


async def test_an_error_that_ends_the_watch_is_shown_and_the_watch_restarts() -> None:
    """The settings of a daemon name no broker: its page once stopped without a message."""
    watcher = Watcher(Access("127.0.0.1:1", brokers="foo:bar"))
    demand = Demand(watcher)
    tasks = BackgroundTasks(pytest.fail)
    tasks.start(demand.run())
    try:
        async with demand.viewing():
            for _ in range(2):
                await wait_until_async(lambda: "foo:bar" in watcher.problems.get("watcher", ""), PATIENCE_S)
                watcher.problems.clear()
    finally:
        await tasks.close()


async def test_an_unexpected_error_is_shown_and_the_watch_continues(
    zk_chroot: str, set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Injects an unexpected exception into the doctor."""
    stumbles = True

    async def stumbling(*args: Any, **kwargs: Any) -> Any:
        if stumbles:
            raise KeyError("unexpected")
        return await observe(*args, **kwargs)

    monkeypatch.setattr("allocator.web.watch.observe", stumbling)
    set_constant(watch, DOCTOR_S=0.5)
    async with written(zk_chroot, "orders") as group, served(zk_chroot) as it:
        await group.join(0)
        await wait_until_async(lambda: "unexpected" in it.watcher.problems.get("doctor", ""), PATIENCE_S)
        shown = await it.json("/api/groups")
        assert [group["group"] for group in shown["groups"]] == ["orders"]
        assert any("unexpected" in problem for problem in shown["problems"])
        assert sum("unexpected" in record.getMessage() for record in caplog.records) == 1
        stumbles = False
        await wait_until_async(lambda: "doctor" not in it.watcher.problems, PATIENCE_S)
        assert it.watcher.groups["orders"].examined >= 0
