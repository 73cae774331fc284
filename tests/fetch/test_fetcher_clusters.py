"""Sessions, elections, racks, fairness and memory on real brokers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from kafka import KafkaProducer

from allocator.core.client.fetch_messages import FetchRequest
from allocator.errors import LogTruncated
from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.fetch.reading import Connected, collect, next_batch, offsets, parts, start_at, take, until
from tests.racked import racked_brokers


def long(version: str) -> Any:
    return pytest.param(version, marks=pytest.mark.long)


class Exchange(NamedTuple):
    node: int
    request: Any
    response: Any

    @property
    def has_records(self) -> bool:
        return any(part.records for part in self.response.parts)


def record_fetches(client: Any) -> list[Exchange]:
    """Collects every Fetch request with its response from now on."""
    send, send_now = client.send, client.send_now
    seen: list[Exchange] = []

    def note(where: Any, request: Any, response: Any) -> None:
        if isinstance(request, FetchRequest) and response is not None:
            seen.append(Exchange(where[1] if isinstance(where, tuple) else where, request, response))

    async def recorded(where: Any, request: Any, timeout_s: float | None = None) -> Any:
        response = await send(where, request, timeout_s)
        note(where, request, response)
        return response

    def recorded_now(where: Any, request: Any, timeout_s: float, done: Callable[[Any, Any], None]) -> bool:
        def finish(response: Any, error: Any) -> None:
            note(where, request, response)
            done(response, error)

        return bool(send_now(where, request, timeout_s, finish))

    client.send, client.send_now = recorded, recorded_now
    return seen


@pytest.mark.parametrize(("version", "newest"), [("3.9.1", 17), (NEWEST, 18)])
async def test_brokers_remember_the_partitions_of_a_session(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str, newest: int
) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=20, cluster=cluster)
    state = start_at(parts(topic, 20))
    connected = Connected(cluster, state, max_wait_s=0.1)
    async with connected as fetcher:
        seen = record_fetches(connected.client)
        await until(lambda: len(seen) >= 4, "some polls")
        cluster.produce(topic, [(None, b"%d" % n, n % 20) for n in range(100)])
        await collect(fetcher, state, 100)
        state.pause(TopicPartition(topic, 3))
        fetcher.wake()
        await until(lambda: any(each.request.forgotten for each in seen), "a partition to be forgotten")
        cluster.produce(topic, [(None, b"more", n) for n in range(20)])
        await collect(fetcher, state, 19)
        assert await next_batch(fetcher, 0.2) is None
        state.resume(TopicPartition(topic, 3))
        fetcher.wake()
        assert (await take(fetcher, state)).partition == 3
    main = [each for each in seen if each.request.session[1] != -1]
    assert {each.response.API_VERSION for each in main} == {newest}, "requests name topics by id"
    epochs = [each.request.session[1] for each in main]
    assert epochs == list(range(epochs[0], epochs[0] + len(main))), "one session"
    assert not any(each.response.error_code for each in main)
    assert any(not each.request.wanted for each in main), "idle polls list no partition"


@pytest.mark.deadline(180)
async def test_the_replica_in_the_same_rack_is_read_and_left_when_it_dies(
    cluster_factory: Any, topic_factory: Callable[..., str]
) -> None:
    cluster = racked_brokers(cluster_factory)
    topic = topic_factory(partitions=3, replication=3, cluster=cluster)
    tps = parts(topic, 3)
    leaders = {tp: cluster.leader(topic, tp.partition).id for tp in tps}
    assert len(set(leaders.values())) == 3
    state = start_at(tps)
    connected = Connected(cluster, state, rack="rack-1")
    async with connected as fetcher:
        seen = record_fetches(connected.client)

        async def read_from_all(count: int) -> None:
            await asyncio.to_thread(cluster.produce, topic, [(None, b"x" * 100, n % 3) for n in range(count)])
            got = await collect(fetcher, state, count, 90)
            assert {tp: len(records) for tp, records in got.items()} == dict.fromkeys(tps, count // 3)

        await read_from_all(30)
        await read_from_all(30)
        assert {each.node for each in seen if each.has_records} == {1}, "the replica of rack 1 sent all records"
        victim = next(node for node in cluster.brokers if node.id == 1)
        await asyncio.to_thread(victim.kill)
        await read_from_all(30)
        assert {each.node for each in seen if each.has_records} > {1}


def abort_a_record(producer: Any, tp: TopicPartition) -> None:
    """Writes a record of an aborted transaction, and its marker."""
    producer.begin_transaction()
    producer.send(tp.topic, b"aborted", partition=tp.partition)
    producer.flush()
    producer.abort_transaction()
    producer.close()


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.deadline(240)
@pytest.mark.parametrize("reset", ["none", "earliest"])
async def test_a_log_that_an_unclean_election_truncated_is_noticed(reset: str) -> None:
    """The only replica with the records dies; another leader without them writes other records.

    The position follows an aborted transaction, of which no record was delivered.
    """
    config = {
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
    }
    with LocalCluster(kafka="3.9.1", brokers=2, broker_config=config) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="aborted")
        await asyncio.to_thread(producer.init_transactions)
        first = cluster.leader("__transaction_state", 0)  # the broker that coordinates the transaction must survive
        assert first is not None
        topic = "cut"
        cluster.create_topic(topic, 2, 2)
        tp = next(each for each in parts(topic, 2) if cluster.leader(*each) is first)
        (second,) = (node for node in cluster.brokers if node is not first)
        state = start_at([tp], 0, reset)
        async with Connected(cluster, state, isolation_level="read_committed") as fetcher:

            async def write(value: bytes, count: int) -> None:
                await asyncio.to_thread(cluster.produce, topic, [(None, value, tp.partition)] * count)

            async def read(end: int, begin: int) -> list[bytes]:
                found: list[Any] = []
                while not found or found[-1].offset < end - 1:
                    batch = await next_batch(fetcher, 120)
                    assert batch is not None
                    found += list(batch)
                    state.update_position(tp, batch.next_offset, fetcher.leader_epoch(tp, batch.next_offset))
                assert offsets(found) == list(range(begin, end))
                return [record.value for record in found]

            await write(b"both", 10)
            await read(10, 0)
            second.kill()
            await write(b"only the first", 10)
            await read(20, 10)
            await asyncio.to_thread(abort_a_record, producer, tp)
            while state.position(tp).offset < 22:
                assert await next_batch(fetcher, 0.1) is None
            first.kill()
            await asyncio.to_thread(second.start, 120)
            await write(b"only the second", 30)
            if reset == "none":
                with pytest.raises(LogTruncated) as caught:
                    await next_batch(fetcher, 120)
                assert (caught.value.offset, caught.value.divergent_offset) == (22, 10)
                state.seek(tp, OffsetAndMetadata(10, "", -1))
                fetcher.wake()
            assert await read(40, 10) == [b"only the second"] * 30


@pytest.mark.parametrize("version", ["0.8.2.2", long("0.9.0.1"), long("0.10.2.2"), "3.9.1"])
async def test_no_partition_starves(cluster_factory: Any, topic_factory: Callable[..., str], version: str) -> None:
    """0.10.1 and newer fill a response in the order of the request.

    Older versions send up to the requested bytes of each partition.
    """
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=30, cluster=cluster)
    cluster.produce(topic, ((None, b"x" * 1000, n % 30) for n in range(30 * 150)), batch_records=10)
    tps = parts(topic, 30)
    state = start_at(tps)
    async with Connected(cluster, state, max_partition_bytes=20_000, prefetch_bytes=200_000) as fetcher:
        read = dict.fromkeys(tps, 0)
        while min(read.values()) < 150:
            batch = await take(fetcher, state)
            read[TopicPartition(topic, batch.partition)] += len(batch)
            if min(read.values()) < 60:
                # a partition is ahead of the slowest one by the records of a few responses
                assert max(read.values()) - min(read.values()) <= 100, read
        assert set(read.values()) == {150}


SLOW_READER = """
    import asyncio, json, sys, time
    from allocator.core.fetch import Fetcher
    from allocator.core.subscription import SubscriptionState
    from allocator.types import TopicPartition
    from allocator.core.client.client import KafkaClient

    bootstrap, topic, partitions, prefetch, records = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

    def rss(mark):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(mark))

    async def main():
        state = SubscriptionState()
        tps = [TopicPartition(topic, n) for n in range(partitions)]
        state.assign_from_user(tps)
        for tp in tps:
            state.seek(tp, 0)
        client = KafkaClient(bootstrap)
        await client.connect()
        client.follow({topic})
        await client.refresh()
        before = rss("VmRSS")
        held = seen = 0
        async with Fetcher(client, state, prefetch_bytes=prefetch) as fetcher:
            while seen < records:
                batch = fetcher.take()
                if batch is None:
                    assert await fetcher.news(30)
                    continue
                for record in batch:
                    seen += 1
                    held = max(held, fetcher.buffered_bytes)
                    await asyncio.sleep(0.004)  # the handler: slower than the broker
                state.update_position(TopicPartition(topic, batch.partition), batch.next_offset)
        await client.close()
        print(json.dumps({"grown": rss("VmHWM") - before, "held": held, "seen": seen}))

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.deadline(180)
@pytest.mark.parametrize("version", [long("0.9.0.1"), "3.9.1"])
async def test_a_handler_slower_than_the_broker_keeps_memory_within_prefetch_bytes(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str
) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=100, cluster=cluster)
    size = 1_000_000 - 100
    await asyncio.to_thread(cluster.produce, topic, ((None, b"x" * size, n) for n in range(100)), batch_bytes=2_000_000)
    prefetch = 16 << 20
    arguments = (cluster.bootstrap, topic, "100", str(prefetch), "100")
    command = [sys.executable, "-c", textwrap.dedent(SLOW_READER), *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seen"] == 100
    assert prefetch // 4 < found["held"] <= prefetch
    # plus the record in the handler, memory that the allocator keeps, and code that is loaded at the first request
    assert found["grown"] < prefetch + (12 << 20), found
