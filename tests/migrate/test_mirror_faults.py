"""Failures of the new cluster: it still gets each record once, in order."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from mirroring import bare, contents, killed, mirroring, more, settings, started

from allocator.core.client import KafkaClient, ends_of_epochs
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.zookeeper import ZooKeeperClient
from allocator.errors import BrokerError
from allocator.migrate.mirror import Mirror
from allocator.migrate.offset_map import map_topic
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.storage import OffsetStore
from allocator.operate import describe
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.deadline(240), pytest.mark.long]

COUNT = 30_000


async def mirrored(old: LocalCluster, new: LocalCluster, topic: str, group: str, fault: Callable[[], Any]) -> Mirror:
    """Mirrors while `fault` happens again and again."""
    rows = [(b"k%d" % n, b"value %d" % n) for n in range(COUNT)]
    await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version, batch_records=50)
    mirror = Mirror(settings(old, new, group, topics=[topic], throttle_bytes_s=200_000.0))
    async with mirroring(mirror):
        await wait_until_async(lambda: mirror.records > 0, 60, "records to come over")
        await fault()
        await wait_until_async(lambda: mirror.records >= COUNT, 180, lambda: f"all to come over: {mirror.records}")
    return mirror


async def test_a_new_broker_that_is_killed_and_comes_back(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="0.9.0.1")
    new = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 3, 1, None, old)

    async def fault() -> None:
        await asyncio.to_thread(new.brokers[0].kill)
        await asyncio.to_thread(new.brokers[0].start)

    mirror = await mirrored(old, new, topic, group, fault)
    assert await contents(new, topic) == await contents(old, topic)
    assert mirror.duplicated == 0


async def test_a_process_that_is_frozen_and_wakes_up_writes_nothing_behind_its_successor(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """Records that were in a socket when it froze may be written twice. It may not send further ones."""
    old = await asyncio.to_thread(cluster_factory, kafka="2.8.2")
    new = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 4, 1, None, old)
    rows = [(b"k%d" % n, b"value %d" % n + bytes(200)) for n in range(COUNT)]
    await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version, batch_records=20)
    chosen = settings(old, new, group, topics=[topic])

    async def stands() -> int:
        return sum(map(len, (await contents(new, topic)).values()))

    async with mirroring(Mirror(replace(chosen, throttle_bytes_s=10_000.0))) as first:
        await wait_until_async(lambda: first.records, 60, "it to begin")
    with started(chosen, "--throttle", "0.1") as one, started(chosen, "--throttle", "0.1") as two:
        for process in (one, two, one):
            before = await stands()
            await wait_until_async(lambda than=before: more(stands, than), 60, "records to come over")
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(10)  # its session ends during the freeze, and the other process takes over
            process.send_signal(signal.SIGCONT)
    await Mirror(chosen).run(until_caught_up=True)
    assert bare(await contents(new, topic)) == bare(await contents(old, topic))


async def test_the_late_request_of_a_frozen_process_does_not_change_the_map_of_its_successor(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    """The broker gets the request after the successor has compared, so its records are there twice."""
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1"))
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", proxied=True))
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    partition, service, log_file = TopicPartition(topic, 0), f"{group}-service", tmp_path / "log"
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None, session_timeout_s=6.0)

    async def fill(name: str, count: int) -> None:
        rows = [(b"k", b"%s %d" % (name.encode(), n), 0) for n in range(count)]
        await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version)

    async def count() -> int:
        return len((await contents(new, topic)).get(0, []))

    async def logged(text: str) -> int:
        return (await asyncio.to_thread(log_file.read_text)).count(text)

    await fill("first", 100)
    script = (
        f"import asyncio, logging; logging.basicConfig(filename={str(log_file)!r}, level=logging.DEBUG)\n"
        "from allocator.migrate import Mirror, MirrorSettings\n"
        f"asyncio.run(Mirror({replace(chosen, commit_interval_s=2.0)!r}).run())"
    )
    frozen = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", script])
    proxy = new.brokers[0].proxy
    try:
        await wait_until_async(lambda: more(count, 99), 60, "the first records")
        proxy.drop(direction="to_server", client=frozen.pid)
        requests = await logged("ProduceRequest")
        await fill("second", 20)
        await wait_until_async(lambda: more(lambda: logged("ProduceRequest"), requests), 60, "the request")
        frozen.send_signal(signal.SIGSTOP)
        async with mirroring(Mirror(chosen)) as mirror:
            await fill("third", 50)
            await wait_until_async(lambda: mirror.records >= 70, 60, "the successor to mirror these")
            proxy.heal(client=frozen.pid)
            await wait_until_async(lambda: more(count, 170), 60, "the late request")
            frozen.send_signal(signal.SIGCONT)
            await wait_until_async(lambda: more(lambda: logged("joined as"), 1), 60, "it to join again")
        await fill("fourth", 10)
        await wait_until_async(lambda: more(count, 199), 60, "it to take over, which writes the map")
    finally:
        killed(frozen)
    async with KafkaClient(old.bootstrap) as client:
        await client.refresh()
        await GroupOffsets(client, service).commit({partition: OffsetAndMetadata(130, "", -1)})
    source, target = OffsetStore(old.bootstrap, service), OffsetStore(new.bootstrap, service)
    (row,) = (await copy_offsets(source, target, by="map", mirror=group)).rows
    assert (row.after, row.problem) == (130, "")


async def test_a_stop_ends_a_mirror_whose_new_cluster_does_not_respond(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="0.9.0.1")
    new = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    mirror = Mirror(settings(old, new, group, topics=[topic]))
    try:
        async with mirroring(mirror):
            await wait_until_async(lambda: mirror.progress(), 60, "it to begin")
            await asyncio.to_thread(new.brokers[0].pause)
            await asyncio.to_thread(produce, old.bootstrap, topic, [b"v"] * 10, version=old.version)
            await asyncio.sleep(2)  # the requests are under way, and no broker answers
            began = time.monotonic()
        assert time.monotonic() - began < 90
    finally:
        await asyncio.to_thread(new.brokers[0].resume)
    await Mirror(settings(old, new, group, topics=[topic])).run(until_caught_up=True)
    assert await contents(new, topic) == await contents(old, topic)


async def test_records_that_wait_for_a_replica_are_not_written_again(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """The leader has the request of a killed process, and shows its records only after the other replica has them."""
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1"))
    # the leader waits for a silent replica, and does not hear from ZooKeeper that it is gone
    silence = {"zookeeper.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 30_000}
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", brokers=2, broker_config=silence))
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    partition, leading, other = TopicPartition(topic, 0), *new.brokers
    admin = KafkaAdminClient(bootstrap_servers=new.bootstrap)
    admin.create_topics([NewTopic(topic, replica_assignments={0: [leading.id, other.id]})])
    admin.create_topics([NewTopic(map_topic(group), replica_assignments={0: [leading.id]})])
    admin.close()
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)

    async def fill(name: str) -> None:
        rows = [(b"k", b"%s %d" % (name.encode(), n), 0) for n in range(20)]
        await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version)

    async def end() -> int:
        """The end of the leader's log, with records that readers do not see yet."""
        async with KafkaClient(f"127.0.0.1:{leading.port}") as client:
            await client.refresh([topic])
            epoch = {partition: client.leader_epoch(partition) or 0}
            found = (await ends_of_epochs(client, leading.id, epoch, timeout_s=5.0))[partition]
            return 0 if isinstance(found, BrokerError) else found.offset  # an error while the leader changes its epoch

    with started(chosen) as first:
        await fill("seen")
        await wait_until_async(lambda: more(end, 19), 60, "the first records")
        await asyncio.to_thread(other.pause)
        try:
            await fill("unseen")
            await wait_until_async(lambda: more(end, 39), 60, "the others")
            ensemble = ZooKeeperClient(str(chosen.zookeeper))
            await ensemble.connect()

            async def owner() -> str | None:
                state = await describe(ensemble, group)
                return None if state is None else state.owners.get(partition)

            async def taken_over(former: str | None) -> bool:
                return await owner() not in (None, former)

            former = await owner()
            killed(first)
            try:
                async with mirroring(Mirror(chosen)):
                    await wait_until_async(lambda: taken_over(former), 60, "the next process to own the partition")
                    began = time.monotonic()
                assert time.monotonic() - began < 10, "a stop ends the wait for the replica"
            finally:
                await ensemble.close()
            successor = Mirror(chosen)
            await successor.run(until_caught_up=True)  # once the leader does without the replica
        finally:
            await asyncio.to_thread(other.resume)
    assert bare(await contents(new, topic)) == bare(await contents(old, topic))
    assert successor.duplicated == 0
