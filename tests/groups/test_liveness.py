"""Every change of a group asks the same question, who is alive, and gets the same answer for each kind of member."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka.protocol.consumer import JoinGroupRequest
from prometheus_client import CollectorRegistry

from allocator import Consumer
from allocator.cli.access import Access
from allocator.cli.commands import main
from allocator.core.client import Coordinator, KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.errors import ConfigError
from allocator.migrate import OffsetStore
from allocator.operate import MembersAlive, read_groups
from allocator.operate.doctor import examine_clusters
from allocator.protocols.zookeeper import Claim, ZooKeeperClient
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.actions import GroupWork, actions
from allocator.web.metrics import GroupCollector
from allocator.web.watch import Watcher
from tests.joining import joined

pytestmark = pytest.mark.deadline(180)
OF_KAFKA = ("kafka", "kip848", "not a consumer")
OLDER = ("kiel", "consumers", "pykafka")
# the chroot: of this library's groups alone, so the older members are beside it
BESIDE = tuple(f"{kind} beside the chroot" for kind in OLDER)
KINDS = ("zookeeper", *OLDER, *BESIDE, *OF_KAFKA, "invalid znode", "claim alone")
JOINING_MEMBER = f"m-{1:016x}-{1:010d}"


class Subject:
    """A group with a member of one kind, and committed offsets."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, directory: Path, chroot: str = "") -> None:
        self.cluster, self.topic, self.group, self.directory = cluster, topic, group, directory
        self.partition = TopicPartition(topic, 0)
        self.zookeeper = f"{cluster.zookeeper}{chroot}"
        """Where the commands look."""
        self.clusters = Access(self.zookeeper, brokers=cluster.bootstrap, timeout_s=30)

    @contextlib.asynccontextmanager
    async def member(self, kind: str) -> AsyncIterator[None]:
        """A live member of this kind."""
        kind = kind.partition(" beside")[0]
        if kind == "not a consumer":
            async with KafkaClient(self.cluster.bootstrap) as client:
                await join_as_connect_worker(client, self.group)
                yield
        elif kind in ("invalid znode", "claim alone"):
            zk = ZooKeeperClient(self.cluster.zookeeper)
            await zk.connect(30)
            try:
                base = f"/allocator/{self.group}"
                for name in ("members", "claims"):
                    await zk.ensure_path(f"{base}/{name}")
                where, data = ("members", b"{") if kind == "invalid znode" else ("claims", Claim(1).encode())
                await zk.create(f"{base}/{where}/{JOINING_MEMBER}", data, ephemeral=True)
                yield
            finally:
                await zk.close()
        else:
            options: dict[str, Any] = {"offsets": "both"} if kind in OLDER else {}
            if kind == "kip848":
                kind, options = "kafka", {"group_protocol": "consumer"}
            elif kind != "kafka":
                options["zookeeper"] = self.cluster.zookeeper
            async with Consumer(
                self.topic,
                **joined(
                    kind, group=self.group, brokers=self.cluster.bootstrap, auto_commit_interval_s=None, **options
                ),
            ) as consumer:
                while not consumer.assignment():
                    await consumer.getbatch(0.1)
                yield

    async def committed(self) -> int:
        async with KafkaClient(self.cluster.bootstrap) as client:
            return (await GroupOffsets(client, self.group).fetch([self.partition]))[self.partition].offset

    async def commit(self, group: str, offset: int) -> None:
        async with KafkaClient(self.cluster.bootstrap) as client:
            await GroupOffsets(client, group).commit({self.partition: OffsetAndMetadata(offset, "", -1)})

    async def shell(self, kind: str, *words: str) -> Result:
        zookeeper = "none" if kind in OF_KAFKA else self.zookeeper
        where = ("--zookeeper", zookeeper, "--brokers", self.cluster.bootstrap)
        return await asyncio.to_thread(CliRunner().invoke, main, [*words, *where])


async def join_as_connect_worker(client: KafkaClient, group: str) -> None:
    kind = JoinGroupRequest.JoinGroupRequestProtocol
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="connect",
        protocols=[kind(name="default", metadata=b"\0\0")],
        max_version=3,
    )
    response = await Coordinator(client, group, 0.1).send(request, time.monotonic() + 30)
    assert response.error_code == 0, response


@pytest.fixture
def kind() -> str:
    return "zookeeper"


@pytest.fixture
def subject(kind: str, cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path) -> Subject:
    cluster: LocalCluster = cluster_factory(kafka=NEWEST, zookeepers=1) if kind == "kip848" else cluster_factory()
    topic = topic_factory(1, cluster=cluster)
    cluster.produce(topic, [b"%d" % n for n in range(10)])
    if kind not in BESIDE:
        return Subject(cluster, topic, group, tmp_path)
    with zookeeper_client(cluster.zookeeper) as zk:
        zk.ensure_path(f"/{group}/allocator/{group}/members")
        zk.ensure_path(f"/{group}/allocator/{group}/claims")
    return Subject(cluster, topic, group, tmp_path, f"/{group}")


@pytest.mark.parametrize("kind", KINDS)
async def test_no_change_is_made_under_a_member_of_any_kind(subject: Subject, kind: str) -> None:
    group, heir = subject.group, f"{subject.group}-heir"
    await subject.commit(group, 7)
    await subject.commit(heir, 2)
    page = actions(GroupWork(subject.clusters))
    async with subject.member(kind):
        for words in (
            ("group", "offsets", "reset", group, "--to", "earliest", "--execute"),
            ("group", "delete", group, "--execute"),
            ("offsets", "copy", heir, group, "--execute", "--restore-file", str(subject.directory / "former.json")),
        ):
            done = await subject.shell(kind, *words)
            assert done.exit_code == 1, done.output
            assert f"group '{group}' has members: " in done.output
        for name, of, body in (
            ("offsets/reset", group, {"to": "earliest"}),
            ("offsets/copy", heir, {"to": group}),
            ("delete", group, {}),
        ):
            shown = await page[name](of, body, "alice")
            assert len(shown["members_alive"]) == 1, "the preview names the member"
            with pytest.raises(MembersAlive, match="has members: "):
                await page[name](
                    of, {**body, "confirm": body.get("to", group) if name == "offsets/copy" else group}, ""
                )
        store = OffsetStore(subject.cluster.bootstrap, group, "kafka", (subject.zookeeper,))
        async with store.opened() as opened:
            assert len(await opened.members()) == 1, "a cutover waits for it"
        findings = await examine_clusters(subject.clusters, group, None, None, 0, 60)
        assert not [each for each in findings if each.id in ("no-members", "unknown-group")]
        assert await subject.committed() == 7


async def test_members_that_could_not_be_looked_for_are_unknown_and_not_absent(subject: Subject) -> None:
    group, brokers = subject.group, ("--brokers", subject.cluster.bootstrap)
    run = CliRunner().invoke

    async def shell(*words: str) -> Result:
        return await asyncio.to_thread(run, main, [*words, *brokers])

    async with subject.member("zookeeper"):
        await subject.commit(group, 7)
        for where in (("--zookeeper", "127.0.0.1:1", "--timeout", "1"), ()):
            done = await shell("doctor", group, "--interval", "0", *where)
            assert done.exit_code == 1
            assert "no-members" not in done.output
            assert "Nobody reads" not in done.output
            assert "members of the group are not known" in done.output
        done = await shell("group", "describe", group)
        assert done.exit_code == 1
        assert "empty" not in done.output
        assert "members in ZooKeeper are not known, because none was named" in done.output
        page = actions(GroupWork(Access(brokers=subject.cluster.bootstrap)))
        for name, body in (
            ("offsets/reset", {"to": "earliest"}),
            ("offsets/copy", {"to": f"{group}-x"}),
            ("delete", {}),
        ):
            with pytest.raises(ConfigError, match="may have members in ZooKeeper"):
                await page[name](group, body, "alice")
    done = await shell("group", "describe", group, "--zookeeper", "none")
    assert done.exit_code == 0
    assert "empty" in done.output


@pytest.mark.parametrize("kind", OLDER)
async def test_names_of_strangers_end_no_member_and_no_command(
    subject: Subject, kind: str, topic_factory: Callable[..., str]
) -> None:
    group, topic = subject.group, await asyncio.to_thread(topic_factory, 2, cluster=subject.cluster)
    settings = {"group": group, "brokers": subject.cluster.bootstrap, "zookeeper": subject.cluster.zookeeper}
    owners = f"/kiel/groups/{group}/allocator/owners" if kind == "kiel" else f"/consumers/{group}/owners"
    async with contextlib.AsyncExitStack() as stack:
        first, second = (Consumer(topic, **joined(kind, **settings)) for _ in range(2))
        await stack.enter_async_context(first)
        await wait_until_async(lambda: len(first.assignment()) == 2, 30, "the first member to own all")
        with zookeeper_client(subject.cluster.zookeeper) as zk:
            directories = [""] if kind == "kiel" else [f"/{each}" for each in zk.get_children(owners)]
            for name in (
                "\N{SUPERSCRIPT TWO}",
                "0-\N{SUPERSCRIPT TWO}",
                f"{topic}:\N{SUPERSCRIPT TWO}",
                f"t-{'9' * 5000}",
            ):
                for directory in directories:
                    zk.create(f"{owners}{directory}/{name}", b"a stranger")
        await stack.enter_async_context(second)

        async def both_own() -> bool:
            for member in (first, second):
                await member.getbatch(0.1)
            return all(len(member.assignment()) == 1 for member in (first, second))

        await wait_until_async(both_own, 60, "both members to own a partition")
        for words in (("group", "describe", group), ("doctor", group, "--interval", "0")):
            done = await subject.shell(kind, *words)
            assert isinstance(done.exception, SystemExit), done.exception
        done = await subject.shell(kind, "group", "delete", group, "--execute")
        assert f"group '{group}' has members: " in done.output


@pytest.mark.parametrize("kind", ["kiel", "kafka", "not a consumer"])
async def test_a_group_whose_members_are_not_shown_is_unknown_and_not_empty(subject: Subject, kind: str) -> None:
    group, cluster = subject.group, subject.cluster
    zookeeper = ("--zookeeper", f"{cluster.zookeeper}/{group}")
    both = (*zookeeper, "--brokers", cluster.bootstrap)
    with zookeeper_client(cluster.zookeeper) as zk:
        for name in ("members", "claims"):
            zk.ensure_path(f"/{group}/allocator/{group}/{name}")

    async def run(*words: str) -> tuple[int, Any]:
        done = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--json"])
        return done.exit_code, json.loads(done.stdout)

    async def summary(*where: str) -> tuple[int, str, int | None]:
        code, found = await run("group", "list", *where)
        (one,) = found["groups"]
        assert (one["members"] is None) is (one["state"] == "unknown") is bool(one["problems"])
        return code, one["state"], one["members"]

    async def top(*where: str) -> tuple[str, int | None]:
        _, found = await run("top", "--once", "--interval", "0.2", *where)
        (one,) = found["groups"]
        return one["phase"], one["members"]

    async with subject.member(kind):
        for where in (both, zookeeper):
            assert await summary(*where) == (1, "unknown", None)
            assert await top(*where) == ("unknown", None)
        for where in (zookeeper,) if kind == "kafka" else (both, zookeeper):
            code, found = await run("group", "describe", group, *where)
            assert (code, found["state"]) == (1, "unknown")
        _, found = await run("doctor", group, "--interval", "0", *zookeeper)
        assert "no-members" not in [each["id"] for each in found["findings"]]
        assert not found["healthy"]
        watcher = Watcher(Access(zookeeper[1], brokers=cluster.bootstrap), interval_s=0.2)
        registry = CollectorRegistry()
        registry.register(GroupCollector(watcher))
        watching = asyncio.ensure_future(watcher.run())
        await watcher.until_ready(30)
        for name, label in (("allocator_group", "group"), ("kafka_consumergroup", "consumergroup")):
            assert registry.get_sample_value(f"{name}_members", {label: group}) is None
    # the member has left
    await watcher.until(lambda: watcher.groups[group].report.phase == "empty", 40)
    for name, label in (("allocator_group", "group"), ("kafka_consumergroup", "consumergroup")):
        assert registry.get_sample_value(f"{name}_members", {label: group}) == 0
    watching.cancel()
    await asyncio.wait([watching])
    assert await summary(*both) == (0, "empty", 0)
    assert await top(*both) == ("empty", 0)
    code, found = await run("group", "describe", group, *both)
    assert (code, found["state"]) == (0, "empty")


async def test_a_group_is_unknown_while_kafka_does_not_respond(subject: Subject) -> None:
    group, cluster = subject.group, subject.cluster
    with zookeeper_client(cluster.zookeeper) as zk:
        for name in ("members", "claims"):
            zk.ensure_path(f"/{group}/allocator/{group}/{name}")
    access = Access(f"{cluster.zookeeper}/{group}", brokers="127.0.0.1:1", timeout_s=1)
    for named in ([], [group]):
        watcher = Watcher(access, interval_s=0.2, kafka_groups=named)
        watching = asyncio.ensure_future(watcher.run())
        await watcher.until_ready(30)
        assert watcher.groups[group].report.phase == "unknown"
        await watcher.until(lambda watcher=watcher: watcher.groups[group].wrong > 0, 30)  # type: ignore[misc]
        assert any("members in Kafka are not known" in each.what for each in watcher.groups[group].problems)
        watching.cancel()
        await asyncio.wait([watching])
    for report in await read_groups(access):
        assert (report.phase, report.member_count) == ("unknown", None)
