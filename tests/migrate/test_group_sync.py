"""Groups of other clients move to the new cluster at the offsets that a mirror keeps translated there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Optional

import confluent_kafka
import kafka
import pytest
from kafka.admin import ACLOperation, ResourceType

from allocator import Consumer
from allocator.core.aio import boot_clock
from allocator.core.client import KafkaClient
from allocator.errors import ConfigError
from allocator.migrate.offset_map import map_topic
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.report import GroupsNotSynced
from allocator.migrate.storage import OffsetStore
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.testing.plugin import ClusterFactory
from allocator.types import TopicPartition
from tests.joining import joined
from tests.migrate.mirroring import (
    Pair,
    commit,
    committed,
    contents,
    delete_group,
    delete_records,
    fill,
    mirroring,
    transactions,
)
from tests.outside.java_tools import command, properties
from tests.secured import USER, by_sasl, denied, with_an_authorizer

pytestmark = pytest.mark.deadline(300)


class JavaReader:
    """Java's VerifiableConsumer, which commits once a second."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, directory: Path) -> None:
        self._output = directory / f"{cluster.version}.out"
        file = properties(directory / f"{cluster.version}.properties", auto_commit_interval_ms=1000)
        where = "--bootstrap-server"
        arguments = ["--topic", topic, "--group-id", group, where, cluster.bootstrap, "--verbose"]
        arguments += ["--enable-autocommit", "--reset-policy", "earliest", "--consumer.config", file]
        with self._output.open("wb") as output:
            argv = command(str(cluster.version), "VerifiableConsumer", *arguments)
            self.process = subprocess.Popen(argv, stdout=output, stderr=subprocess.DEVNULL)

    def seen(self) -> dict[str, tuple[int, int]]:
        """Value -> partition and offset of each record that it has read."""
        found = {}
        for line in self._output.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                event = json.loads(line)
                if event["name"] == "record_data":
                    found[event["value"]] = (event["partition"], event["offset"])
        return found


@pytest.fixture
def java_reader(tmp_path: Path) -> Iterator[Callable[..., JavaReader]]:
    readers: list[JavaReader] = []

    def start(cluster: LocalCluster, topic: str, group: str) -> JavaReader:
        readers.append(JavaReader(cluster, topic, group, tmp_path))
        return readers[-1]

    yield start
    for reader in readers:
        reader.process.kill()
        reader.process.wait(30)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_a_java_consumer_stops_on_the_old_cluster_and_starts_on_the_new_one(
    end: signal.Signals, make_pair: Callable[..., Any], java_reader: Callable[..., JavaReader], group: str
) -> None:
    pair: Pair = await make_pair("2.8.2", "4.1.1", 2, sync_group_offsets=f"{group}-moves.*")
    topic, moving = pair.topic, f"{group}-moves"
    await asyncio.to_thread(transactions, pair.old.bootstrap, topic, (b"aborted", 5), (b"done", 1))
    written: list[str] = []

    async def write() -> None:
        while True:
            numbers = range(len(written), len(written) + 20)
            rows = [(b"k", b"%d" % n, n % 2) for n in numbers]
            await asyncio.to_thread(produce, pair.old.bootstrap, topic, rows, version=pair.old.version)
            written.extend(map(str, numbers))
            await asyncio.sleep(0.1)

    async def synced(name: str) -> bool:
        here, there = await committed(pair.old, name, topic), await committed(pair.new, name, topic)
        wanted = {each: (await pair.translation(each)).target(offset) for each, offset in here.items()}
        return len(here) == 2 and there == wanted

    async def has_committed(name: str) -> bool:
        return len(await committed(pair.old, name, topic)) == 2

    producer = asyncio.ensure_future(write())
    async with mirroring(pair.mirror()):
        on_old = java_reader(pair.old, topic, moving)
        await wait_until_async(lambda: len(on_old.seen()) > 300, 120, "the consumer to read the old cluster")
        await wait_until_async(lambda: has_committed(moving), 60, "it to commit")
        on_old.process.send_signal(end)
        await asyncio.to_thread(on_old.process.wait, 30)
        read, left = on_old.seen(), await committed(pair.old, moving, topic)
        await wait_until_async(lambda: synced(moving), 60, "its offsets on the new cluster")
        on_new = java_reader(pair.new, topic, moving)
        await wait_until_async(lambda: len(on_new.seen()) > 20, 120, "the consumer to read the new cluster")
        producer.cancel()
        await asyncio.wait({producer})
        await wait_until_async(lambda: set(written) <= read.keys() | on_new.seen().keys(), 60, "all to be read")
        again = {value for value, (partition, offset) in read.items() if offset >= left[partition]}
        assert read.keys() & on_new.seen().keys() == again  # those that it had not committed
        assert not again or end == signal.SIGKILL


@pytest.mark.parametrize("root", [None, "/allocator", "/billing"])
async def test_no_offset_is_overwritten_under_live_members_or_set_back(
    root: Optional[str], make_pair: Callable[..., Any], group: str
) -> None:
    """`root` has the live members in ZooKeeper; None: they are members in Kafka."""
    options = {} if root is None else {"root": root}
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}.*", **options)
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    await pair.catch_up()
    live, ahead, last = (f"{group}-{n}" for n in range(3))
    for name, offset in ((live, 60), (ahead, 10), (last, 20)):
        await commit(pair.old, name, {at: offset})
    await commit(pair.new, ahead, {at: 50})

    async def reached(name: str, offset: int) -> bool:
        return await committed(pair.new, name, topic) == {0: offset}

    membership = "kafka" if root is None else "zookeeper"
    where = {} if root is None else {"zookeeper": pair.settings.zookeeper, **options}
    member = Consumer(
        topic, brokers=pair.new.bootstrap, group=live, auto_commit_interval_s=None, **joined(membership, **where)
    )
    mirror = pair.mirror()
    with contextlib.suppress(GroupsNotSynced):
        async with mirroring(mirror):
            async with member:
                await wait_until_async(lambda: at in member.assignment(), 60, "the member to own the partition")
                await wait_until_async(lambda: reached(last, 20), 60, "the last of the groups")
                assert await committed(pair.new, live, topic) == {}
                assert await reached(ahead, 50)
                assert await committed(pair.new, pair.group, topic) == {}  # that of the mirror itself
            await commit(pair.old, ahead, {at: 70})
            await wait_until_async(lambda: reached(live, 60), 60, "the group to follow")
            await commit(pair.old, last, {at: 30})
            await wait_until_async(lambda: reached(last, 30), 60, "another round")
            assert await reached(ahead, 50)
    assert [*mirror.unsynced] == [ahead]  # it goes on on the old cluster


@pytest.mark.parametrize("begins_at", [0, 100])
async def test_a_map_that_begins_in_the_middle_moves_no_group_past_records(
    begins_at: int, make_pair: Callable[..., Any], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was deleted, and `--append` began another one behind the records that are there. The old log may begin there,
    too."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}.*")
    behind, beyond = f"{group}-behind", f"{group}-beyond"
    await pair.fill(100)
    await pair.catch_up()
    await asyncio.to_thread(pair.new.delete_topic, map_topic(pair.group))
    await pair.fill(20)
    await commit(pair.old, behind, {pair.partition: 40})
    await commit(pair.old, beyond, {pair.partition: 110})
    await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, begins_at)

    async def synced() -> bool:
        return await committed(pair.new, beyond, pair.topic) == {0: 110}

    async with mirroring(pair.mirror(append=True)):
        await wait_until_async(synced, 60, "the group beyond")
        await wait_until_async(lambda: f"{behind}' is not synced" in caplog.text, 60, "the log")
        assert await committed(pair.new, behind, pair.topic) == {}


async def test_offsets_that_the_new_cluster_has_lost_are_written_again(
    make_pair: Callable[..., Any], group: str
) -> None:
    """It deletes the offsets of a group without members after a time, and an operator may delete the group. Only what a
    consumer has committed there since stays as it is, also where it went back."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}.*")
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    await pair.catch_up()
    quiet, moved, last = (f"{group}-{n}" for n in range(3))
    await commit(pair.old, quiet, {at: 60})
    await commit(pair.old, moved, {at: 60})

    async def reached(name: str, offset: int) -> bool:
        return await committed(pair.new, name, topic) == {0: offset}

    async with mirroring(pair.mirror()):
        for name in (quiet, moved):
            await wait_until_async(lambda name=name: reached(name, 60), 60, "the first round")
        await commit(pair.new, moved, {at: 30})  # it has moved, and reads some records again
        await asyncio.to_thread(delete_group, pair.new.bootstrap, quiet)
        await wait_until_async(lambda: reached(quiet, 60), 60, "the offsets to be written again")
        await commit(pair.old, last, {at: 10})
        await wait_until_async(lambda: reached(last, 10), 60, "another round")
        assert await reached(moved, 30)


async def test_the_offsets_of_a_quiet_group_do_not_expire_on_the_new_cluster(
    make_pair: Callable[..., Any], cluster_factory: ClusterFactory, group: str
) -> None:
    """Without members, Kafka counts their age from the last commit. So each is committed again in time, except those
    that a consumer has committed there itself."""
    new = await asyncio.to_thread(
        cluster_factory,
        kafka="3.9.1",
        broker_config={"offsets.retention.minutes": 1, "offsets.topic.num.partitions": 1},
    )
    pair: Pair = await make_pair("2.8.2", new, sync_group_offsets=f"{group}.*")
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    await pair.catch_up()
    quiet, moved = f"{group}-quiet", f"{group}-moved"
    for name in (quiet, moved):
        await commit(pair.old, name, {at: 60})
    await commit(pair.new, moved, {at: 70})

    async def commits(name: str) -> list[int]:
        """The times of the commits of a group on the new cluster."""
        rows = (await contents(new, "__consumer_offsets"))[0]
        keys = {name.encode(), topic.encode()}
        return [row[1] for row in rows if row[3] is not None and all(key in row[2] for key in keys)]

    async with mirroring(pair.mirror()):

        async def renewed() -> bool:
            return len(await commits(quiet)) >= 3

        await wait_until_async(renewed, 100, "two more commits")
    times = await commits(quiet)
    assert max(later - before for before, later in zip(times, times[1:])) < 50_000
    assert len(await commits(moved)) == 1


OFFSET_COMMIT, DESCRIBE_GROUPS = 8, 15


@pytest.mark.parametrize(
    ("held_back", "suspended_s"), [(OFFSET_COMMIT, 1.5), (OFFSET_COMMIT, 2.5), (DESCRIBE_GROUPS, 2.5)]
)
async def test_a_mirror_that_was_suspended_sets_no_offset_back(
    held_back: int, suspended_s: float, make_pair: Callable[..., Any], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before it sends its commit, or before it looks for members. Meanwhile the group reads on the new
    cluster, commits and leaves."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    await pair.catch_up()
    moved, last = f"{group}-1", f"{group}-2"
    await commit(pair.old, moved, {at: 60})
    armed, held, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    send = KafkaClient.send

    async def suspended(client: KafkaClient, node: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            armed.is_set()
            and held_back == request.API_KEY
            and moved in (getattr(request, "groups", None) or [request.group])
        ):
            armed.clear()
            held.set()
            await goes_on.wait()
        return await send(client, node, request, *args, **kwargs)

    async def reached(name: str, offset: int) -> bool:
        return await committed(pair.new, name, topic) == {0: offset}

    monkeypatch.setattr(KafkaClient, "send", suspended)
    async with mirroring(pair.mirror()):
        await wait_until_async(lambda: reached(moved, 60), 60, "the first round")
        await commit(pair.old, moved, {at: 80})
        armed.set()
        await asyncio.wait_for(held.wait(), 60)
        began = boot_clock()
        await commit(pair.new, moved, {at: 100})
        await wait_until_async(lambda: boot_clock() - began > suspended_s, 30, "the end of the suspension")
        goes_on.set()
        for offset in (10, 20):  # rounds
            await commit(pair.old, last, {at: offset})
            await wait_until_async(lambda offset=offset: reached(last, offset), 60, "another round")
        assert await reached(moved, 100)


async def read_on_new(pair: Pair, group: str) -> list[int]:
    """Returns the numbers of the records that kafka-python reads in the group up to the end of the new topic. A group
    without an offset starts at the end."""

    def read() -> list[int]:
        reader = kafka.KafkaConsumer(
            pair.topic, bootstrap_servers=pair.new.bootstrap, group_id=group, consumer_timeout_ms=60_000
        )
        end = reader.end_offsets([pair.partition])[pair.partition]
        found: list[int] = []
        for record in reader:
            found.append(int(record.value.split()[1]))
            if record.offset == end - 1:
                break
        reader.close()
        return found

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("deletes", [False, True])
async def test_a_group_that_goes_back_on_the_old_cluster_misses_no_record_when_it_moves(
    deletes: bool, restarts: bool, make_pair: Callable[..., Any], group: str
) -> None:
    """An operator rewinds it, or deletes it and it begins again, while the mirror runs or between two of its runs."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    topic, at, moving = pair.topic, pair.partition, f"{group}-moving"
    await pair.fill(100)
    await commit(pair.old, moving, {at: 100})

    async def reached(offset: int) -> bool:
        return await committed(pair.new, moving, topic) == {0: offset}

    async def goes_back() -> None:
        if deletes:
            await asyncio.to_thread(delete_group, pair.old.bootstrap, moving)
        await commit(pair.old, moving, {at: 20})

    async with mirroring(pair.mirror()):
        await wait_until_async(lambda: reached(100), 60, "the first round")
        if not restarts:
            await goes_back()
            await wait_until_async(lambda: reached(20), 60, "the group to go back")
    if restarts:
        await goes_back()
        await pair.catch_up()
    assert await read_on_new(pair, moving) == [*range(20, 100)]


async def test_a_partition_without_an_old_offset_is_named(make_pair: Callable[..., Any], group: str) -> None:
    """The group was deleted and began again, and has not committed in each partition yet."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", partitions=2, sync_group_offsets=f"{group}-.*")
    first, second, moving = TopicPartition(pair.topic, 0), TopicPartition(pair.topic, 1), f"{group}-moving"
    await pair.fill(100)
    await commit(pair.old, moving, {first: 50, second: 0})
    await pair.catch_up()
    await asyncio.to_thread(delete_group, pair.old.bootstrap, moving)
    await pair.catch_up()  # a group that has left the old cluster needs no operator
    await commit(pair.old, moving, {second: 0})
    with pytest.raises(GroupsNotSynced, match=f"'{moving}': it has no old offset in {pair.topic}:0, or"):
        await pair.catch_up()
    assert await committed(pair.new, moving, pair.topic) == {0: 50, 1: 0}


async def test_a_partition_without_an_old_offset_is_named_whichever_process_mirrors_the_others(
    make_pair: Callable[..., Any], group: str
) -> None:
    pair: Pair = await make_pair("2.8.2", "3.9.1", partitions=2, sync_group_offsets=f"{group}-.*")
    first, second, moving = TopicPartition(pair.topic, 0), TopicPartition(pair.topic, 1), f"{group}-moving"
    await pair.fill(100)
    await commit(pair.old, moving, {first: 50, second: 0})
    await pair.catch_up()
    one, other = pair.mirror(), pair.mirror()
    with contextlib.suppress(GroupsNotSynced):
        async with mirroring(one), mirroring(other):
            await wait_until_async(lambda: len(one.progress()) == len(other.progress()) == 1, 60, "a share each")
            await asyncio.to_thread(delete_group, pair.old.bootstrap, moving)
            await commit(pair.old, moving, {second: 0})
            await wait_until_async(lambda: one.unsynced or other.unsynced, 60, "the partition to be named")
    assert f"it has no old offset in {pair.topic}:0, or" in {**one.unsynced, **other.unsynced}[moving]


async def test_the_offset_of_an_open_transaction_is_not_overwritten(make_pair: Callable[..., Any], group: str) -> None:
    """Its consumer need not be a member any more (KIP-447)."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    at, moving, last = pair.partition, f"{group}-moving", f"{group}-last"
    await pair.fill(100)
    await commit(pair.old, moving, {at: 50})
    await pair.catch_up()
    where = {"bootstrap.servers": pair.new.bootstrap}
    producer = confluent_kafka.Producer({**where, "transactional.id": moving})
    reader = confluent_kafka.Consumer({**where, "group.id": moving})

    def send() -> None:
        producer.init_transactions(60)
        producer.begin_transaction()
        offset = confluent_kafka.TopicPartition(*at, 100)
        producer.send_offsets_to_transaction([offset], reader.consumer_group_metadata(), 60)
        reader.close()

    await asyncio.to_thread(send)
    await commit(pair.old, moving, {at: 40})
    async with mirroring(pair.mirror()):  # whose first round renews all offsets
        for each in (10, 11):
            await commit(pair.old, last, {at: each})
            await wait_until_async(lambda each=each: reached(pair, last, each), 60, "a round")
        await asyncio.to_thread(producer.commit_transaction, 60)
        await wait_until_async(lambda: reached(pair, moving, 100), 60, "the offset of the transaction")
        await commit(pair.old, last, {at: 12})
        await wait_until_async(lambda: reached(pair, last, 12), 60, "another round")
    assert await reached(pair, moving, 100)


async def reached(pair: Pair, group: str, offset: int) -> bool:
    return await committed(pair.new, group, pair.topic) == {0: offset}


async def test_a_rewind_on_the_new_cluster_outlasts_the_process_of_the_mirror(
    make_pair: Callable[..., Any], group: str
) -> None:
    """Some clients keep the text of an offset when they commit another one. A text that names no offset is from an
    earlier version of the mirror, and may have been kept too."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    await pair.catch_up()
    plain, keeping, earlier, last = (f"{group}-{name}" for name in ("plain", "keeping", "earlier", "last"))
    for name in (plain, keeping, earlier):
        await commit(pair.old, name, {at: 60})
    await commit(pair.new, earlier, {at: 10}, "synced")

    async def reached(name: str, offset: int) -> bool:
        return await committed(pair.new, name, topic) == {0: offset}

    def rewind() -> str:
        client = kafka.KafkaConsumer(bootstrap_servers=pair.new.bootstrap, group_id=keeping, enable_auto_commit=False)
        client.assign([at])
        stored = client.committed(at, metadata=True)
        client.commit({at: stored._replace(offset=10)})
        client.close()
        return str(stored.metadata)

    async def two_rounds(offset: int) -> None:
        for each in (offset, offset + 1):
            await commit(pair.old, last, {at: each})
            await wait_until_async(lambda each=each: reached(last, each), 60, "a round")

    async with mirroring(pair.mirror()):
        for name in (plain, keeping):
            await wait_until_async(lambda name=name: reached(name, 60), 60, "the first round")
        assert (await asyncio.to_thread(rewind)).startswith("synced 60")
        await two_rounds(10)
    await commit(pair.new, plain, {at: 10})
    await commit(pair.old, keeping, {at: 70})
    async with mirroring(pair.mirror()):
        await two_rounds(20)
    for name in (plain, keeping, earlier):
        assert await reached(name, 10), name
    assert await read_on_new(pair, keeping) == [*range(10, 100)]


@pytest.mark.parametrize("written", [0, 20])
async def test_an_offset_that_the_map_cannot_follow_back_is_named(
    written: int, make_pair: Callable[..., Any], group: str
) -> None:
    """The map was deleted and begun again behind the records that are there, or does not begin until one is written."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    await pair.fill(100)
    await commit(pair.old, f"{group}-1", {pair.partition: 60})
    await pair.catch_up()
    await asyncio.to_thread(pair.new.delete_topic, map_topic(pair.group))
    await pair.fill(written)
    await commit(pair.old, f"{group}-1", {pair.partition: 40})
    with pytest.raises(GroupsNotSynced, match=f"'{group}-1': it has no old offset in {pair.topic}:0, or the map"):
        await pair.catch_up(append=True)
    await commit(pair.new, f"{group}-1", {pair.partition: 40})
    await pair.catch_up()


async def test_no_offset_is_stored_without_the_text_that_marks_it(
    make_pair: Callable[..., Any], cluster_factory: ClusterFactory, group: str
) -> None:
    """The mirror would take it for a consumer's, and the group would stay there."""
    new = await asyncio.to_thread(cluster_factory, kafka="3.9.1", broker_config={"offset.metadata.max.bytes": 20})
    pair: Pair = await make_pair("2.8.2", new, sync_group_offsets=f"{group}-.*")
    await pair.fill(100)
    await commit(pair.old, f"{group}-1", {pair.partition: 60})
    for _ in range(2):
        with pytest.raises(GroupsNotSynced, match=f"'{group}-1': .*set offset.metadata.max.bytes to 100 or more"):
            await pair.catch_up()
        assert await committed(new, f"{group}-1", pair.topic) == {}


async def test_a_mirror_that_ends_when_it_has_caught_up_has_synced_the_groups(
    make_pair: Callable[..., Any], group: str
) -> None:
    pair: Pair = await make_pair("2.8.2", "3.9.1", 2, sync_group_offsets=f"{group}-.*")
    for partition in range(2):
        await pair.fill(100, partition=partition)
    for wanted in ({0: 60, 1: 100}, {0: 70, 1: 100}):  # the second time, nothing is left to copy
        await commit(pair.old, f"{group}-1", {TopicPartition(pair.topic, n): offset for n, offset in wanted.items()})
        assert (await pair.catch_up()).caught_up
        assert await committed(pair.new, f"{group}-1", pair.topic) == wanted


@pytest.mark.parametrize("right", [ACLOperation.READ, ACLOperation.DESCRIBE])
async def test_a_group_that_may_not_be_written_is_named(
    right: ACLOperation,
    make_pair: Callable[..., Any],
    cluster_factory: ClusterFactory,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    new = await with_an_authorizer(cluster_factory, "3.9.1")
    pair: Pair = await make_pair("2.8.2", new, sync_group_offsets=f"{group}-.*")
    topic, at = pair.topic, pair.partition
    await pair.fill(100)
    refused, other = f"{group}-1", f"{group}-2"
    for name in (refused, other):
        await commit(pair.old, name, {at: 60})
    mirror = pair.mirror(new=by_sasl(new), new_security=USER)
    async with denied(new, ResourceType.GROUP, refused, right):
        with pytest.raises(GroupsNotSynced, match=f"'{refused}': .*GROUP_AUTHORIZATION_FAILED"):
            async with mirroring(mirror):
                await wait_until_async(lambda: refused in mirror.unsynced, 60, "the status")
        assert list(mirror.unsynced) == [refused]
        assert f"the offsets of '{refused}' are not synced" in caplog.text
        with pytest.raises(GroupsNotSynced, match=refused):
            await mirror.run(until_caught_up=True)
        assert await committed(new, refused, topic) == {}
        assert await committed(new, other, topic) == {0: 60}
    await mirror.run(until_caught_up=True)
    assert not mirror.unsynced
    assert await committed(new, refused, topic) == {0: 60}


@asynccontextmanager
async def member(cluster: LocalCluster, group: str, topic: str) -> AsyncIterator[Consumer]:
    """A member of a Kafka group that owns partition 0 of the topic and commits only when asked."""
    options = joined("kafka", auto_commit_interval_s=None)
    async with Consumer(topic, brokers=cluster.bootstrap, group=group, **options) as consumer:
        await wait_until_async(lambda: TopicPartition(topic, 0) in consumer.assignment(), 60, "the partition")
        yield consumer


async def compared(pair: Pair, group: str) -> dict[TopicPartition, tuple[Optional[int], Optional[int], str]]:
    """Partition -> the offset on the new cluster, the translated one, and the remarks, as the how-to compares them."""
    stores = OffsetStore(pair.old.bootstrap, group), OffsetStore(pair.new.bootstrap, group)
    rows = (await copy_offsets(*stores, by="map", mirror=pair.group)).rows
    return {row.partition: (row.before, row.after, f"{row.note}{row.problem}") for row in rows}


@pytest.mark.parametrize("synced_before", [True, False])
async def test_a_group_that_moves_topic_by_topic_is_named_until_it_has_moved(
    synced_before: bool, make_pair: Callable[..., Any], group: str
) -> None:
    """Its second service still works on the old cluster, or is mirrored only now, when the first one is on the new
    cluster. Kafka takes no offsets of others then: the second one would repeat or skip records."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    first, second, moving = pair.topic, await pair.add_topic(), f"{group}-moving"
    one, two = TopicPartition(first, 0), TopicPartition(second, 0)
    for topic in pair.topics:
        await pair.fill(100, topic=topic)
    await commit(pair.old, moving, {one: 60, two: 20})
    await pair.catch_up(**({} if synced_before else {"topics": [first]}))
    async with member(pair.new, moving, first) as service:
        async for batch in service:
            if batch[-1].offset == 99:
                break
        await service.commit()
        if synced_before:
            await pair.catch_up()  # the first has moved, and the second is where it was
            await commit(pair.old, moving, {two: 70})
        mirror = pair.mirror()
        with pytest.raises(GroupsNotSynced, match=f"'{moving}': it has members on the new .* of '{second}'.*stop"):
            await mirror.run(until_caught_up=True)
        assert list(mirror.unsynced) == [moving]
        found = await compared(pair, moving)
        assert found[two][:2] == ((20, 70) if synced_before else (None, 20))
        assert "while the group has members there: stop all of them" in found[two][2]
        assert "no mirror writes it" not in found[one][2]
    await pair.catch_up()
    assert await committed(pair.new, moving, second) == {0: 70 if synced_before else 20}
    assert await committed(pair.new, moving, first) == {0: 100}
    async with member(pair.new, moving, first), member(pair.new, moving, second):
        assert not (await pair.catch_up()).unsynced


async def synced(pair: Pair, group: str, offset: int) -> bool:
    """Returns whether partition 0 of the new topic has this offset of the group."""
    return await committed(pair.new, group, pair.topic) == {0: offset}


async def test_offsets_of_others_are_named_while_the_group_reads_the_old_cluster(
    make_pair: Callable[..., Any], group: str
) -> None:
    """Someone has tried the group on the new cluster. Its service would start there, and skip records."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    topic, at, moving = pair.topic, pair.partition, f"{group}-moving"
    await pair.fill(100)
    await commit(pair.old, moving, {at: 10})
    await pair.catch_up()
    await commit(pair.new, moving, {at: 60})
    async with mirroring(pair.mirror(sync_group_offsets=f"{group}-.*")) as mirror:
        await commit(pair.old, f"{group}-probe", {at: 5})
        await wait_until_async(partial(synced, pair, f"{group}-probe", 5), 60, "a round")
        async with member(pair.old, moving, topic):  # or a dead one: the group may have moved
            await commit(pair.old, f"{group}-probe", {at: 6})
            await wait_until_async(partial(synced, pair, f"{group}-probe", 6), 60, "a round")
        await commit(pair.old, f"{group}-probe", {at: 7})
        await wait_until_async(partial(synced, pair, f"{group}-probe", 7), 60, "a round")
        assert not mirror.unsynced
        await commit(pair.old, moving, {at: 20})
        await wait_until_async(lambda: bool(mirror.unsynced), 60, "the group to be named")
        assert re.match(f"it reads {topic}:0 on the old .*do not follow: delete", mirror.unsynced[moving])
        before, after, text = (await compared(pair, moving))[at]
        assert (before, after) == (60, 20)
        assert "others committed 60 there, so no mirror changes it" in text
        await asyncio.to_thread(delete_group, pair.new.bootstrap, moving)
        await wait_until_async(lambda: not mirror.unsynced, 60, "the group to be synced")
    assert await compared(pair, moving) == {at: (20, 20, "")}


async def test_a_group_reads_what_moved_producers_wrote_before_the_mirror_started_again(
    make_pair: Callable[..., Any], group: str
) -> None:
    """Once, the mirror set its offset to the end of the new log, and synced the group to it."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    moving = f"{group}-moving"
    await pair.fill(100)
    await commit(pair.old, moving, {pair.partition: 100})
    await pair.catch_up()
    await fill(pair.new, pair.topic, 50, "moved")
    for _ in range(2):
        mirror = await pair.catch_up()
        assert await committed(pair.new, moving, pair.topic) == {0: 100}
        assert mirror.duplicated == 0  # no copy is behind these records
    await pair.fill(10, "late")
    mirror = pair.mirror()
    with pytest.raises(GroupsNotSynced, match="other producers wrote records before copies"):
        await mirror.run(until_caught_up=True)
    assert (mirror.records, mirror.duplicated) == (10, 50)
    assert await committed(pair.new, moving, pair.topic) == {0: 100}


async def test_a_group_is_not_synced_behind_records_of_moved_producers_that_it_would_skip(
    make_pair: Callable[..., Any], group: str
) -> None:
    """They were moved by hand, and a forgotten one writes to the old cluster. Once, the copy of its record took the
    group along, without a word."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", sync_group_offsets=f"{group}-.*")
    moving, behind = f"{group}-moving", f"{group}-behind"
    await pair.fill(100)
    await commit(pair.old, moving, {pair.partition: 100})
    await commit(pair.old, behind, {pair.partition: 50})
    await pair.catch_up()
    await fill(pair.new, pair.topic, 6, "moved")
    await pair.fill(1, "stray")
    for offset in (100, 101):
        await commit(pair.old, moving, {pair.partition: offset})
        await commit(pair.old, behind, {pair.partition: offset - 40})
        mirror = pair.mirror()
        with pytest.raises(GroupsNotSynced, match=f"'{moving}': in {pair.topic}:0 of the new cluster, other producers"):
            await mirror.run(until_caught_up=True)
        assert list(mirror.unsynced) == [moving]
        assert await committed(pair.new, moving, pair.topic) == {0: 100}
        assert await committed(pair.new, behind, pair.topic) == {0: offset - 40}
        before, after, text = (await compared(pair, moving))[pair.partition]
        assert (before, after) == (100, None)
        assert "others wrote records to the new cluster from 100 on" in text
    await commit(pair.new, moving, {pair.partition: 107})
    assert not (await pair.catch_up()).unsynced  # it has moved


async def test_a_copy_against_the_direction_of_a_mirror_says_what_to_do(
    make_pair: Callable[..., Any], group: str
) -> None:
    pair: Pair = await make_pair("2.8.2", "3.9.1")
    await pair.fill(100)
    await pair.catch_up()
    await commit(pair.new, f"{group}-moved", {pair.partition: 60})
    stores = OffsetStore(pair.new.bootstrap, f"{group}-moved"), OffsetStore(pair.old.bootstrap, f"{group}-moved")
    with pytest.raises(ConfigError, match=f"{pair.old.bootstrap} has no .*mirror of group '{group}' .*--by content"):
        await copy_offsets(*stores, by="map", mirror=pair.group)
    (row,) = (await copy_offsets(*stores, by="content")).rows
    assert row.after == 60
