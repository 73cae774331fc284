"""Each command that the doctor prints is run on the group for which it was printed."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer
from allocator.commands.command import Command
from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import list_offsets
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.operate import doctor
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.command_store import CommandStore
from allocator.protocols.zookeeper.znodes.documents import Claim, Paths
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.batches import ProducedRecord
from allocator.testing.topics import zookeeper_client
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.doctor.doctor_patient import Patient, commit_to_zookeeper
from tests.doctor.printed import Shell, printed
from tests.doctor.test_doctor import (
    all_but_the_first,
    all_to_the_first,
    all_to_the_last,
    delete_records,
    forged_member,
    of_no_use,
    owned,
)

pytestmark = pytest.mark.deadline(150)

Case = Callable[["Ward"], Awaitable[None]]
CASES: dict[str, Case] = {}
ELSEWHERE = {
    "broker-unreachable": "nc",
    "clock-skew": "chronyc, which reads the clock of the machine",
    "leftover-groups": "test_doctor_fix.py: the znodes must be an hour old",
    "leaderless": "test_doctor_brokers.py",
    "under-replicated": "test_doctor_brokers.py",
    "mixed-versions": "test_doctor_brokers.py",
}
"""Findings whose commands other tests run, or programs that are not ours."""


def case(*findings: str) -> Callable[[Case], Case]:
    """Registers a function that causes findings and runs their commands."""

    def register(function: Case) -> Case:
        for finding in findings:
            CASES[finding] = function
        return function

    return register


def with_commands() -> set[str]:
    """The ids of the findings to which the source gives a command."""
    found = {"chroot-missing"}
    for path in Path(doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or called not in ("Finding", "finding"):
                continue
            commanded = len(node.args) > 6 or any(each.arg == "command" for each in node.keywords)
            kind = node.args[0]
            # the helper `finding` adds the command that restarts a member
            if isinstance(kind, ast.Constant) and (commanded or called == "finding"):
                found.add(kind.value)
    return found


class Ward:
    """A group on real servers, and the shell of an operator."""

    def __init__(
        self, patient: Patient, shell: Shell, cluster: Callable[..., LocalCluster], topic: Callable[..., str]
    ) -> None:
        self.patient, self.shell, self.cluster, self.topic = patient, shell, cluster, topic

    async def printed(self, finding: str, *options: str, **more: Any) -> str:
        """Returns the command of this finding once the doctor has it."""
        found: dict[str, str] = {}

        async def there() -> bool:
            found.clear()
            found.update(await printed(self.patient, *options, **more))
            return finding in found

        await wait_until_async(there, 40, lambda: f"{finding}, not {found}", interval_s=0.3)
        return found[finding]

    async def run(self, line: str, code: int = 0) -> str:
        return await asyncio.to_thread(self.shell.run, line, code)

    async def runs(self, finding: str, *options: str, code: int = 0, **more: Any) -> str:
        """Runs the command of this finding, and returns its output."""
        return await self.run(await self.printed(finding, *options, **more), code)

    async def heals(self, finding: str, *options: str, more: str = "") -> None:
        """Runs the command of this finding, which must then be gone."""
        await self.run(await self.printed(finding, *options) + more)

        left: dict[str, str] = {}

        async def gone() -> bool:
            found = await printed(self.patient, *options)
            left.clear()
            left.update(found)
            return finding not in left

        await wait_until_async(gone, 40, lambda: f"no {finding} any more, not {left}", interval_s=0.3)

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[CommandStore]:
        zk = ZooKeeperClient(self.patient.zookeeper)
        await zk.connect()
        try:
            yield CommandStore(zk, Paths("/allocator", self.patient.group))
        finally:
            await zk.close()

    async def command(self, kind: str, *, age_s: float = 0.0, **arguments: Any) -> str:
        """Writes a command of an operator, and returns its id."""
        now_ms = int((time.time() - age_s) * 1000)
        written = Command.make(kind, arguments, who="alice@ops1", now_ms=now_ms)
        async with self.store() as store:
            await store.change(lambda commands: commands.put(written, now_ms))
        return written.id

    async def commands(self) -> set[str]:
        async with self.store() as store:
            return {command.id for command in (await store.read()).entries}

    async def commit(self, *offsets: int) -> None:
        async with KafkaClient(self.patient.cluster.bootstrap) as client:
            await client.refresh([self.patient.topic])
            at = {p: OffsetAndMetadata(o, "", -1) for p, o in zip(self.patient.partitions, offsets)}
            await GroupOffsets(client, self.patient.group).commit(at)

    async def committed(self) -> list[int | None]:
        async with KafkaClient(self.patient.cluster.bootstrap) as client:
            found = await GroupOffsets(client, self.patient.group).fetch(self.patient.partitions)
        return [found[p].offset if p in found else None for p in self.patient.partitions]

    def config(self, name: str, **group: Any) -> str:
        """Writes the settings of a daemon of the group, whose handler does nothing."""
        (self.shell.directory / "handlers_of_the_doctor.py").write_text("def handle(record): pass\n")
        settings = {"name": self.patient.group, "topics": [self.patient.topic], **group}
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        (self.shell.directory / name).write_text(
            f"[kafka]\nbrokers = {json.dumps(self.patient.cluster.bootstrap.split(','))}\n"
            f'[zookeeper]\nhosts = "{self.patient.zookeeper}"\n[group]\n' + "\n".join(lines) + "\n"
            '[handler]\ntarget = "handlers_of_the_doctor:handle"\n'
        )
        return name

    async def member(self, body: str) -> Any:
        """Starts a member in a process of its own, and waits until it has a batch and runs `body`."""
        patient, holds = self.patient, self.shell.directory / "holds-a-batch"
        (self.shell.directory / "member.py").write_text(
            "import asyncio, time\nfrom allocator import Consumer, ZooKeeper\n"
            "async def main():\n"
            f"    settings = dict(brokers={patient.cluster.bootstrap!r}, zookeeper={patient.zookeeper!r})\n"
            f"    settings.update(group={patient.group!r},\n"
            "        membership=ZooKeeper(session_timeout_s=4.0),\n"
            "        assignor='tests.doctor.test_doctor:all_to_the_last')\n"
            f"    async with Consumer({patient.topic!r}, **settings) as consumer:\n"
            "        while await consumer.getbatch(1) is None: pass\n"
            f"        open({str(holds)!r}, 'w').close()\n"
            f"        {body}\n"
            "asyncio.run(main())\n"
        )
        process = self.shell.start(f"{sys.executable} member.py")
        await wait_until_async(holds.exists, 40, "the member to hold a batch")
        return process


@pytest.fixture
def ward(
    kafka_cluster: LocalCluster,
    cluster_factory: Callable[..., LocalCluster],
    topic_factory: Callable[..., str],
    group: str,
    tmp_path: Path,
) -> Iterator[Ward]:
    patient = Patient(kafka_cluster, topic_factory(4), group, 4)
    kafka_cluster.produce(patient.topic, [(None, b"%d" % n, n % 4) for n in range(40)])
    shell = Shell(tmp_path)
    yield Ward(patient, shell, cluster_factory, topic_factory)
    shell.close()


def test_every_finding_with_a_command_is_in_the_table() -> None:
    assert with_commands() == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()


# -- members ---------------------------------------------------------------------------------------------------------


@case("unknown-group")
async def unknown(it: Ward) -> None:
    async with it.patient.consumer() as consumer:
        await owned(it.patient, consumer)
        assert it.patient.group in await it.runs("unknown-group", group="typo")


@case("no-members")
async def nobody(it: Ward) -> None:
    async with it.patient.consumer() as consumer:
        await it.patient.consume(consumer, 20)
    line = await it.printed("no-members")
    process = it.shell.start(line.replace("CONFIG", it.config("daemon.toml")))

    async def all_read() -> bool:
        return await it.committed() == [10] * 4

    await wait_until_async(all_read, 40, "the daemon to read everything")
    assert "no-members" not in await printed(it.patient)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 30) == 0


@case("several-protocols")
async def protocols(it: Ward) -> None:
    over_kafka: dict[str, Any] = {"membership": "kafka", "session_timeout_s": 10.0}
    async with it.patient.consumer(**over_kafka) as one, it.patient.consumer() as other:
        await asyncio.gather(owned(it.patient, one), owned(it.patient, other))
        out = await it.runs("several-protocols", code=1)  # the owners in Kafka are not shown
        assert other.client_id.partition("#")[0] in out
        assert f"has 1 members in Kafka ({one.client_id.partition('#')[0]}" in out


@case("kiel-layout")
async def kiel(it: Ward) -> None:
    async with it.patient.consumer(membership="kiel", zookeeper=it.patient.zookeeper) as consumer:
        await owned(it.patient, consumer)
        assert "add --execute" in await it.runs("kiel-layout")

        async def read_on() -> None:
            while True:  # a member keeps the partition of a batch that its user has in hand
                await consumer.getbatch(0.5)

        reading = asyncio.ensure_future(read_on())
        await it.heals("kiel-layout", more=" --execute")
        reading.cancel()
        await owned(it.patient, consumer)


@case("left-out-partitions")
async def left_out(it: Ward) -> None:
    async with it.patient.consumer(assignor=all_but_the_first):
        assert "all_but_the_first" in await it.runs("left-out-partitions")


@case("reserved-partitions")
async def reserved(it: Ward) -> None:
    async with it.patient.consumer(instance_id="a", restart_grace_s=600.0) as gone, it.patient.consumer() as stays:
        await owned(it.patient, gone, stays)
        await gone.close()
        await it.heals("reserved-partitions")
        await owned(it.patient, stays)


@case("unowned-partitions", "assignment-refused")
async def unowned(it: Ward) -> None:
    async with it.patient.consumer(assignor=of_no_use):
        assert "out of ideas" in await it.runs("unowned-partitions")
        line = await it.printed("assignment-refused")
        await it.run(line.replace("CONFIG", it.config("daemon.toml", assignor=["naive"])))


@case("doubly-claimed")
async def twice(it: Ward) -> None:
    async with it.patient.consumer(session_timeout_s=4.0) as consumer:
        await it.patient.consume(consumer, 40)
        async with forged_member(it.patient, Claim(10**6, frozenset(it.patient.partitions), 10**6)):
            assert "forged" in await it.runs("doubly-claimed", "--interval", "1")


@case("unreadable-znode")
async def unreadable(it: Ward) -> None:
    async with it.patient.consumer() as consumer:
        await owned(it.patient, consumer)
        with zookeeper_client(it.patient.zookeeper) as zk:
            zk.create(f"{it.patient.base}/members/who-is-this", b"a stranger", ephemeral=True)
            assert "a stranger" in await it.runs("unreadable-znode")


@case("member-refused", "different-functions", "different-subscriptions", "topic-missing")
async def differ(it: Ward) -> None:
    patient, missing = it.patient, f"{it.patient.topic}-missing"
    async with patient.consumer(assignor=["naive", "range"]) as first:
        await owned(patient, first)
        async with patient.consumer(assignor=["range"]), patient.consumer(missing, assignor=["sticky"]):
            line = await it.printed("member-refused")
            await it.run(line.replace("CONFIG", it.config("daemon.toml", assignor=["naive"])))
            assert "sticky" in await it.runs("different-functions")
            assert first.client_id.partition("#")[0] in await it.runs("different-subscriptions")
            line = (await it.printed("topic-missing")).replace("COUNT", "2")
            try:
                assert missing in await it.run(line)

                async def there() -> bool:
                    return "topic-missing" not in await printed(patient)

                await wait_until_async(there, 40, "the topic to be known", interval_s=0.3)
            finally:
                await asyncio.to_thread(patient.cluster.delete_topic, missing)


@case("load-not-followed")
async def load(it: Ward) -> None:
    async with it.patient.consumer(follow_load="records") as first, it.patient.consumer() as second:
        await owned(it.patient, first, second)
        assert second.client_id.partition("#")[0] in await it.runs("load-not-followed")


@case("skewed-assignment")
async def skewed(it: Ward) -> None:
    one: dict[str, Any] = {"assignor": all_to_the_first}
    async with it.patient.consumer(**one) as first, it.patient.consumer(**one) as second:
        await owned(it.patient, first, second)
        assert "2" in await it.runs("skewed-assignment")


@case("stuck-member")
async def stuck(it: Ward) -> None:
    """Its handler never returns, so it does not release what another member should own."""
    process = await it.member("await asyncio.sleep(600)")
    async with it.patient.consumer(session_timeout_s=4.0, assignor=all_to_the_last) as other:
        await it.heals("stuck-member", "--patience", "2")
        await asyncio.to_thread(process.wait, 30)
        await owned(it.patient, other)


@case("silent-member")
async def silent(it: Ward) -> None:
    """Its event loop stands still, so it does not renew its lease; a thread of kazoo keeps its session.

    As in the daemon, SIGTERM is the loop's, which does not handle it.
    """
    terminates = "asyncio.get_running_loop().add_signal_handler(15, print)"
    process = await it.member(f"{terminates}; time.sleep(600)")
    async with it.patient.consumer(session_timeout_s=4.0, assignor=all_to_the_last) as other:
        await it.heals("silent-member", "--patience", "2", "--session-timeout", "4")
        await asyncio.to_thread(process.wait, 30)
        await owned(it.patient, other)


# -- offsets ---------------------------------------------------------------------------------------------------------


@case("offset-below-log-start", "offset-above-log-end")
async def outside(it: Ward) -> None:
    async with it.patient.consumer() as consumer:
        await it.patient.consume(consumer, 40)
    await it.commit(3, 1000, 10, 9)
    await asyncio.to_thread(delete_records, it.patient, {it.patient.partitions[0]: 8})
    await it.heals("offset-below-log-start")
    await it.heals("offset-above-log-end")
    assert await it.committed() == [8, 0, 10, 9]


@case("offsets-in-zookeeper")
async def in_zookeeper(it: Ward) -> None:
    with zookeeper_client(it.patient.cluster.zookeeper) as zk:
        zk.ensure_path(f"/{it.patient.group}")
    stored: dict[TopicPartition, int] = dict.fromkeys(it.patient.partitions, 4)
    await commit_to_zookeeper(it.patient.cluster.bootstrap, it.patient.group, stored)
    await it.heals("offsets-in-zookeeper")
    assert await it.committed() == [4] * 4


@case("offsets-missing", "no-progress", "lag-grows")
async def lagging(it: Ward) -> None:
    patient = it.patient
    async with patient.consumer(auto_commit_interval_s=None) as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 4, 40, "its partitions")
        assert patient.topic in await it.runs("offsets-missing")
        await patient.consume(consumer, 40)
        await patient.fill(100)
        assert consumer.client_id.partition("#")[0] in await it.runs("no-progress")
        filling = asyncio.ensure_future(_keep_filling(patient, consumer))
        try:
            line = await it.printed("lag-grows", "--interval", "1")
            assert "--interval 60" in line
            assert "lag-grows" in await it.run(line.replace("--interval 60", "--interval 2"), code=3)
        finally:
            filling.cancel()


async def _keep_filling(patient: Patient, consumer: Consumer) -> None:
    """Produces faster than the consumer commits, in one partition."""
    offset = 10
    while True:
        await patient.fill(200, only=0)
        offset += 1
        await consumer.commit({patient.partitions[0]: OffsetAndMetadata(offset, "", -1)})


# -- commands of operators -------------------------------------------------------------------------------------------


@case("command-old", "command-pauses", "command-pending", "command-not-kept", "commands-over")
async def commands(it: Ward) -> None:
    """What is still in force stays in force: a cordon, a budget, and an evacuation that keeps a member empty."""
    patient, day_s = it.patient, 86_400
    async with patient.consumer() as first, patient.consumer() as second, patient.consumer() as third:
        await owned(patient, first, second, third)
        names = [one.client_id for one in (first, second, third)]
        budget = await it.command("budget", at_once=4, per_minute=None)
        cordon = await it.command("cordon", member=names[0])
        kept = await it.command("evacuate", member=names[1])
        done = await it.command("evacuate", member=names[2])

        async def is_evacuated() -> bool:
            for one in (first, second, third):
                await one.getbatch(0)  # the last batch is done, and its partition may leave
            return len(first.assignment()) == len(patient.partitions)

        await wait_until_async(is_evacuated, 40, "the evacuations")
        pin = await it.command("pin", partitions={patient.topic: "0"}, place={"member": names[2]})
        await third.close()

        async def is_gone() -> bool:
            return pin in (await printed(patient)).get("command-not-kept", "")

        await wait_until_async(is_gone, 40, "the pin to be the only command that is not kept", interval_s=0.3)
        await it.heals("command-not-kept")
        assert await it.commands() == {budget, cordon, kept, done}
        await it.heals("commands-over")
        assert await it.commands() == {budget, cordon, kept}
        assert not second.assignment(), "the evacuation that is done keeps the member empty"
        await it.command("freeze", age_s=2 * day_s)
        await it.heals("command-old")
        await it.command("pause", partitions={patient.topic: "0"})
        await patient.fill(20, only=0)
        await it.heals("command-pauses")
        assert await it.commands() == {budget, cordon, kept}
        async with forged_member(patient):  # of a version that knows no commands
            swap = await it.command("swap", old=names[0], new=names[1])
            assert swap in await it.runs("command-pending")


# -- the cluster -----------------------------------------------------------------------------------------------------


@case("records-from-the-future")
async def future(it: Ward) -> None:
    day_ms = int(time.time() * 1000) + 86_400_000
    await asyncio.to_thread(it.patient.cluster.produce, it.patient.topic, [ProducedRecord(None, b"late", 2, day_ms)])
    async with it.patient.consumer() as consumer:
        await it.patient.consume(consumer, 41)
        assert "Completed updating config" in await it.runs("records-from-the-future")


@case("old-version")
async def old(it: Ward) -> None:
    """The command copies the records of the topic to the new cluster."""
    new = it.patient
    cluster = await asyncio.to_thread(it.cluster, kafka="0.9.0.1")
    it.patient = Patient(cluster, await asyncio.to_thread(it.topic, 1, cluster=cluster), new.group, 1)
    await it.patient.fill()
    async with it.patient.consumer():
        line = await it.printed("old-version")
        line = line.replace("NEW-BROKERS", new.cluster.bootstrap).replace(
            "--topic TOPIC", f"--topic {it.patient.topic}"
        )
        line = line.replace("KAFKA-ZOOKEEPER", cluster.zookeeper)
        process = it.shell.start(line)

        async def copied() -> bool:
            async with KafkaClient(new.cluster.bootstrap) as client:
                await client.refresh([it.patient.topic])
                if client.partitions(it.patient.topic) is None:
                    return False
                (end,) = (await list_offsets(client, {TopicPartition(it.patient.topic, 0): "latest"})).values()
                return end is not None and end.offset == 10

        await wait_until_async(copied, 60, lambda: f"the records, not {process.poll()}", interval_s=0.5)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0


@case("chroot-missing")
async def chroot(it: Ward) -> None:
    it.patient.zookeeper += "-missing"
    await it.heals("chroot-missing")


async def test_a_printed_copy_changes_only_the_offsets_of_its_finding(ward: Ward) -> None:
    """The group moved from ZooKeeper to Kafka, and has been committing there since, except for idle partitions."""
    first, *idle = ward.patient.partitions
    await ward.commit(9)
    await commit_to_zookeeper(ward.patient.cluster.bootstrap, ward.patient.group, {first: 5, **dict.fromkeys(idle, 4)})
    with zookeeper_client(ward.patient.cluster.zookeeper) as zk:
        zk.ensure_path(f"/{ward.patient.group}")
    await ward.heals("offsets-in-zookeeper")
    assert await ward.committed() == [9, 4, 4, 4]


@pytest.mark.parametrize("member", ["under a root", "under the root of the settings", "in Kafka's ZooKeeper"])
async def test_a_printed_copy_finds_the_members_that_the_doctor_finds(ward: Ward, member: str) -> None:
    patient = ward.patient
    await commit_to_zookeeper(patient.cluster.bootstrap, patient.group, dict.fromkeys(patient.partitions, 4))
    options: tuple[str, ...] = ()
    with zookeeper_client(patient.cluster.zookeeper) as zk:
        zk.ensure_path(f"/{patient.group}")
        async with contextlib.AsyncExitStack() as stack:
            if member == "in Kafka's ZooKeeper":
                zk.create(f"/consumers/{patient.group}/ids/host-1", b"{}", ephemeral=True, makepath=True)
            else:
                options = ("--root", "/mine")
                consumer = patient.consumer(root="/mine", auto_commit_interval_s=None)
                await stack.enter_async_context(consumer)
                await wait_until_async(lambda: len(consumer.assignment()) == 4, 40, "its partitions")
            if member == "under the root of the settings":
                file = ward.shell.directory / ward.config("daemon.toml")
                file.write_text(file.read_text().replace("[zookeeper]", '[zookeeper]\nroot = "/mine"'))
                options = ("--config", str(file))
            line = await ward.printed("offsets-in-zookeeper", *options)
            assert "has members" in await ward.run(line, code=1), line
            assert " ".join(options) in line
    assert await ward.committed() == [None] * 4


@pytest.mark.parametrize("run", dict.fromkeys(CASES.values()), ids=lambda run: run.__name__)
async def test_the_printed_commands_do_what_they_say(ward: Ward, run: Case) -> None:
    await run(ward)
