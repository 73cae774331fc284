"""Each finding of the doctor, caused on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from allocator.assignors import GroupView
from allocator.assignors.kiel import naive_allocator
from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import NoOffsetsError
from allocator.operate.doctor import diagnose, observe
from allocator.protocols.legacy.old_consumer import OldSubscription
from allocator.protocols.zookeeper.znodes.documents import Claim, MemberInfo
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.batches import ProducedRecord
from allocator.testing.topics import zookeeper_client
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.doctor.doctor_patient import Patient, commit_to_zookeeper

pytestmark = pytest.mark.deadline(150)


@pytest.fixture
def patient(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Patient:
    found = Patient(kafka_cluster, topic_factory(4), group, 4)
    kafka_cluster.produce(found.topic, [(None, b"%d" % n, n % 4) for n in range(40)])
    return found


@contextlib.asynccontextmanager
async def forged_member(patient: Patient, claim: Claim | None = None) -> AsyncIterator[str]:
    """A member that consists of znodes: it never renews its lease and ignores documents."""
    with zookeeper_client(patient.zookeeper) as zk:
        info = MemberInfo("forged", "nowhere", frozenset({patient.topic}))
        path = zk.create(f"{patient.base}/members/m-{'0' * 16}-", info.encode(), ephemeral=True, sequence=True)
        member = path.rpartition("/")[2]
        if claim is not None:
            zk.create(f"{patient.base}/claims/{member}", claim.encode(), ephemeral=True)
        yield member


async def found_in_time(patient: Patient, *wanted: str, **options: Any) -> dict[str, Any]:
    """The findings, once all of these are among them."""
    found: dict[str, Any] = {}

    async def there() -> bool:
        found.clear()
        found.update(await patient.examined(**options))
        return {*wanted} <= found.keys()

    await wait_until_async(there, 40, lambda: f"{wanted}, not {found}", interval_s=0.5)
    return found


async def owned(patient: Patient, *consumers: Any) -> None:
    async def all_of_them() -> bool:
        for consumer in consumers:
            await consumer.getbatch(0)
        return sum(len(consumer.assignment()) for consumer in consumers) == len(patient.partitions)

    await wait_until_async(all_of_them, 30, "all partitions to be owned")


def delete_records(patient: Patient, before: dict[TopicPartition, int]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=patient.cluster.bootstrap)
    try:
        admin.delete_records(before)
    finally:
        admin.close()


def delete_offsets(patient: Patient) -> None:
    admin = KafkaAdminClient(bootstrap_servers=patient.cluster.bootstrap)
    try:
        admin.delete_groups([patient.group])
    finally:
        admin.close()


def all_to_the_first(view: GroupView) -> dict[str, list[TopicPartition]]:
    every = [TopicPartition(topic, n) for topic, count in view.partitions.items() for n in range(count)]
    return {member.id: every if index == 0 else [] for index, member in enumerate(view.members)}


def all_to_the_last(view: GroupView) -> dict[str, list[TopicPartition]]:
    return dict(zip([member.id for member in reversed(view.members)], all_to_the_first(view).values()))


def of_no_use(view: GroupView) -> dict[str, list[TopicPartition]]:
    raise RuntimeError("out of ideas")


def all_but_the_first(members: list[str], partitions: list[str]) -> Any:
    return naive_allocator(members, [each for each in partitions if not each.endswith(":0")])


# -- members -------------------------------------------------------------------------------------------------------


async def test_partitions_without_an_owner_and_the_function_that_failed(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise NoOffsetsError("GROUP_AUTHORIZATION_FAILED")

    async with patient.consumer(assignor=of_no_use):
        with zookeeper_client(patient.zookeeper) as zk:
            await wait_until_async(lambda: zk.exists(f"{patient.base}/assignment"), 30)
        found = await patient.examined(interval_s=1)
        assert len(found["unowned-partitions"][0].where) == 4
        assert "out of ideas" in found["assignment-refused"][0].what
        monkeypatch.setattr(GroupOffsets, "fetch", refuse)
        found = await patient.examined()
    assert ("committed offsets",) in [finding.where for finding in found["could-not-look"]]
    assert len(found["unowned-partitions"][0].where) == 4, "unreadable offsets hide them"


async def test_partitions_that_wait_for_a_restart(patient: Patient) -> None:
    async with patient.consumer(instance_id="a", restart_grace_s=600.0) as gone, patient.consumer() as stays:
        await wait_until_async(lambda: len(stays.assignment()) == 2, 30, "its share of the partitions")
        await gone.close()
        (finding,) = (await patient.examined())["reserved-partitions"]
    assert len(finding.where) == 2
    assert "'a'" in finding.what
    assert f"allocator group release {patient.group} a" in str(finding.command)


async def test_partitions_that_the_function_leaves_out(patient: Patient) -> None:
    async with patient.consumer(assignor=all_but_the_first) as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 3, 30, "its three partitions")
        found = await patient.examined()
    (finding,) = found["left-out-partitions"]
    assert finding.where == (f"{patient.topic}:0",)
    assert "all_but_the_first" in finding.what
    assert "unowned-partitions" not in found


async def test_members_that_differ(patient: Patient) -> None:
    async with patient.consumer(assignor=["naive", "range"]) as first:
        await owned(patient, first)
        async with patient.consumer(assignor=["range"]), patient.consumer("no-such-topic", assignor=["sticky"]):
            found = await found_in_time(patient, "member-refused")
    assert "naive or range; range; sticky" in found["different-functions"][0].what
    assert found["different-subscriptions"][0].severity.name == "INFO"
    assert found["topic-missing"][0].where == ("no-such-topic",)


async def test_a_skewed_assignment_and_idle_members(
    patient: Patient, topic_factory: Callable[..., str], unique_name: Callable[[], str]
) -> None:
    one: dict[str, Any] = {"assignor": all_to_the_first}
    async with patient.consumer(**one) as first, patient.consumer(**one) as second:
        await owned(patient, first, second)
        found = await patient.examined(interval_s=1)
        assert "owns 4 of 4 partitions where 2.0 would be fair" in found["skewed-assignment"][0].what
        assert "idle-members" not in found
    narrow = Patient(patient.cluster, await asyncio.to_thread(topic_factory), unique_name(), 1)
    async with narrow.consumer() as first, narrow.consumer() as second:
        await owned(narrow, first, second)
        found = await narrow.examined()
        assert len(found["idle-members"][0].where) == 1
        assert "skewed-assignment" not in found


async def test_a_claim_without_an_assignment(patient: Patient) -> None:
    async with patient.consumer(session_timeout_s=4.0) as consumer:
        await patient.consume(consumer, 40)
        claim = Claim(10**6, frozenset(patient.partitions), 10**6)
        async with forged_member(patient, claim):
            await wait_until_async(lambda: len(consumer.assignment()) == 2, 30)
            found = await patient.examined(interval_s=2)
        assert "forged@nowhere#1" in found["doubly-claimed"][0].what
        assert len(found["doubly-claimed"][0].where) == 2
        assert found["doubly-claimed"][0].severity.name == "CRITICAL"


async def test_a_member_that_shows_no_sign_of_life(patient: Patient) -> None:
    async with patient.consumer(session_timeout_s=4.0) as consumer:
        await patient.consume(consumer, 40)
        async with forged_member(patient):
            await wait_until_async(lambda: len(consumer.assignment()) == 2, 30)
            patience: dict[str, Any] = {"interval_s": 0.5, "session_timeout_s": 2, "patience_s": 2}
            found = await found_in_time(patient, "silent-member", "stuck-member", **patience)
        assert [finding.where for finding in found["silent-member"]] == [("forged@nowhere#1",)]
        assert found["stuck-member"][0].where[0] == "forged@nowhere#1"
        assert "has not started" in found["stuck-member"][0].what


async def test_a_member_that_does_not_release_its_partitions(patient: Patient) -> None:
    settings: dict[str, Any] = {"session_timeout_s": 4.0, "assignor": all_to_the_last}
    async with patient.consumer(**settings) as slow:
        await owned(patient, slow)
        while await slow.getbatch(30) is None:
            pass  # its handler has a batch, and never polls again
        async with patient.consumer(**settings):
            found = await found_in_time(patient, "stuck-member", interval_s=0.5, patience_s=2)
            assert found["stuck-member"][0].where[0] == f"{slow.client_id}#{int(slow.member_id[-10:])}"
            assert "still holds" in found["stuck-member"][0].what
            assert "stuck-member" not in await patient.examined(patience_s=1000)


async def test_members_of_other_layouts_and_unreadable_znodes(patient: Patient) -> None:
    with zookeeper_client(patient.zookeeper) as zk:
        zk.create(f"/kiel/groups/{patient.group}/members/host:uuid", b"", ephemeral=True, makepath=True)
        zk.create(f"/consumers/{patient.group}/ids/{patient.group}_host-1", b"{}", ephemeral=True, makepath=True)
        found = await patient.examined()
        assert found["kiel-layout"][0].where == (f"/kiel/groups/{patient.group}/members/host:uuid",)
        assert found["old-consumer-layout"][0].where == (f"/consumers/{patient.group}/ids/{patient.group}_host-1",)
        async with patient.consumer() as consumer:
            await patient.consume(consumer, 40)
            zk.create(f"{patient.base}/members/who-is-this", b"", ephemeral=True)
            found = await patient.examined()
        assert len(found["several-protocols"][0].where) == 3
        assert found["unreadable-znode"][0].where == (f"{patient.base}/members/who-is-this",)


async def test_a_group_of_kiels_is_examined_with_its_offsets_in_zookeeper(patient: Patient) -> None:
    await patient.fill(20, only=2)
    await commit_to_zookeeper(patient.cluster.bootstrap, patient.group, dict(zip(patient.partitions, (3, 10, 10))))
    await asyncio.to_thread(delete_records, patient, {patient.partitions[0]: 8})
    base = f"/kiel/groups/{patient.group}"
    with zookeeper_client(patient.zookeeper) as zk:
        zk.create(f"{base}/members/host:uuid", b"", ephemeral=True, makepath=True)
        zk.create(f"{base}/partitions", json.dumps([f"{patient.topic}:{n}" for n in range(4)]).encode())
        found = await patient.examined(interval_s=1)
    (below,) = found["offset-below-log-start"]
    assert (below.where, below.command) == ((f"{patient.topic}:0",), None)
    assert found["no-progress"][0].where == (f"{patient.topic}:2",)
    assert found["offsets-missing"][0].where == (f"{patient.topic}:3",)
    assert len(found["offsets-in-zookeeper"][0].where) == 3
    assert found["offsets-in-zookeeper"][0].severity.name == "INFO"
    assert found.keys() == {
        "offset-below-log-start", "no-progress", "offsets-missing", "offsets-in-zookeeper", "kiel-layout"
    }  # fmt: skip


async def test_a_group_that_has_nothing_but_offsets_in_zookeeper(patient: Patient) -> None:
    await commit_to_zookeeper(patient.cluster.bootstrap, patient.group, dict.fromkeys(patient.partitions[:2], 4))
    found = await patient.examined()
    assert "lag 12" in found["no-members"][0].what
    (stored,) = found["offsets-in-zookeeper"]
    assert (len(stored.where), stored.severity.name) == (2, "WARNING")
    assert found.keys() == {"no-members", "offsets-in-zookeeper"}


@pytest.mark.parametrize("dialect", ["java", "pykafka"])
async def test_a_partition_that_consumers_of_the_old_kafka_gave_up(patient: Patient, dialect: str) -> None:
    base, java = f"/consumers/{patient.group}", dialect == "java"
    subscription = OldSubscription("static", {patient.topic: 1}).encode() if java else patient.topic.encode()
    directory, prefix = (patient.topic, "") if java else (f"b'{patient.topic}'", "0-")
    with zookeeper_client(patient.zookeeper) as zk:
        zk.create(f"{base}/ids/a", subscription, ephemeral=True, makepath=True)
        for number in range(3):
            zk.create(f"{base}/owners/{directory}/{prefix}{number}", b"a-0", ephemeral=True, makepath=True)
        found = await patient.examined()
        assert found["unowned-partitions"][0].where == (f"{patient.topic}:3",)
        zk.create(f"{base}/owners/{directory}/{prefix}3", b"a-0", ephemeral=True)
        assert "unowned-partitions" not in await patient.examined()


async def test_two_protocols_under_one_name_and_a_rebalance_that_waits(patient: Patient) -> None:
    # an eager function: the member joins again only when the batch in hand is done, and the others wait for it
    over_kafka: dict[str, Any] = {"membership": "kafka", "session_timeout_s": 10.0, "assignor": "range"}
    async with patient.consumer(**over_kafka) as slow:
        await owned(patient, slow)
        assert set(await patient.examined()) <= {"offsets-missing"}
        while await slow.getbatch(30) is None:
            pass
        async with patient.consumer() as other:
            await owned(patient, other)
            found = await patient.examined()
            assert len(found["several-protocols"][0].where) == 2
        joining = asyncio.ensure_future(patient.consumer(**over_kafka).start())
        try:
            found = await found_in_time(patient, "endless-rebalance")
            assert "PreparingRebalance" in found["endless-rebalance"][0].what
        finally:
            joining.cancel()
            await asyncio.wait({joining})


# -- offsets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_zookeeper", [True, False])
async def test_the_printed_resets_change_only_the_partitions_that_need_it(patient: Patient, in_zookeeper: bool) -> None:
    if in_zookeeper:
        async with patient.consumer() as consumer:
            await patient.consume(consumer, 40)
    first, second, third, fourth = patient.partitions
    async with KafkaClient(patient.cluster.bootstrap) as client:
        await client.refresh([patient.topic])
        offsets = {first: 3, second: 1000, third: 10, fourth: 9}
        await GroupOffsets(client, patient.group).commit(
            {p: OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        )
    await asyncio.to_thread(delete_records, patient, {first: 8})
    ensemble = patient.zookeeper if in_zookeeper else patient.cluster.zookeeper
    where = ["--zookeeper", ensemble, "--brokers", patient.cluster.bootstrap, "--interval", "0"]
    code, report = await patient.shell_json(patient.group, *where)
    assert code == 3, report
    commands = [each["command"] for each in report["findings"] if each["id"].startswith("offset-")]
    assert len(commands) == 2
    for command in commands:
        # whether another ensemble has members of a group that this one does not know, the operator has to say
        assert ("--zookeeper OTHER-ZOOKEEPER" in command) is not in_zookeeper
        command = command.replace("OTHER-ZOOKEEPER", "none")
        done = await asyncio.to_thread(CliRunner().invoke, main, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)
    async with KafkaClient(patient.cluster.bootstrap) as client:
        found = await GroupOffsets(client, patient.group).fetch(patient.partitions)
    assert {p: at.offset for p, at in found.items()} == {first: 8, second: 0, third: 10, fourth: 9}
    assert not [each for each in (await patient.examined(interval_s=0)) if each.startswith("offset-")]


async def test_offsets_outside_of_the_log(patient: Patient) -> None:
    first, second = patient.partitions[:2]
    async with KafkaClient(patient.cluster.bootstrap) as client:
        await client.refresh([patient.topic])
        at = {first: OffsetAndMetadata(3, "", -1), second: OffsetAndMetadata(1000, "", -1)}
        await GroupOffsets(client, patient.group).commit(at)

    await asyncio.to_thread(delete_records, patient, {first: 8})
    found = await patient.examined()
    (below,), (above,) = found["offset-below-log-start"], found["offset-above-log-end"]
    assert below.where == (f"{patient.topic}:0",)
    assert below.what.startswith("5 records were deleted before")
    reset = ["allocator", "group", "offsets", "reset", patient.group, "--to", "earliest", "--topic"]
    assert str(below.command).split() == [*reset, f"{patient.topic}:0", "--execute", "--zookeeper", "OTHER-ZOOKEEPER"]
    assert "`none` if no ensemble has members" in below.do
    for given, hosts in ((["--zookeeper", "none"], "none"), ([], "OTHER-ZOOKEEPER")):
        _, report = await patient.shell_json(
            patient.group, *given, "--brokers", patient.cluster.bootstrap, "--interval", "0"
        )
        commands = [each["command"] for each in report["findings"] if each["id"] == below.id]
        assert [command.split("--zookeeper ")[1].split()[0] for command in commands] == [hosts]
    assert str(above.command).split() == [*reset, f"{patient.topic}:1", "--execute", "--zookeeper", "OTHER-ZOOKEEPER"]
    assert above.where == (f"{patient.topic}:1",)
    assert "990 records beyond the end" in above.what
    assert "Kafka has offsets of it, and no members" in found["unknown-group"][0].what
    code, out, _ = await patient.shell(
        patient.group, "--zookeeper", patient.zookeeper, "--brokers", patient.cluster.bootstrap, "--interval", "0"
    )
    assert code == 3
    assert f"  run:   {below.command} --brokers {patient.cluster.bootstrap}\n" in out


async def test_offsets_that_are_not_in_kafka(patient: Patient) -> None:
    async with patient.consumer(auto_commit_interval_s=None) as consumer:
        await owned(patient, consumer)
        assert len((await patient.examined())["offsets-missing"][0].where) == 4
        await commit_to_zookeeper(patient.cluster.bootstrap, patient.group, {patient.partitions[0]: 5})
        found = await patient.examined()
        assert found["offsets-in-zookeeper"][0].where == (f"{patient.topic}:0",)
        assert len(found["offsets-missing"][0].where) == 3


async def test_a_group_that_waits_for_the_transaction_of_another_producer(patient: Patient) -> None:
    writer = await asyncio.to_thread(
        KafkaProducer, bootstrap_servers=patient.cluster.bootstrap, transactional_id=patient.group
    )
    with contextlib.closing(writer):
        await asyncio.to_thread(writer.init_transactions)
        async with patient.consumer(isolation_level="read_committed") as consumer, patient.clients() as (client, zk, _):

            async def poll() -> Any:
                return await observe(patient.group, client=client, zookeepers=[zk])

            await patient.consume(consumer, 40)
            writer.begin_transaction()
            await asyncio.to_thread(writer.send(patient.topic, b"open", partition=1).get, 30)
            await patient.fill(100, only=1)
            await patient.fill(100, only=2)
            before, after = await poll(), await poll()
            found = {finding.id: finding for finding in diagnose(before, after)}
            assert found["open-transaction"].where == (f"{patient.topic}:1",)
            assert "101 records" in found["open-transaction"].what
            assert f"--start-offset 10 for {patient.topic}:1" in found["open-transaction"].do
            assert found["no-progress"].where == (f"{patient.topic}:2",), "its handler does nothing"
            await asyncio.to_thread(writer.commit_transaction)
            writer.begin_transaction()
            await asyncio.to_thread(writer.send(patient.topic, b"open", partition=1).get, 30)
            later = await poll()
            assert "open-transaction" not in {finding.id for finding in diagnose(after, later)}, "it is another one"
            await asyncio.to_thread(writer.abort_transaction)
            await patient.consume(consumer, 201)
            assert {finding.id for finding in diagnose(await poll(), await poll())} == {"offsets-expire"}


async def test_lag_that_grows_and_partitions_where_nothing_is_done(patient: Patient) -> None:
    async with patient.consumer(auto_commit_interval_s=None) as consumer, patient.clients() as (client, zk, _):
        await patient.consume(consumer, 40)
        await patient.fill(100, only=0)
        await patient.fill(100, only=1)
        before = await observe(patient.group, client=client, zookeepers=[zk])
        await patient.fill(200, only=0)
        await consumer.commit({patient.partitions[0]: OffsetAndMetadata(20, "", -1)})
        after = await observe(patient.group, client=client, zookeepers=[zk])
        found = {finding.id: finding for finding in diagnose(before, after)}
        assert found["no-progress"].where == (f"{patient.topic}:1",)
        assert "100 records waiting" in found["no-progress"].what
        assert found["lag-grows"].where == (f"{patient.topic}:0",)
        assert "by 190 records" in found["lag-grows"].what
        await patient.consume(consumer, 400)
        assert not await patient.examined()


async def test_lag_between_two_commits_is_no_finding(patient: Patient) -> None:
    async with patient.consumer(auto_commit_interval_s=None) as consumer, patient.clients() as (client, zk, _):
        await patient.consume(consumer, 40)
        before = await observe(patient.group, client=client, zookeepers=[zk])
        await patient.fill(100, only=0)
        await consumer.commit({patient.partitions[0]: OffsetAndMetadata(11, "", -1)})
        after = await observe(patient.group, client=client, zookeepers=[zk])
        assert "lag-grows" not in {finding.id for finding in diagnose(before, after)}


async def test_a_topic_that_was_deleted(patient: Patient) -> None:
    async with patient.consumer() as consumer:
        await patient.consume(consumer, 40)
        await asyncio.to_thread(patient.cluster.delete_topic, patient.topic)
        found = await found_in_time(patient, "partition-gone", interval_s=0)
        assert found["partition-gone"][0].where == tuple(f"{patient.topic}:{n}" for n in range(4))

        async def gone() -> bool:
            return not consumer.assignment()

        await wait_until_async(gone, 40, "the leader to take the partitions back")
        assert "partition-gone" not in await patient.examined()
    # Kafka has deleted the offsets, and the assignment without members is outdated
    assert "partition-gone" not in await patient.examined()


async def test_an_unknown_group_and_one_without_members(patient: Patient) -> None:
    found = await patient.examined()
    assert set(found) == {"unknown-group"}
    async with patient.consumer() as consumer:
        await patient.consume(consumer, 40)
    found = await patient.examined()
    assert set(found) == {"no-members"}
    assert found["no-members"][0].severity.name == "INFO"
    await patient.fill(5)
    assert (await patient.examined())["no-members"][0].what.startswith("the group has no members; lag 20")
    await asyncio.to_thread(delete_offsets, patient)
    (lost,) = (await patient.examined())["no-members"]
    assert (lost.severity.name, lost.what) == ("WARNING", "the group has no members; lag unknown")
    assert "`latest` skips the waiting records" in lost.do
    assert "it knows" in (await patient.examined(group="typo"))["unknown-group"][0].what


# -- clocks and timeouts -------------------------------------------------------------------------------------------


async def test_clocks_that_differ(patient: Patient) -> None:
    day_ms = 86_400_000
    future = int(time.time() * 1000) + day_ms
    await asyncio.to_thread(patient.cluster.produce, patient.topic, [ProducedRecord(None, b"late", 2, future)])
    with zookeeper_client(patient.zookeeper) as zk:
        wrong = {"timestamp": str(future), "host": "b", "port": 1, "version": 1}
        zk.create("/brokers/ids/99", json.dumps(wrong).encode(), ephemeral=True, makepath=True)
        async with patient.consumer(session_timeout_s=4.0) as consumer:
            await patient.consume(consumer, 41)
            found = await patient.examined(interval_s=2)
            assert found["records-from-the-future"][0].where == (f"{patient.topic}:2",)
            (skew,) = found["clock-skew"]
            assert skew.where == ("broker 99", "ZooKeeper")
            assert "s ahead of ZooKeeper's clock" in skew.what
            zk.delete("/brokers/ids/99")
            for wrong_s, side in ((-100, "ahead of the clock of this"), (100, "behind the clock of this")):
                found = await patient.examined(interval_s=2.5, clock=lambda by=wrong_s: time.time() + by)
                assert side in found["clock-skew"][0].what
            assert "clock-skew" not in await patient.examined(interval_s=2.5)


async def test_session_timeouts_that_are_not_granted(patient: Patient) -> None:
    found = await patient.examined(session_timeout_s=2000, interval_s=0)
    in_zookeeper, in_kafka = found["session-timeout-out-of-range"]
    assert "grants a session timeout of 120 s instead of 2000 s: the most" in in_zookeeper.what + in_kafka.what
    assert "allow session timeouts of 1 to 1800 s" in in_zookeeper.what + in_kafka.what
    async with patient.consumer(session_timeout_s=4.0) as consumer:
        await owned(patient, consumer)
        # limits of Kafka's coordinator do not apply to this group
        assert "session-timeout-out-of-range" not in await patient.examined(session_timeout_s=4)


# -- the command ---------------------------------------------------------------------------------------------------


async def test_the_command_reports_findings_and_changes_nothing(patient: Patient) -> None:
    where = ["--zookeeper", patient.zookeeper, "--brokers", patient.cluster.bootstrap, "--interval", "0.5"]
    async with patient.consumer() as consumer:
        await patient.consume(consumer, 40)
        code, report = await patient.shell_json(patient.group, *where)
        assert (code, report["healthy"]) == (0, True), report
        # records are kept for a century here, which is only information
        assert [finding["id"] for finding in report["findings"]] == ["offsets-expire"]
        assert set(report["findings"][0]) == {"id", "severity", "what", "where", "why", "do", "command", "fix"}
    with zookeeper_client(patient.cluster.zookeeper) as zk:

        def tree(path: str) -> dict[str, int]:
            _, stat = zk.get(path)
            below = [tree(f"{path.rstrip('/')}/{name}") for name in zk.get_children(path)]
            return {path: stat.mzxid, **{p: z for each in below for p, z in each.items()}}

        before = {base: tree(base) for base in (f"/{patient.group}", "/consumers", "/brokers", "/config")}
        code, report = await patient.shell_json(patient.group, *where)
        assert code == 0
        assert {finding["id"] for finding in report["findings"]} == {"no-members", "offsets-expire"}
        assert {base: tree(base) for base in before} == before
    code, report = await patient.shell_json(*where)
    assert (code, report) == (0, {"group": None, "healthy": True, "findings": []})


async def test_the_command_reports_what_it_could_not_check(patient: Patient) -> None:
    async with patient.consumer() as consumer:
        await patient.consume(consumer, 40)
    nowhere = ["--timeout", "2", "--interval", "0", "--brokers", "127.0.0.1:1"]
    code, report = await patient.shell_json(patient.group, "--zookeeper", patient.zookeeper, *nowhere)
    assert code == 1
    assert report["findings"][0]["id"] == "could-not-look"
    unseen = [finding["what"] for finding in report["findings"] if finding["id"] == "could-not-look"]
    assert any("127.0.0.1:1" in what for what in unseen)
    assert "members of the group are not known: the doctor has not read Kafka" in unseen
    assert not [finding for finding in report["findings"] if finding["id"] == "no-members"]
    code, report = await patient.shell_json(patient.group, "--zookeeper", patient.zookeeper, "--interval", "0")
    assert code == 1
    (finding,) = [finding for finding in report["findings"] if finding["id"] in ("could-not-look", "no-members")]
    assert finding["what"].endswith("the doctor has not read Kafka, which was not named")
    code, report = await patient.shell_json(patient.group, *nowhere)
    assert code == 1
    assert report["error"]["type"] == "BrokersUnavailable"
    code, _, err = await patient.shell(patient.group)
    assert code == 2
    assert "give --zookeeper, --brokers or --config" in err
