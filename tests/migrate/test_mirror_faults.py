"""Failures of the new cluster: it still gets each record once, in order."""

from __future__ import annotations

import asyncio
import logging
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

from allocator.core.client import KafkaClient, ends_of_epochs, list_offsets
from allocator.errors import BrokerError
from allocator.migrate.offset_map import map_topic
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.storage import OffsetStore
from allocator.operate import describe
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.groups.zookeeper_sessions import session
from tests.migrate.mirroring import commit, contents, killed, mirroring, more, started

pytestmark = [pytest.mark.deadline(240), pytest.mark.long]

COUNT = 30_000
MakePair = Callable[..., Any]


async def test_a_new_broker_that_is_killed_and_restarted_gets_each_record_once(make_pair: MakePair) -> None:
    pair = await make_pair("0.9.0.1", "3.9.1", 3)
    await pair.fill(COUNT, partition=None, batch_records=50)
    mirror = pair.mirror(throttle_bytes_s=200_000.0)
    async with mirroring(mirror):
        await wait_until_async(lambda: mirror.records > 0, 60, "records to come over")
        await asyncio.to_thread(pair.new.brokers[0].kill)
        await asyncio.to_thread(pair.new.brokers[0].start)
        await wait_until_async(lambda: mirror.records >= COUNT, 180, lambda: f"all to come over: {mirror.records}")
    await pair.assert_equal()
    assert mirror.duplicated == 0


async def test_a_process_that_is_frozen_and_wakes_up_writes_nothing_behind_its_successor(make_pair: MakePair) -> None:
    """Records that were in a socket when it froze may be written twice. It may not send further ones."""
    pair = await make_pair("2.8.2", "3.9.1", 4)
    await pair.fill(COUNT, "value" + 400 * "x", partition=None, batch_records=20)

    async def copied() -> int:
        ends = await list_offsets(new, dict.fromkeys((TopicPartition(pair.topic, n) for n in range(4)), "latest"))
        return sum(end.offset for end in ends.values() if end is not None)

    async def copies() -> None:
        before = await copied()
        await wait_until_async(lambda: more(copied, before), 60, "records to come over")

    async def shared_by(*processes: Any) -> None:
        """Waits until these are the members, and each owns partitions."""

        async def met() -> bool:
            state = await describe(ensemble, pair.group)
            if state is None or len(state.owners) < 4 or {*state.owners.values()} != {*state.members}:
                return False
            return {member.pid for member in state.members.values()} == {process.pid for process in processes}

        await wait_until_async(met, 60, f"{len(processes)} members to share all partitions")

    async with mirroring(pair.mirror(throttle_bytes_s=10_000.0)) as first:
        await wait_until_async(lambda: first.records, 60, "it to start")
    slow = "--throttle", "0.05"  # so that there are records to copy until the end
    async with session(str(pair.settings.zookeeper)) as ensemble, KafkaClient(pair.new.bootstrap) as new:
        with started(pair.settings, *slow) as one, started(pair.settings, *slow) as two:
            for process, other in ((one, two), (two, one), (one, two)):
                await shared_by(one, two)
                await copies()
                process.send_signal(signal.SIGSTOP)
                await shared_by(other)  # its session has ended
                await copies()
                process.send_signal(signal.SIGCONT)
    await pair.catch_up()
    await pair.assert_equal(with_offsets=False)


async def test_the_late_request_of_a_frozen_process_does_not_change_the_map_of_its_successor(
    make_pair: MakePair, cluster_factory: Any, group: str, tmp_path: Path
) -> None:
    """The broker gets the request after the successor has compared, so its records are there twice."""
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", proxied=True))
    pair = await make_pair("3.9.1", new, old_zookeeper=None, session_timeout_s=6.0)
    service, log_file = f"{group}-service", tmp_path / "log"

    async def count() -> int:
        return len((await contents(new, pair.topic)).get(0, []))

    async def logged(text: str) -> int:
        return (await asyncio.to_thread(log_file.read_text)).count(text)

    await pair.fill(100, "first")
    script = (
        f"import asyncio, logging; logging.basicConfig(filename={str(log_file)!r}, level=logging.DEBUG)\n"
        "from allocator.migrate import Mirror, MirrorSettings\n"
        f"asyncio.run(Mirror({replace(pair.settings, commit_interval_s=2.0)!r}).run())"
    )
    frozen = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", script])
    proxy = new.brokers[0].proxy
    try:
        await wait_until_async(lambda: more(count, 99), 60, "the first records")
        proxy.drop(direction="to_server", client=frozen.pid)
        requests = await logged("ProduceRequest")
        await pair.fill(20, "second")
        await wait_until_async(lambda: more(lambda: logged("ProduceRequest"), requests), 60, "the request")
        frozen.send_signal(signal.SIGSTOP)
        async with mirroring(pair.mirror()) as mirror:
            await pair.fill(50, "third")
            await wait_until_async(lambda: mirror.records >= 70, 60, "the successor to mirror these")
            proxy.heal(client=frozen.pid)
            await wait_until_async(lambda: more(count, 170), 60, "the late request")
            frozen.send_signal(signal.SIGCONT)
            await wait_until_async(lambda: more(lambda: logged("joined as"), 1), 60, "it to join again")
        await pair.fill(10, "fourth")
        await wait_until_async(lambda: more(count, 199), 60, "it to take over, which writes the map")
    finally:
        killed(frozen)
    await commit(pair.old, service, {pair.partition: 130})
    source, target = OffsetStore(pair.old.bootstrap, service), OffsetStore(new.bootstrap, service)
    (row,) = (await copy_offsets(source, target, by="map", mirror=group)).rows
    assert (row.after, row.problem) == (130, "")


async def test_a_stop_ends_a_mirror_whose_new_cluster_does_not_respond(
    make_pair: MakePair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "allocator")
    pair = await make_pair("0.9.0.1", "3.9.1")
    mirror = pair.mirror()
    try:
        async with mirroring(mirror):
            await pair.fill(10)
            await wait_until_async(lambda: mirror.records == 10, 60, "it to start")
            await asyncio.to_thread(pair.new.brokers[0].pause)
            caplog.clear()
            await pair.fill(10, "later")
            await wait_until_async(lambda: "ProduceRequest" in caplog.text, 60, "a request that nobody responds to")
            stopped = time.monotonic()
        assert time.monotonic() - stopped < 90
    finally:
        await asyncio.to_thread(pair.new.brokers[0].resume)
    await pair.catch_up()
    await pair.assert_equal()


async def test_records_that_wait_for_a_replica_are_not_written_again(make_pair: MakePair, cluster_factory: Any) -> None:
    """The leader has the request of a killed process, and shows its records only after the other replica has them."""
    # the leader waits for a silent replica, and does not learn from ZooKeeper that it is gone
    silence = {"zookeeper.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 30_000}
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", brokers=2, broker_config=silence))
    pair = await make_pair("3.9.1", new, old_zookeeper=None)
    partition, leading, other = pair.partition, *new.brokers
    admin = KafkaAdminClient(bootstrap_servers=new.bootstrap)
    admin.create_topics([NewTopic(pair.topic, replica_assignments={0: [leading.id, other.id]})])
    admin.create_topics([NewTopic(map_topic(pair.group), replica_assignments={0: [leading.id]})])
    admin.close()

    async def end() -> int:
        """The end of the leader's log, with records that readers do not see yet."""
        async with KafkaClient(f"127.0.0.1:{leading.port}") as client:
            await client.refresh([pair.topic])
            epoch = {partition: client.leader_epoch(partition) or 0}
            found = (await ends_of_epochs(client, leading.id, epoch, timeout_s=5.0))[partition]
            return 0 if isinstance(found, BrokerError) else found.offset  # an error while the leader changes its epoch

    with started(pair.settings) as first:
        await pair.fill(20, "seen")
        await wait_until_async(lambda: more(end, 19), 60, "the first records")
        await asyncio.to_thread(other.pause)
        try:
            await pair.fill(20, "unseen")
            await wait_until_async(lambda: more(end, 39), 60, "the others")
            ensemble = ZooKeeperClient(str(pair.settings.zookeeper))
            await ensemble.connect()

            async def owner() -> str | None:
                state = await describe(ensemble, pair.group)
                return None if state is None else state.owners.get(partition)

            async def taken_over(former: str | None) -> bool:
                return await owner() not in (None, former)

            former = await owner()
            killed(first)
            try:
                async with mirroring(pair.mirror()):
                    await wait_until_async(lambda: taken_over(former), 60, "the next process to own the partition")
                    stopped = time.monotonic()
                assert time.monotonic() - stopped < 10, "a stop ends the wait for the replica"
            finally:
                await ensemble.close()
            successor = await pair.catch_up()  # once the leader does without the replica
        finally:
            await asyncio.to_thread(other.resume)
    await pair.assert_equal(with_offsets=False)
    assert successor.duplicated == 0
