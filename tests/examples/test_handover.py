"""The example of a handover, with two members on real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from allocator import Consumer, TopicPartition, ZooKeeper
from allocator.testing import LocalCluster, wait_until_async
from examples.handover import Handover


async def test_counts_move_with_their_partition_to_its_next_owner(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(2)
    kafka_cluster.produce(topic, [(b"k%d" % (n % 3), b"x", n % 2) for n in range(60)])

    def member() -> tuple[Handover, Consumer]:
        handover = Handover(tmp_path)
        handover.consumer = Consumer(
            topic,
            brokers=kafka_cluster.bootstrap,
            group=group,
            zookeeper=f"{kafka_cluster.zookeeper}/{group}",
            listener=handover,
            max_wait_s=0.05,
            membership=ZooKeeper(session_timeout_s=15.0),
        )
        return handover, handover.consumer

    first, one = member()
    async with one:
        while sum(sum(counts.values()) for counts in first.counts.values()) < 60:
            batch = await one.getbatch(30)
            assert batch is not None
            first.counts[TopicPartition(batch.topic, batch.partition)].update(r.key.decode() for r in batch)
        await one.getbatch(0)  # the next request marks the last batch as done
        before = {partition: Counter(counts) for partition, counts in first.counts.items()}
        second, two = member()
        async with two:
            await wait_until_async(lambda: len(second.counts) == 1 == len(first.counts), 30, "one partition each")
            ((moved, named),) = first.passed_on.items()
            assert named == two.member_id
            await wait_until_async(lambda: second.counts[moved] == before[moved], 30, "the counts")
