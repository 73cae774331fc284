"""The page shows groups of Kafka's own protocols, and accepts commands about their records."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from allocator import Consumer, Kafka, KafkaGroupCommands
from allocator.cli.access import Access
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import ConfigError, GroupNameError
from allocator.operate import read_group
from allocator.operate.doctor import examine_clusters
from allocator.operate.doctor.finding import COULD_NOT_LOOK
from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST
from allocator.testing.waiting import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.inside import member_of
from tests.web.served import BEARER, PATIENCE_S, Served, as_described, served

pytestmark = pytest.mark.deadline(150)


def member(cluster: LocalCluster, group: str, topic: str, name: str = "worker") -> Consumer:
    return Consumer(
        topic,
        brokers=cluster.bootstrap,
        group=group,
        membership=Kafka(session_timeout_s=20.0),
        client_id=name,
        max_wait_s=0.05,
    )


async def shows(it: Served, group: str, members: int) -> Any:
    """The group, once it is stable and has this number of members."""

    async def found() -> Any:
        response = await it.request(f"/api/groups/{group}")
        now = json.loads(response.body) if response.code == 200 else {"phase": "unknown", "members": []}
        whole = now["phase"] == "stable" and not now["unowned"] and len(now["members"]) == members
        return now if whole else None

    return await wait_until_async(found, PATIENCE_S, lambda: f"{members} members of {group}")


@pytest.mark.parametrize("kafka", [pytest.param("2.8.2", marks=pytest.mark.long), NEWEST])
async def test_a_page_without_zookeeper_shows_members_moves_and_lag(
    kafka: str, cluster_factory: Any, unique_name: Callable[[], str], group: str
) -> None:
    cluster = cluster_factory(kafka=kafka)
    topic, unread = unique_name(), unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 4)
    await asyncio.to_thread(cluster.produce, topic, [(None, b"x", 0)] * 3)
    await asyncio.to_thread(cluster.create_topic, unread, 2)
    await asyncio.to_thread(cluster.produce, unread, [(None, b"x", 0), (None, b"x", 1)])
    async with served(None, cluster.bootstrap, kafka_groups=[group, f"{group}-other"]) as it:
        await wait_until_async(lambda: it.watcher.ready, PATIENCE_S)
        known = await it.json("/api/groups")
        assert (known["groups"], known["absent"]) == ([], [group, f"{group}-other"]), "of which Kafka has nothing"
        assert "neither members nor offsets" in (await it.request(f"/api/groups/{group}")).body.decode()
        assert (await it.request("/health/ready")).code == 200
        async with member(cluster, group, topic, "one") as one:
            await wait_until_async(lambda: len(one.assignment()) == 4, PATIENCE_S)
            found = await shows(it, group, 1)
            async with member(cluster, group, topic, "two") as two:
                await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 2, PATIENCE_S)
                found = await shows(it, group, 2)
                as_described("/api/groups/{group}", found)
                assert (found["protocol"], found["generation"], found["leader"]) == ("kafka", None, None)
                assert {each["client_id"]: each["partitions"] for each in found["members"]} == {"one": 2, "two": 2}
                named = {each["id"]: each["client_id"] for each in found["members"]}
                (shown,) = found["topics"]
                owners = [list(named.values())[index] for index in shown["owners"]]
                held = sorted(p.partition for p in one.assignment())
                assert [n for n, owner in enumerate(owners) if owner == "one"] == held
                joined = next(each for each in found["rebalances"] if "joined: two" in each["why"][0])
                assert joined["moved"] == 2
                assert joined["took_s"] is None, "a polled group has no duration"
                moves = await it.json(f"/api/groups/{group}/rebalances/{joined['id']}")
                assert sum(len(each["partitions"]) for each in moves["topics"]) == 2
                overview = await it.json("/api/groups")
                as_described("/api/groups", overview)
                assert [each["cluster"] for each in overview["clusters"]] == ["kafka"]
                listed = {each["topic"]: each for each in (await it.json("/api/topics"))["topics"]}
                assert (listed[unread]["records"], listed[unread]["groups"]) == (2, [])
            found = await shows(it, group, 1)
            assert any(why.startswith("left: two") for each in found["rebalances"] for why in each["why"])

            record = await one.getone(PATIENCE_S)
            assert record is not None
            await one.commit()

            async def lag() -> Any:
                offsets = await it.json(f"/api/groups/{group}/offsets")
                return offsets["topics"][topic]["lag"][0] == 2

            await wait_until_async(lag, PATIENCE_S)
            offsets = await it.json(f"/api/groups/{group}/offsets")
            assert offsets["topics"][topic]["fence"] == [None] * 4
            text = (await it.request("/metrics")).body.decode()
            samples = {
                (sample.name, sample.labels.get("group")): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert samples["allocator_group_members", group] == 1
            assert ("allocator_group_generation", group) not in samples
        # the coordinator keeps an empty group, because it has offsets
        await wait_until_async(lambda: not it.watcher.groups[group].report.state.members, PATIENCE_S)


@pytest.mark.parametrize("with_zookeeper", [False, True], ids=["brokers alone", "and ZooKeeper"])
async def test_a_group_that_has_offsets_and_never_had_members_is_shown(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, with_zookeeper: bool
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"x", 0)] * 5)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        await GroupOffsets(client, group).commit({TopicPartition(topic, 0): OffsetAndMetadata(2, "", -1)})
    zookeeper = kafka_cluster.zookeeper if with_zookeeper else None
    async with served(zookeeper, kafka_cluster.bootstrap, kafka_groups=[group, f"{group}-other"]) as it:

        async def shown() -> Any:
            found = await it.json("/api/groups")
            own = [each for each in found["groups"] if each["group"] == group and each["measured_at"] is not None]
            return (found, own[0]) if own else None

        found, own = await wait_until_async(shown, PATIENCE_S, "the group without members")
        assert (own["lag"], own["partitions"], found["absent"]) == (3, 1, [f"{group}-other"])


async def test_all_outputs_count_committed_partitions_while_the_coordinator_waits_for_a_member(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"x", 0)] * 30 + [(None, b"x", 1)] * 10)
    # an eager function: the busy member joins again only when its batch is done, and the other one waits for it
    eager: dict[str, Any] = {"membership": "kafka", "assignor": "range", "auto_commit_interval_s": None}
    busy, second = (Consumer(topic, brokers=kafka_cluster.bootstrap, group=group, **eager) for _ in range(2))
    async with served(None, kafka_cluster.bootstrap, kafka_groups=[group]) as it, busy:
        await wait_until_async(lambda: len(busy.assignment()) == 2, PATIENCE_S)
        await busy.commit(dict.fromkeys(busy.assignment(), 1))
        while await busy.getbatch(PATIENCE_S) is None:
            pass

        async def summary(**wanted: Any) -> Any:
            groups = (await it.json("/api/groups"))["groups"]
            return next((each for each in groups if each.items() >= wanted.items()), None)

        await wait_until_async(lambda: summary(phase="stable", lag=38), PATIENCE_S, "the lag of the busy member")
        joining = asyncio.ensure_future(second.start())
        try:
            waits = partial(summary, phase="rebalancing", members=2)
            first = (await wait_until_async(waits, PATIENCE_S, "the wait for the busy member"))["measured_at"]

            async def measured_twice() -> Any:  # the second time surely while it waits
                found = await waits()
                return found if found and found["measured_at"] > first else None

            shown = await wait_until_async(measured_twice, PATIENCE_S, "a poll during the wait")
            assert (shown["lag"], shown["unowned"]) == (38, 2)
            text = (await it.request("/metrics")).body.decode()
            sums: Counter[str] = Counter()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sums[sample.name] += sample.value
            assert sums["allocator_group_lag"] == sums["kafka_consumergroup_lag"] == 38
            assert sums["allocator_group_unowned_partitions"] == 2
            report = await read_group(Access(None, brokers=kafka_cluster.bootstrap), group)
            assert (report.phase, report.to_json()["lag"], len(report.unowned)) == ("rebalancing", 38, 2)
            assert "0 of 2 partitions owned, lag 38" in report.headline()
        finally:
            joining.cancel()
            await asyncio.wait({joining})


async def test_commands_about_records_are_previewed_given_and_withdrawn(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(2)
    pause = {"kind": "pause", "arguments": {"partitions": {topic: "1"}}}
    async with (
        served(None, kafka_cluster.bootstrap, kafka_groups=[group]) as it,
        member(kafka_cluster, group, topic) as consumer,
    ):
        await wait_until_async(lambda: len(consumer.assignment()) == 2, PATIENCE_S)
        (shown,) = (await shows(it, group, 1))["members"]

        async def post(what: str, body: Any, code: int = 200) -> Any:
            response = await it.request(f"/api/groups/{group}/{what}", body, Authorization=BEARER)
            found = json.loads(response.body)
            assert response.code == code, found
            as_described(f"/api/groups/{{group}}/{what}", found, "post", str(code))
            return found

        async def commands(count: int) -> Any:
            found = (await it.json(f"/api/groups/{group}"))["commands"]
            return found or True if len(found) == count else None

        seen = await post("commands/preview", pause)
        assert seen["creates"] == f"{group}.orders"
        assert [(row["partition"], row["owner_name"]) for row in seen["partitions"]] == [(1, shown["name"])]
        refused = await post("commands/put", pause, 409)
        assert "does not exist" in refused["error"]["message"]
        assert await commands(0)
        given = await post("commands/put", {**pause, "why": "its customer", "create": True})
        assert (await post("commands/preview", pause))["creates"] is None
        (command,) = await wait_until_async(partial(commands, 1), PATIENCE_S, "the command on the page")
        assert (command["id"], command["why"], command["who"]) == (given["command"], "its customer", "token")
        state, one = member_of(consumer).state, TopicPartition(topic, 1)
        await wait_until_async(lambda: not state.is_fetchable(one), PATIENCE_S, "the pause")
        assert (await post("commands/withdraw", pause))["withdrawn"] == [command["id"]]
        await wait_until_async(lambda: state.is_fetchable(one), PATIENCE_S, "the end of the pause")
        await wait_until_async(partial(commands, 0), PATIENCE_S, "no command on the page")
        for offset in (0, 99):  # the log is empty: a record of either offset would come later
            skip = {"kind": "skip", "arguments": {"partitions": {topic: "1"}, "offset": offset}}
            for what in ("commands/preview", "commands/put"):
                assert f"{topic}:1 has no records" in (await post(what, skip, 400))["error"]["message"]
        async with KafkaGroupCommands(kafka_cluster.bootstrap, group) as operator:
            with pytest.raises(ConfigError, match=f"offset 0 is outside the log: {topic}:0 has no records"):
                await operator.skip(TopicPartition(topic, 0), 0)
            report = await operator.pause([TopicPartition(topic, 2)])
            assert report.why == f"the command waits for partitions that the cluster does not have: {topic}:2"
            await operator.remove(report.command.id)
        again = await post("commands/put", pause)
        await post("commands/remove", {"ids": [again["command"]]})
        await wait_until_async(partial(commands, 0), PATIENCE_S, "no command on the page")

        # the coordinator assigns the partitions, so commands to a leader have no effect
        freeze: Any = {"kind": "freeze", "arguments": {}}
        for what in ("commands/preview", "commands/put", "plan", "rebalance", "pause", "resume"):
            found = await post(what, freeze if what.startswith("commands") else {}, 409)
            assert 'membership="zookeeper"' in found["error"]["message"], (what, found)


NOT_ZNODES = ("a/b", "b\N{LATIN SMALL LETTER A WITH DIAERESIS}r\U0001f600", "..", "two\nlines")


@pytest.mark.parametrize("with_zookeeper", [False, True], ids=["brokers alone", "and ZooKeeper"])
async def test_a_group_that_could_not_be_in_zookeeper_is_shown(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, with_zookeeper: bool
) -> None:
    topic = topic_factory(2)
    names = [".." if name == ".." else group + name for name in NOT_ZNODES]
    zookeeper = kafka_cluster.zookeeper if with_zookeeper else None
    access = Access(zookeeper, brokers=kafka_cluster.bootstrap, kafka_groups=frozenset(names))
    async with contextlib.AsyncExitStack() as stack:
        it = await stack.enter_async_context(served(zookeeper, kafka_cluster.bootstrap, kafka_groups=names))
        for name in names:
            await stack.enter_async_context(member(kafka_cluster, name, topic))
        for name in names:
            await shows(it, quote(name, safe=""), 1)
        examined = await examine_clusters(access, names[0], None, None, 0.1, 60.0)
        assert not [each for each in examined if each.id in ("unknown-group", COULD_NOT_LOOK)]
        assert {each.state.group for each in [await read_group(access, name) for name in names]} == {*names}
        await wait_until_async(lambda: all(it.watcher.groups[name].trends.last for name in names), PATIENCE_S)


async def test_a_name_that_only_zookeeper_could_have_is_refused(kafka_cluster: LocalCluster) -> None:
    with pytest.raises(GroupNameError, match="cannot be a znode"):
        await read_group(Access(kafka_cluster.zookeeper), "a/b")
