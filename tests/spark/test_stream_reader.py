"""Plans, reads and commits of a stream, called like Spark does, on real servers but without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spark_queries import committed

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

import pyarrow as pa
from joining import joined

from allocator import Consumer
from allocator.core.zookeeper.client import NoChroot
from allocator.spark.errors import CheckpointMismatch, DataLoss, GroupInUse
from allocator.spark.options import STREAM, read_options
from allocator.spark.source.stream import METADATA_S, StreamReader
from allocator.testing import LocalCluster, produce, wait_until

TopicFactory = Callable[..., str]
COLUMNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
Place = tuple[str, int, int]


class Query:
    """A query over one checkpoint; `restart` simulates a crash of the driver."""

    def __init__(self, **options: Any) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.at: str | None = None
        self.readers: list[StreamReader] = []
        self.restart()

    def restart(self, **options: Any) -> None:
        self.options.update({name: str(value) for name, value in options.items()})
        self.reader = StreamReader(read_options(self.options, STREAM), COLUMNS)
        self.readers.append(self.reader)

    def plan(self) -> tuple[str, str]:
        """The next batch: its start and end, as the JSON texts of a checkpoint."""
        if self.at is None:
            self.at = json.dumps(self.reader.initialOffset())
        end = self.reader.latestOffset(json.loads(self.at), self.reader.getDefaultReadLimit())
        return self.at, json.dumps(end)

    def read(self, start: str, end: str) -> list[Place]:
        pieces = self.reader.partitions(json.loads(start), json.loads(end))
        batches = [batch for piece in pieces for batch in self.reader.read(piece)]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def batch(self) -> list[Place]:
        start, end = self.plan()
        found = self.read(start, end) if start != end else []
        self.reader.commit(json.loads(end))
        self.at = end
        return found


@pytest.fixture
def make_query(kafka_cluster: LocalCluster) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(**options: Any) -> Query:
        made.append(Query(**{"brokers": kafka_cluster.bootstrap, "starting_offsets": "earliest", **options}))
        return made[-1]

    yield make
    for query in made:
        for reader in query.readers:
            reader.stop()


def fill(cluster: LocalCluster, topic: str, counts: dict[int, int]) -> None:
    produce(cluster.bootstrap, topic, [(None, b"x", number) for number, count in counts.items() for _ in range(count)])


def records(topic: str, offsets: dict[int, range]) -> list[Place]:
    return [(topic, number, offset) for number, found in offsets.items() for offset in found]


def loss(query: Query) -> str:
    """Its error about lost records, or ""."""
    try:
        query.plan()
    except DataLoss as error:
        return str(error)
    return ""


def test_a_batch_that_is_repeated_by_another_driver_is_the_same_whatever_came_meanwhile(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory(partitions=24)
    fill(kafka_cluster, topic, dict.fromkeys(range(24), 3))
    query = make_query(topics=topic, max_offsets_per_trigger=30)
    start, end = query.plan()
    first = query.read(start, end)
    assert len(first) == 30
    fill(kafka_cluster, topic, dict.fromkeys(range(24), 3))
    query.restart()
    assert query.read(start, end) == first
    query.at = end
    rest = query.batch()
    assert len(rest) == 30
    query.restart(max_offsets_per_trigger=1000)
    rest += query.batch()
    assert sorted(first + rest) == records(topic, dict.fromkeys(range(24), range(6)))
    assert query.batch() == []


def test_a_batch_waits_for_as_many_records_as_are_wanted_or_for_its_delay(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory(partitions=2)
    fill(kafka_cluster, topic, {0: 1})
    query = make_query(topics=topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    hasty = make_query(topics=topic, minOffsetsPerTrigger=5, maxTriggerDelay="1ms")
    assert len(query.batch()) == len(hasty.batch()) == 1  # the first waits for nothing
    fill(kafka_cluster, topic, {0: 4})
    assert query.batch() == []
    assert len(wait_until(hasty.batch, 60, "the delay to be over")) == 4
    fill(kafka_cluster, topic, {1: 1})
    assert len(query.batch()) == 5
    fill(kafka_cluster, topic, {1: 1})
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 1


def test_partitions_that_appear_are_read_from_their_first_record_after_a_restart_too(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory(partitions=1)
    fill(kafka_cluster, topic, {0: 2})
    query = make_query(topics=topic, starting_offsets="latest")
    assert query.batch() == []
    kafka_cluster.add_partitions(topic, 12)
    fill(kafka_cluster, topic, {0: 1, 10: 3, 9: 2})
    planned: list[tuple[str, str]] = []

    def seen() -> bool:
        planned.append(query.plan())
        return '"10": 3' in planned[-1][1] and '"9": 2' in planned[-1][1]

    wait_until(seen, METADATA_S + 120, "the new partitions to be planned", interval_s=0.2)
    query.restart()  # the batch was written to the checkpoint, and not read
    wanted = records(topic, {0: range(2, 3), 9: range(2), 10: range(3)})
    assert query.read(*planned[-1]) == wanted


def test_finished_batches_are_committed_to_the_group(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory(partitions=2)
    fill(kafka_cluster, topic, {0: 4, 1: 4})
    query = make_query(topics=topic, group=group, commit="after_batch", max_offsets_per_trigger=4)
    start, end = query.plan()
    query.read(start, end)
    assert committed(kafka_cluster, group, topic, 2) == {}  # it may still fail
    query.reader.commit(json.loads(end))
    assert committed(kafka_cluster, group, topic, 2) == {0: 2, 1: 2}
    # a query without the checkpoint goes on where the group stands
    heir = make_query(topics=topic, group=group, commit="after_batch", starting_offsets="committed")
    assert heir.batch() == records(topic, {0: range(2, 4), 1: range(2, 4)})
    assert committed(kafka_cluster, group, topic, 2) == {0: 4, 1: 4}


@pytest.mark.parametrize("membership", ["kafka", "zookeeper"])
async def test_a_group_with_live_members_is_refused(
    kafka_cluster: LocalCluster,
    topic_factory: TopicFactory,
    group: str,
    make_query: Callable[..., Query],
    zk_chroot: str,
    membership: Any,
) -> None:
    topic = topic_factory(partitions=1)
    fill(kafka_cluster, topic, {0: 4})
    names = {"group": group, "zookeeper": zk_chroot}
    query = make_query(topics=topic, commit="after_batch", max_offsets_per_trigger=1, **names)
    await asyncio.to_thread(query.batch)
    zookeeper = {} if membership == "kafka" else {"zookeeper": names["zookeeper"]}
    settings: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "group": group, "client_id": "the-other-one"}
    async with Consumer(topic, **joined(membership=membership, **settings, **zookeeper)):
        late = make_query(topics=topic, commit="after_batch", **names)
        with pytest.raises(GroupInUse, match="the-other-one"):
            await asyncio.to_thread(late.plan)
        if membership == "kafka":  # what the coordinator refuses; it knows nothing of members in ZooKeeper
            with pytest.raises(GroupInUse, match="the-other-one"):
                await asyncio.to_thread(query.batch)
        idle = make_query(topics=topic, **names)
        assert await asyncio.to_thread(idle.batch) == records(topic, {0: range(4)})


def test_a_chroot_that_no_member_created_is_refused_as_a_typo_would_hide_the_members(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory()
    fill(kafka_cluster, topic, {0: 4})
    place = f"{kafka_cluster.zookeeper}/{group}"
    query = make_query(topics=topic, group=group, zookeeper=place, commit="after_batch")
    with pytest.raises(NoChroot, match=group):
        query.plan()
    assert committed(kafka_cluster, group, topic, 1) == {}


def test_a_checkpoint_of_another_topic_is_refused(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    one, other = topic_factory(), topic_factory()
    fill(kafka_cluster, one, {0: 1})
    query = make_query(topics=one)
    query.batch()
    query.restart(topics=other)
    with pytest.raises(CheckpointMismatch, match=f"read {one}, which this query does not"):
        query.batch()
    query.at = json.dumps({"path": "/files"})
    with pytest.raises(CheckpointMismatch, match="another source wrote it"):
        query.batch()


def test_a_deleted_topic_is_data_loss_or_left_out(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    stays, goes = topic_factory(), topic_factory()
    for topic in (stays, goes):
        fill(kafka_cluster, topic, {0: 2})
    strict = make_query(topics=f"{stays},{goes}")
    lenient = make_query(topics=f"{stays},{goes}", fail_on_data_loss="false")
    both = sorted(records(stays, {0: range(2)}) + records(goes, {0: range(2)}))
    assert strict.batch() == lenient.batch() == both
    kafka_cluster.delete_topic(goes)
    fill(kafka_cluster, stays, {0: 1})

    told = wait_until(lambda: loss(strict), METADATA_S + 120, "the deletion to be seen", interval_s=0.2)
    assert f"'{goes}' was deleted" in told
    assert lenient.batch() == records(stays, {0: range(2, 3)})


def test_a_recreated_topic_without_an_id_is_data_loss_or_read_from_its_first_record(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    busy, anew = topic_factory(), topic_factory()
    fill(kafka_cluster, anew, {0: 50})
    strict = make_query(topics=f"{busy},{anew}")
    lenient = make_query(topics=f"{busy},{anew}", fail_on_data_loss="false", max_offsets_per_trigger=60)
    assert len(strict.batch()) == len(lenient.batch()) == 50
    for query in (strict, lenient):  # a checkpoint as brokers before 2.8 cause it: without topic ids
        query.at = json.dumps({name: what for name, what in json.loads(str(query.at)).items() if name != "@ids"})
    recreate(kafka_cluster, anew, 5)
    fill(kafka_cluster, busy, {0: 1000})

    told = wait_until(lambda: loss(strict), METADATA_S + 120, "the new topic to be seen", interval_s=0.2)
    assert f"{anew}:0 was read up to offset 50 and now ends at 5" in told
    assert lenient.batch() == sorted(records(anew, {0: range(5)}) + records(busy, {0: range(60)}))
    assert lenient.batch() == records(busy, {0: range(60, 120)})


def recreate(cluster: LocalCluster, topic: str, count: int) -> None:
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1, 1)
    fill(cluster, topic, {0: count})


@pytest.mark.parametrize("restarted", [False, True])
def test_a_recreated_topic_with_more_records_is_data_loss_or_read_from_its_first_record(
    restarted: bool, kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    """Detected by the id in the checkpoint; the end of the log does not show it."""
    other, anew = topic_factory(), topic_factory()
    fill(kafka_cluster, anew, {0: 50})
    strict = make_query(topics=f"{other},{anew}")
    lenient = make_query(topics=f"{other},{anew}", fail_on_data_loss="false", max_offsets_per_trigger=60)
    assert len(strict.batch()) == len(lenient.batch()) == 50
    recreate(kafka_cluster, anew, 80)
    if restarted:
        strict.restart()
        lenient.restart()

    told = wait_until(lambda: loss(strict), METADATA_S + 120, "the new topic to be seen", interval_s=0.2)
    assert f"topic '{anew}' was deleted and created again" in told
    wait_until(lambda: lenient.plan()[1] != lenient.at, METADATA_S + 120, "the new topic to be seen", interval_s=0.2)
    assert lenient.batch() == records(anew, {0: range(60)})
    lenient.restart()
    assert lenient.batch() == records(anew, {0: range(60, 80)})
    assert lenient.batch() == []


def test_a_planned_batch_does_not_read_the_records_of_a_recreated_topic(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory()
    fill(kafka_cluster, topic, {0: 10})
    strict, lenient = make_query(topics=topic), make_query(topics=topic, fail_on_data_loss="false")
    planned, passed_over = strict.plan(), lenient.plan()
    recreate(kafka_cluster, topic, 20)
    with pytest.raises(DataLoss, match=f"{topic}:0 was to be read from offset 0 to 9, but the topic was deleted"):
        strict.read(*planned)
    assert lenient.read(*passed_over) == []
    lenient.at = passed_over[1]
    wait_until(lambda: lenient.plan()[1] != lenient.at, METADATA_S + 120, "the new topic to be seen", interval_s=0.2)
    assert lenient.batch() == records(topic, {0: range(20)})


def test_offsets_of_a_recreated_topic_are_data_loss_or_the_group_starts_at_its_first_record(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory()
    fill(kafka_cluster, topic, {0: 5})
    query = make_query(topics=topic, group=group, commit="after_batch")
    query.batch()
    recreate(kafka_cluster, topic, 8)
    query.restart()
    query.reader.commit(json.loads(str(query.at)))  # brokers forget it with the topic; a query under way renews it
    assert committed(kafka_cluster, group, topic, 1) == {0: 5}
    heir = make_query(topics=topic, group=group, starting_offsets="committed")
    with pytest.raises(DataLoss, match=f"group '{group}' committed offsets of {topic}:0 before the topic was deleted"):
        heir.plan()
    heir.restart(fail_on_data_loss="false")
    assert heir.batch() == records(topic, {0: range(8)})


def test_a_transaction_that_is_open_at_the_checkpoint_holds_the_stream_back_and_is_no_loss(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str, make_query: Callable[..., Query]
) -> None:
    """A query read uncommitted records before its checkpoint; from then on it reads committed records only."""
    from confluent_kafka import Producer

    topic = topic_factory()
    fill(kafka_cluster, topic, {0: 10})
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    before = make_query(topics=topic, group=group, commit="after_batch")
    assert len(before.batch()) == 11
    assert before.batch() == []  # and commits to the group
    after = make_query(topics=topic, isolation_level="read_committed", fail_on_data_loss="false")
    after.at = before.at
    of_group = {"group": group, "starting_offsets": "committed", "isolation_level": "read_committed"}
    for query in (after, make_query(topics=topic, **of_group)):
        assert query.batch() == []
    producer.commit_transaction(30)
    fill(kafka_cluster, topic, {0: 1})
    # before or after the transaction's marker
    (found,) = wait_until(after.batch, METADATA_S + 120, "the end of the transaction")
    assert found in records(topic, {0: range(11, 13)})


def test_available_now_ends_where_topics_ended_when_it_began(
    kafka_cluster: LocalCluster, topic_factory: TopicFactory, make_query: Callable[..., Query]
) -> None:
    topic = topic_factory(partitions=2)
    fill(kafka_cluster, topic, {0: 10, 1: 3})
    query = make_query(topics=topic, max_offsets_per_trigger=5)
    query.reader.prepareForTriggerAvailableNow()
    fill(kafka_cluster, topic, {0: 10, 1: 10})
    found, sizes = [], []
    while batch := query.batch():
        found += batch
        sizes.append(len(batch))
    assert sizes == [5, 5, 3]
    assert sorted(found) == records(topic, {0: range(10), 1: range(3)})
