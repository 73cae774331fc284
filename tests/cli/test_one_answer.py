"""Every view of a group gives one answer: in what state it is, who is in it, and who owns its partitions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allocator import Consumer
from allocator.cli.access import Access
from allocator.cli.commands import main
from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.joining import joined
from tests.web.served import PATIENCE_S, as_described, served

pytestmark = pytest.mark.deadline(180)


class Scene:
    """A topic with four partitions, a group, and the commands that show it."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        # a chroot, so that `list` finds no group of another test
        self.zookeeper = f"{cluster.zookeeper}/{group}"
        self.both = ("--zookeeper", self.zookeeper, "--brokers", cluster.bootstrap)

    async def shell(self, *words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*words])

    async def shown(self, *words: str) -> tuple[int, Any]:
        done = await self.shell(*words, "--json")
        return done.exit_code, json.loads(done.stdout)

    async def listed(self, *where: str) -> tuple[int, Mapping[str, Any]]:
        """The exit code, and the line of this group."""
        code, found = await self.shown("group", "list", *where)
        (one,) = (each for each in found["groups"] if each["group"] == self.group)
        return code, one

    async def findings(self, *where: str) -> Mapping[str, Any]:
        _, found = await self.shown("doctor", self.group, "--interval", "0", *where)
        return {each["id"]: each for each in found["findings"]}

    @contextlib.asynccontextmanager
    async def member(self, membership: str, *, owns: int = 4, **settings: Any) -> AsyncIterator[Consumer]:
        if membership != "kafka":
            # older members are beside the chroot, as Kafka's own znodes are
            settings["zookeeper"] = self.zookeeper if membership == "zookeeper" else self.cluster.zookeeper
        settings = {"brokers": self.cluster.bootstrap, "group": self.group, "auto_commit_interval_s": None, **settings}
        async with Consumer(self.topic, **joined(membership, **settings)) as consumer:
            while len(consumer.assignment()) < owns:
                await consumer.getbatch(0.1)
            yield consumer

    async def commit(self) -> None:
        offsets = {TopicPartition(self.topic, number): OffsetAndMetadata(0, "", -1) for number in range(4)}
        async with KafkaClient(self.cluster.bootstrap) as client:
            await GroupOffsets(client, self.group).commit(offsets)


@pytest.fixture
def scene(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Scene:
    topic = topic_factory(4)
    kafka_cluster.produce(topic, [b"%d" % n for n in range(40)])
    with zookeeper_client(kafka_cluster.zookeeper) as zk:
        zk.ensure_path(f"/{group}")
    return Scene(kafka_cluster, topic, group)


@pytest.mark.parametrize("other", ["kafka", "kiel", "consumers"])
async def test_members_beside_those_that_are_shown_are_named(scene: Scene, other: str) -> None:
    group = scene.group
    async with scene.member("zookeeper"), scene.member(other, client_id="the-other") as beside:
        name = "the-other" if other == "kafka" else "1 members under"
        code, found = await scene.shown("group", "describe", group, *scene.both)
        (problem,) = (each for each in found["problems"] if "which are not shown here" in each)
        assert code == 1, "the output is incomplete"
        assert name in problem
        code, line = await scene.listed(*scene.both)
        assert (code, line["problems"]) == (1, [problem])
        several = (await scene.findings(*scene.both))["several-protocols"]
        assert len(several["where"]) == 2
        # the remedy of the finding names the members to stop
        done = await scene.shell(*shlex.split(several["command"])[1:])
        assert name in " ".join(done.output.split())
        async with served(scene.zookeeper, scene.cluster.bootstrap) as it:

            async def warned() -> bool:
                (one,) = (await it.json("/api/groups"))["groups"]
                return bool(one["findings"]["critical"])

            await wait_until_async(warned, PATIENCE_S, "the page to show the finding")
        await beside.close()
    assert (await scene.listed(*scene.both))[0] == 0


async def test_older_members_beside_those_in_kafka_are_named(scene: Scene) -> None:
    async with scene.member("kafka"), scene.member("kiel"):
        code, found = await scene.shown("group", "describe", scene.group, *scene.both)
        assert (code, len(found["members"])) == (1, 1)
        assert any("1 members under /kiel/groups" in each for each in found["problems"])
        assert "several-protocols" in await scene.findings(*scene.both)


async def test_a_group_that_nobody_reads_is_stable_in_no_view(scene: Scene) -> None:
    def refuses(view: Any) -> Any:
        raise ValueError("no such customer")

    group = scene.group
    async with scene.member("zookeeper", owns=0, assignor=refuses):

        async def refused() -> bool:
            return "no such customer" in str(await scene.shown("group", "describe", group, *scene.both))

        await wait_until_async(refused, PATIENCE_S, "the leader to report the error")
        # with the brokers, the partitions without an owner are known; without them, only that the leader assigned none
        for where, state in ((scene.both, "rebalancing"), (scene.both[:2], "unknown")):
            _, found = await scene.shown("group", "describe", group, *where)
            _, line = await scene.listed(*where)
            assert (found["state"], line["state"], line["members"]) == (state, state, 1)
        for brokers, phase, unowned in ((scene.cluster.bootstrap, "rebalancing", 4), (None, "unknown", None)):
            async with served(scene.zookeeper, brokers) as it:
                views = []

                async def settled(it: Any = it, views: list[Any] = views, wanted: Any = (phase, unowned)) -> bool:
                    found = await it.json("/api/groups")
                    as_described("/api/groups", found)
                    (one,) = found["groups"]
                    views.append((one["phase"], one["unowned"]))
                    return one["members"] == 1 and views[-1] == wanted

                await wait_until_async(settled, PATIENCE_S, f"the page to show {phase}, {unowned} without an owner")
                assert "stable" not in [shown for shown, _ in views], "nor in the first view"
    async with scene.member("zookeeper"):
        for where in (scene.both, scene.both[:2]):
            assert (await scene.listed(*where))[1]["state"] == "stable"
            assert (await scene.shown("group", "describe", group, *where))[1]["state"] == "stable"


async def test_a_root_without_the_group_is_no_sign_that_nobody_reads(scene: Scene) -> None:
    await scene.commit()
    wrong = (*scene.both, "--root", "/nosuch")
    async with scene.member("zookeeper"):
        code, found = await scene.shown("group", "describe", scene.group, *wrong)
        assert (code, found["state"]) == (1, "unknown")
        (problem,) = found["problems"]
        assert f"ZooKeeper has no group '{scene.group}' under /nosuch" in problem
        assert "correct the name, --zookeeper or --root" in problem
        done = await scene.shell("group", "describe", scene.group, *wrong)
        assert "unknown members, an unknown number of 4 partitions owned" in " ".join(done.output.split())
        shown = await scene.findings(*wrong)
        assert "no-members" not in shown
        assert "Kafka has offsets of it, and no members" in shown["unknown-group"]["what"]
    # as the commands that write
    with pytest.raises(AllocatorError, match="Correct the name, --zookeeper or --root"):
        await Access(scene.zookeeper, "/nosuch", brokers=scene.cluster.bootstrap).check_members_known(scene.group)
    alone = ("--zookeeper", "none", "--brokers", scene.cluster.bootstrap)
    code, found = await scene.shown("group", "describe", scene.group, *alone)
    assert (code, found["state"], found["problems"]) == (0, "empty", [])
    assert "no-members" in await scene.findings(*alone)


@pytest.mark.parametrize("layout", ["kiel", "consumers"])
async def test_a_live_group_of_an_older_layout_is_listed_and_its_owners_are_unknown(scene: Scene, layout: str) -> None:
    await scene.commit()
    async with scene.member(layout):
        for where in (scene.both, scene.both[:2]):
            code, line = await scene.listed(*where)
            assert (code, line["state"], line["members"], line["partitions"]) == (1, "unknown", None, None)
            code, found = await scene.shown("group", "describe", scene.group, *where)
            assert (code, found["state"]) == (1, "unknown")
            assert line["problems"][0] in found["problems"]
        done = await scene.shell("group", "describe", scene.group, *scene.both)
        assert "0 of 4 partitions owned" not in " ".join(done.output.split())
        for words in (("pause", f"{scene.topic}:0"), ("seek", f"{scene.topic}:0", "--to", "earliest")):
            code, refused = await scene.shown("group", words[0], scene.group, *words[1:], *scene.both)
            assert code == 1
            assert "Commands about records need" in refused["error"]["message"]
        code, refused = await scene.shown("group", "freeze", scene.group, *scene.both)
        assert "Commands about members and moves need" in refused["error"]["message"]
    # what has ended is no group of `list`
    _, found = await scene.shown("group", "list", *scene.both[:2])
    assert found == {"groups": []}


async def test_the_groups_of_kafka_are_listed_if_no_zookeeper_is_named(scene: Scene) -> None:
    async with scene.member("kafka"):
        for where in (("--zookeeper", "none"), ()):
            _, line = await scene.listed("--brokers", scene.cluster.bootstrap, *where)
            assert (line["state"], line["members"], line["partitions"], line["problems"]) == ("stable", 1, 4, [])
            assert line["generation"] is None, "Kafka does not tell it"


async def test_a_move_that_has_ended_is_not_offered_again(scene: Scene) -> None:
    adopt = ("group", "adopt", scene.group, "--zookeeper", scene.cluster.zookeeper)

    async def read(consumer: Consumer) -> None:
        while True:  # the move waits for a batch that is in hand
            await consumer.getbatch(0.1)

    async with scene.member("kiel") as consumer:
        assert "add --execute" in (await scene.shell(*adopt)).output
        reading = asyncio.ensure_future(read(consumer))
        done = await scene.shell(*adopt, "--execute")
        assert (done.exit_code, "1 members own 4 partitions under /allocator" in done.output) == (0, True), done.output
        again = await scene.shell(*adopt, "--execute")
        reading.cancel()
        await asyncio.wait([reading])
        assert "has moved to /allocator already" in again.output
        assert "release" not in again.output
    for words in ((), ("--execute",)):  # its members have stopped
        again = await scene.shell(*adopt, *words)
        assert (again.exit_code, "has moved to /allocator already" in again.output) == (0, True), again.output
        assert "add --execute" not in again.output


def test_the_package_runs_as_the_command_does() -> None:
    for module in ("allocator", "allocator.cli"):
        done = subprocess.run([sys.executable, "-m", module, "group", "--help"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.startswith("Usage: allocator group")) == (0, True), done.stderr
