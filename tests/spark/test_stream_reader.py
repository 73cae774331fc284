"""Plans, reads and commits of a stream, called like Spark does, on real servers but without Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

from allocator import Consumer
from allocator.protocols.zookeeper.client.client import NoChroot
from allocator.spark.errors import CheckpointMismatch, DataLoss, GroupInUse
from allocator.spark.source.stream import METADATA_S
from allocator.testing import LocalCluster, produce, wait_until
from tests.joining import joined
from tests.migrate.mirroring import delete_records
from tests.spark.spark_queries import Place, Query, commit, committed


class Streams:
    """Topics on a cluster, and queries that read them from their first record."""

    def __init__(self, cluster: LocalCluster, topic_factory: Callable[..., str]) -> None:
        self.cluster, self.topic = cluster, topic_factory
        self.queries: list[Query] = []

    def query(self, **options: Any) -> Query:
        given = {"brokers": self.cluster.bootstrap, "starting_offsets": "earliest", **options}
        self.queries.append(Query(**{name: value for name, value in given.items() if value is not None}))
        return self.queries[-1]

    def fill(self, topic: str, counts: dict[int, int]) -> None:
        rows = [(None, b"x", partition) for partition, count in counts.items() for _ in range(count)]
        produce(self.cluster.bootstrap, topic, rows)

    def recreate(self, topic: str, count: int) -> None:
        self.cluster.delete_topic(topic)
        self.cluster.create_topic(topic, 1, 1)
        self.fill(topic, {0: count})

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return committed(self.cluster, group, topic)


@pytest.fixture
def streams(kafka_cluster: LocalCluster, topic_factory: Callable[..., str]) -> Iterator[Streams]:
    streams = Streams(kafka_cluster, topic_factory)
    yield streams
    for query in streams.queries:
        query.stop()


def records(topic: str, offsets: dict[int, range]) -> list[Place]:
    return [(topic, number, offset) for number, found in offsets.items() for offset in found]


def wait_for_loss(query: Query) -> str:
    """Plans batches until the query detects a change of its topics; returns the error."""

    def loss() -> str:
        try:
            query.plan()
        except DataLoss as error:
            return str(error)
        return ""

    return wait_until(loss, METADATA_S + 120, "the loss to be detected", interval_s=0.2)


def wait_for_records(query: Query) -> None:
    """Plans batches until there are new records."""
    wait_until(lambda: query.plan()[1] != query.at, METADATA_S + 120, "new records to be planned", interval_s=0.2)


def test_a_batch_that_is_repeated_by_another_driver_is_the_same_whatever_came_meanwhile(streams: Streams) -> None:
    topic = streams.topic(partitions=24)
    streams.fill(topic, dict.fromkeys(range(24), 3))
    query = streams.query(topics=topic, max_offsets_per_trigger=30)
    start, end = query.plan()
    first = query.read(start, end)
    assert len(first) == 30
    streams.fill(topic, dict.fromkeys(range(24), 3))
    query.restart()
    assert query.read(start, end) == first
    query.at = end
    rest = query.batch()
    assert len(rest) == 30
    query.restart(max_offsets_per_trigger=1000)
    rest += query.batch()
    assert sorted(first + rest) == records(topic, dict.fromkeys(range(24), range(6)))
    assert query.batch() == []


@pytest.mark.parametrize("start", ["latest", "committed", "offsets", "a time"])
def test_a_first_batch_that_is_repeated_by_another_driver_is_the_same(start: str, streams: Streams, group: str) -> None:
    """Spark keeps the ends of the batch only, and asks the new reader for the start again.

    The options need not have a start for partitions and records that came meanwhile.
    """
    topic = streams.topic(partitions=1)
    streams.fill(topic, {0: 20})
    commit(streams.cluster, group, topic, {0: 15})
    options = {
        "latest": {"starting_offsets": "latest"},
        "committed": {"starting_offsets": "committed", "group": group},
        "offsets": {"starting_offsets": json.dumps({topic: {"0": 5}})},
        "a time": {"starting_offsets": None, "starting_timestamps": int(time.time() * 1000) - 600_000},
    }[start]
    query = streams.query(topics=topic, **options)
    first = query.plan()
    read = query.read(*first)
    streams.fill(topic, {0: 10})
    streams.cluster.add_partitions(topic, 2)
    commit(streams.cluster, group, topic, {0: 30})
    query.restart()
    again = json.dumps(query.reader.initialOffset())
    wanted = {"latest": range(0), "committed": range(15, 20), "offsets": range(5, 20), "a time": range(20)}[start]
    assert read == query.read(again, first[1]) == records(topic, {0: wanted})
    query.at = first[1]
    assert query.batch() == records(topic, {0: range(20, 30)})


@pytest.mark.parametrize(
    ("start", "deleted", "later", "left"),
    [("latest", 0, 0, 0), ("latest", 0, 10, 0), ("earliest", 8, 0, 12), ("earliest", 0, 0, 20)],
)
def test_a_first_batch_whose_start_the_checkpoint_lacks_is_data_loss_or_starts_anew(
    start: str, deleted: int, later: int, left: int, streams: Streams
) -> None:
    """Spark's own connector keeps it elsewhere. The options may give another start than the planned one."""
    topic = streams.topic()
    streams.fill(topic, {0: 20})
    if deleted:
        delete_records(streams.cluster.bootstrap, topic, deleted)
    if later:
        streams.fill(topic, {0: later})
    query = streams.query(topics=topic, starting_offsets=start)
    first, planned = json.dumps(query.reader.initialOffset()), json.dumps({topic: {"0": 20}})
    with pytest.raises(DataLoss, match="the checkpoint lacks the start of its first batch"):
        query.read(first, planned)
    query.restart(fail_on_data_loss="false")
    assert query.read(first, planned) == records(topic, {0: range(20 - left, 20)})
    query.at = planned
    query.restart(fail_on_data_loss="true")
    assert query.batch() == records(topic, {0: range(20, 20 + later)})


def test_a_first_batch_whose_records_retention_deleted_is_data_loss(streams: Streams) -> None:
    topic = streams.topic()
    streams.fill(topic, {0: 20})
    query = streams.query(topics=topic)
    _, end = query.plan()
    delete_records(streams.cluster.bootstrap, topic, 12)
    query.restart()
    start = json.dumps(query.reader.initialOffset())
    with pytest.raises(DataLoss, match=f"{topic}:0 has offsets 12 to 19, not 0"):
        query.read(start, end)
    query.restart(fail_on_data_loss="false")
    assert query.read(start, end) == records(topic, {0: range(12, 20)})


def test_a_batch_waits_for_as_many_records_as_are_wanted_or_for_its_delay(streams: Streams) -> None:
    topic = streams.topic(partitions=2)
    streams.fill(topic, {0: 1})
    query = streams.query(topics=topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    hasty = streams.query(topics=topic, minOffsetsPerTrigger=5, maxTriggerDelay="1ms")
    assert len(query.batch()) == len(hasty.batch()) == 1  # the first waits for nothing
    streams.fill(topic, {0: 4})
    assert query.batch() == []
    assert len(wait_until(hasty.batch, 60, "the delay to be over")) == 4
    streams.fill(topic, {1: 1})
    assert len(query.batch()) == 5
    streams.fill(topic, {1: 1})
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 1


def test_partitions_that_appear_are_read_from_their_first_record_after_a_restart_too(streams: Streams) -> None:
    topic = streams.topic(partitions=1)
    streams.fill(topic, {0: 2})
    query = streams.query(topics=topic, starting_offsets="latest")
    assert query.batch() == []
    streams.cluster.add_partitions(topic, 12)
    streams.fill(topic, {0: 1, 10: 3, 9: 2})
    planned: list[tuple[str, str]] = []

    def seen() -> bool:
        planned.append(query.plan())
        return '"10": 3' in planned[-1][1] and '"9": 2' in planned[-1][1]

    wait_until(seen, METADATA_S + 120, "the new partitions to be planned", interval_s=0.2)
    query.restart()  # the batch was written to the checkpoint, and not read
    wanted = records(topic, {0: range(2, 3), 9: range(2), 10: range(3)})
    assert query.read(*planned[-1]) == wanted


@pytest.mark.parametrize("deleted", [3, 5])
def test_a_new_partition_that_lost_its_first_records_is_data_loss_or_starts_after_them(
    deleted: int, streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    topic = streams.topic(partitions=1)
    streams.fill(topic, {0: 2})
    strict, lenient = streams.query(topics=topic), streams.query(topics=topic, fail_on_data_loss="false")
    assert strict.batch() == lenient.batch() == records(topic, {0: range(2)})
    streams.cluster.add_partitions(topic, 2)
    streams.fill(topic, {1: 5})
    delete_records(streams.cluster.bootstrap, topic, deleted, partition=1)
    strict.restart()
    lenient.restart()
    what = f"{topic}:1 is new to this query and begins at offset {deleted}: {deleted} offsets were deleted"
    with pytest.raises(DataLoss, match=what):
        strict.plan()
    # a batch that Spark's own connector planned: its checkpoint has no start of new partitions
    planned = str(strict.at), json.dumps({topic: {"0": 2, "1": 5}})
    with pytest.raises(DataLoss, match=what):
        strict.read(*planned)
    rest = records(topic, {1: range(deleted, 5)})
    assert lenient.read(*planned) == lenient.batch() == rest
    assert what in caplog.text
    strict.at = lenient.at
    streams.fill(topic, {1: 1})
    assert strict.batch() == records(topic, {1: range(5, 6)})


def test_finished_batches_are_committed_to_the_group(streams: Streams, group: str) -> None:
    topic = streams.topic(partitions=2)
    streams.fill(topic, {0: 4, 1: 4})
    query = streams.query(topics=topic, group=group, commit="after_batch", max_offsets_per_trigger=4)
    start, end = query.plan()
    query.read(start, end)
    assert streams.committed(group, topic) == {}  # it may still fail
    query.reader.commit(json.loads(end))
    assert streams.committed(group, topic) == {0: 2, 1: 2}
    # a query without the checkpoint continues at the group's offsets
    heir = streams.query(topics=topic, group=group, commit="after_batch", starting_offsets="committed")
    assert heir.batch() == records(topic, {0: range(2, 4), 1: range(2, 4)})
    assert streams.committed(group, topic) == {0: 4, 1: 4}


def test_a_restart_commits_the_last_batch_only_over_an_offset_of_a_query(streams: Streams, group: str) -> None:
    """The driver died before the commit. Nobody else has committed, or another consumer has, before or behind it."""
    topic = streams.topic(partitions=4)
    streams.fill(topic, dict.fromkeys(range(4), 30))
    query = streams.query(topics=topic, group=group, commit="after_batch", max_offsets_per_trigger=40)
    assert len(query.batch()) == 40
    assert streams.committed(group, topic) == dict.fromkeys(range(4), 10)
    start, end = query.plan()
    assert len(query.read(start, end)) == 40
    query.at = end
    query.restart()
    commit(streams.cluster, group, topic, {0: 30, 1: 3})
    query.plan()
    assert streams.committed(group, topic) == {0: 30, 1: 3, 2: 20, 3: 20}
    query.restart(max_offsets_per_trigger=20)
    assert len(query.batch()) == 20  # the offsets 20 to 24 of each partition
    assert streams.committed(group, topic) == {0: 30, 1: 25, 2: 25, 3: 25}


@pytest.mark.parametrize("strict", [True, False])
def test_a_restart_commits_no_offset_of_a_former_topic(strict: bool, streams: Streams, group: str) -> None:
    kept, topic = streams.topic(), streams.topic()
    for each in (kept, topic):
        streams.fill(each, {0: 5})
    query = streams.query(topics=f"{kept},{topic}", group=group, commit="after_batch", max_offsets_per_trigger=10)
    start, end = query.plan()
    assert len(query.read(start, end)) == 10
    query.at = end  # the driver dies before the commit
    streams.recreate(topic, 30)
    query.restart(fail_on_data_loss=str(strict).lower())
    if strict:
        assert f"topic '{topic}' was deleted and created again" in wait_for_loss(query)
        assert streams.committed(group, topic) == {}
        assert streams.committed(group, kept) == {0: 5}
        return
    wait_for_records(query)  # plans a batch, which fails
    assert streams.committed(group, topic) == {}
    commit(streams.cluster, group, topic, {0: 15})
    query.restart()
    for end, there in ((10, 15), (20, 20), (30, 30)):
        assert query.batch() == records(topic, {0: range(end - 10, end)})
        assert streams.committed(group, topic) == {0: there}


def test_the_batches_of_a_recreated_topic_are_committed_also_if_it_is_as_long(streams: Streams, group: str) -> None:
    topic = streams.topic()
    streams.fill(topic, {0: 5})
    query = streams.query(topics=topic, group=group, commit="after_batch", fail_on_data_loss="false")
    assert len(query.batch()) == 5
    assert streams.committed(group, topic) == {0: 5}
    streams.recreate(topic, 5)
    wait_for_records(query)
    assert streams.committed(group, topic) == {}
    assert query.batch() == records(topic, {0: range(5)})
    assert streams.committed(group, topic) == {0: 5}


def test_no_offset_beyond_the_end_of_a_log_is_committed(streams: Streams, group: str) -> None:
    """The leader was elected without the last records, which a finished batch has read."""
    topic = streams.topic()
    streams.fill(topic, {0: 10})
    query = streams.query(topics=topic, group=group, commit="after_batch", max_offsets_per_trigger=2)
    checkpoint = json.loads(query.plan()[1])
    checkpoint[topic]["0"] = 13
    query.at = json.dumps(checkpoint)
    query.restart()
    with pytest.raises(DataLoss, match=f"{topic}:0 was read up to offset 13 and now ends at 10"):
        query.plan()
    assert streams.committed(group, topic) == {}
    commit(streams.cluster, group, topic, {0: 13}, f"spark topic {checkpoint['@ids'][topic]}")
    query.restart(fail_on_data_loss="false")
    assert query.batch() == []
    assert streams.committed(group, topic) == {0: 10}  # this query's own offset follows it back
    streams.fill(topic, {0: 4})
    assert query.batch() == records(topic, {0: range(10, 12)})
    assert streams.committed(group, topic) == {0: 12}


@pytest.mark.parametrize("membership", ["kafka", "zookeeper"])
async def test_a_group_with_live_members_is_refused(
    streams: Streams, group: str, zk_chroot: str, membership: Any
) -> None:
    topic = streams.topic(partitions=1)
    streams.fill(topic, {0: 4})
    options = {"topics": topic, "group": group, "zookeeper": zk_chroot}
    query = streams.query(**options, commit="after_batch", max_offsets_per_trigger=1)
    await asyncio.to_thread(query.batch)
    zookeeper = {} if membership == "kafka" else {"zookeeper": zk_chroot}
    settings: dict[str, Any] = {"brokers": streams.cluster.bootstrap, "group": group, "client_id": "the-other-one"}
    async with Consumer(topic, **joined(membership=membership, **settings, **zookeeper)):
        late = streams.query(**options, commit="after_batch")
        with pytest.raises(GroupInUse, match="the-other-one"):
            await asyncio.to_thread(late.plan)
        if membership == "kafka":  # the coordinator does not know members in ZooKeeper, so it refuses nothing
            with pytest.raises(GroupInUse, match="the-other-one"):
                await asyncio.to_thread(query.batch)
        idle = streams.query(**options)
        assert await asyncio.to_thread(idle.batch) == records(topic, {0: range(4)})


def test_a_chroot_that_no_member_created_is_refused_as_a_typo_would_hide_the_members(
    streams: Streams, group: str
) -> None:
    topic = streams.topic()
    streams.fill(topic, {0: 4})
    place = f"{streams.cluster.zookeeper}/{group}"
    query = streams.query(topics=topic, group=group, zookeeper=place, commit="after_batch")
    with pytest.raises(NoChroot, match=group):
        query.plan()
    assert streams.committed(group, topic) == {}


def test_a_checkpoint_of_another_topic_is_refused(streams: Streams) -> None:
    one, other = streams.topic(), streams.topic()
    streams.fill(one, {0: 1})
    query = streams.query(topics=one)
    query.batch()
    query.restart(topics=other)
    with pytest.raises(CheckpointMismatch, match=f"read {one}, which this query does not"):
        query.batch()
    query.at = json.dumps({"path": "/files"})
    with pytest.raises(CheckpointMismatch, match="another source wrote it"):
        query.batch()


@pytest.mark.parametrize(
    ("left", "with_id", "restarted", "message"),
    [
        (0, True, False, "'{}' was deleted"),
        (80, True, False, "topic '{}' was deleted and created again"),
        (80, True, True, "topic '{}' was deleted and created again"),
        # without the id, the end of the log shows it; brokers before 2.8 have no ids
        (5, False, False, "{}:0 was read up to offset 50 and now ends at 5"),
    ],
)
def test_a_deleted_or_recreated_topic_is_data_loss_or_read_from_its_first_record(
    left: int, with_id: bool, restarted: bool, message: str, streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    other, topic = streams.topic(), streams.topic()
    streams.fill(topic, {0: 50})
    names = f"{other},{topic}"
    strict = streams.query(topics=names)
    lenient = streams.query(topics=names, fail_on_data_loss="false", max_offsets_per_trigger=60)
    assert strict.batch() == lenient.batch() == records(topic, {0: range(50)})
    if not with_id:
        for query in (strict, lenient):
            checkpoint = json.loads(str(query.at))
            del checkpoint["@ids"]
            query.at = json.dumps(checkpoint)
    if left:
        streams.recreate(topic, left)
    else:
        streams.cluster.delete_topic(topic)
    if restarted:
        strict.restart()
        lenient.restart()
    assert message.format(topic) in wait_for_loss(strict)
    streams.fill(other, {0: 100})
    read: list[Place] = []

    def all_read() -> bool:
        read.extend(lenient.batch())
        return len(read) >= left + 100

    wait_until(all_read, METADATA_S + 120, "the remaining records", interval_s=0.2)
    lenient.restart()
    assert lenient.batch() == []
    assert sorted(read) == sorted(records(topic, {0: range(left)}) + records(other, {0: range(100)}))
    told = [text for text in caplog.messages if "reading the others" in text]
    assert len(told) <= len(lenient.readers)


@pytest.mark.parametrize("first_batch", [True, False])
@pytest.mark.parametrize("by", ["topics", "topics_pattern"])
def test_a_planned_batch_whose_topic_is_deleted_is_data_loss_or_reads_the_others(
    by: str, first_batch: bool, streams: Streams
) -> None:
    kept, deleted = streams.topic(), streams.topic()
    names = {"topics": f"{kept},{deleted}", "topics_pattern": f"({kept}|{deleted})"}[by]
    strict = streams.query(**{by: names})
    lenient = streams.query(**{by: names}, fail_on_data_loss="false")
    if not first_batch:
        for topic in (kept, deleted):
            streams.fill(topic, {0: 3})
        assert len(strict.batch()) == len(lenient.batch()) == 6
    at = 0 if first_batch else 3
    for topic in (kept, deleted):
        streams.fill(topic, {0: 2})
    if not first_batch:
        wait_for_records(strict)
        wait_for_records(lenient)
    planned = strict.plan(), lenient.plan()
    streams.cluster.delete_topic(deleted)
    strict.restart()
    lenient.restart()
    with pytest.raises(DataLoss, match=f"'{deleted}' was deleted"):
        strict.read(*planned[0])
    assert lenient.read(*planned[1]) == records(kept, {0: range(at, at + 2)})
    lenient.at = planned[1][1]
    streams.fill(kept, {0: 1})
    assert lenient.batch() == records(kept, {0: range(at + 2, at + 3)})


def test_a_planned_batch_does_not_read_the_records_of_a_recreated_topic(streams: Streams) -> None:
    topic = streams.topic()
    streams.fill(topic, {0: 10})
    strict, lenient = streams.query(topics=topic), streams.query(topics=topic, fail_on_data_loss="false")
    planned, passed_over = strict.plan(), lenient.plan()
    streams.recreate(topic, 20)
    with pytest.raises(DataLoss, match=f"{topic}:0 was to be read from offset 0 to 9, but the topic was deleted"):
        strict.read(*planned)
    assert lenient.read(*passed_over) == []
    lenient.at = passed_over[1]
    wait_for_records(lenient)
    assert lenient.batch() == records(topic, {0: range(20)})


def test_offsets_of_a_recreated_topic_are_data_loss_or_the_group_starts_at_its_first_record(
    streams: Streams, group: str
) -> None:
    topic = streams.topic()
    streams.fill(topic, {0: 5})
    query = streams.query(topics=topic, group=group, commit="after_batch")
    query.batch()
    (was,) = json.loads(str(query.at))["@ids"].values()
    streams.recreate(topic, 8)
    # brokers forget the commit with the topic; one that was under way comes later
    commit(streams.cluster, group, topic, {0: 5}, f"spark topic {was}")
    heir = streams.query(topics=topic, group=group, starting_offsets="committed")
    with pytest.raises(DataLoss, match=f"group '{group}' committed offsets of {topic}:0 before the topic was deleted"):
        heir.plan()
    heir.restart(fail_on_data_loss="false")
    assert heir.batch() == records(topic, {0: range(8)})


def test_a_transaction_that_is_open_at_the_checkpoint_holds_the_stream_back_and_is_no_loss(
    streams: Streams, group: str
) -> None:
    """A query read uncommitted records before its checkpoint; from then on it reads committed records only."""
    from confluent_kafka import Producer

    topic = streams.topic()
    streams.fill(topic, {0: 10})
    producer = Producer({"bootstrap.servers": streams.cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    before = streams.query(topics=topic, group=group, commit="after_batch")
    assert len(before.batch()) == 11
    assert before.batch() == []  # and commits to the group
    after = streams.query(topics=topic, isolation_level="read_committed", fail_on_data_loss="false")
    after.at = before.at
    of_group = {"group": group, "starting_offsets": "committed", "isolation_level": "read_committed"}
    for query in (after, streams.query(topics=topic, **of_group)):
        assert query.batch() == []
    producer.commit_transaction(30)
    streams.fill(topic, {0: 1})
    # before or after the transaction's marker
    (found,) = wait_until(after.batch, METADATA_S + 120, "the end of the transaction")
    assert found in records(topic, {0: range(11, 13)})


def test_a_log_that_ends_before_the_checkpoint_is_data_loss_or_the_query_goes_on_at_its_end(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that was elected without the last records: the topic is the same, and so are its other records."""
    topic = streams.topic()
    streams.fill(topic, {0: 10})
    query = streams.query(topics=topic, fail_on_data_loss="false")
    query.batch()
    checkpoint = json.loads(str(query.at))
    checkpoint[topic]["0"] = 13
    query.at = json.dumps(checkpoint)
    query.restart(fail_on_data_loss="true")
    with pytest.raises(DataLoss, match=f"{topic}:0 was read up to offset 13 and now ends at 10"):
        query.plan()
    query.restart(fail_on_data_loss="false")
    assert query.batch() == []
    assert f"{topic}:0 was read up to offset 13 and now ends at 10" in caplog.text
    streams.fill(topic, {0: 2})
    assert query.batch() == records(topic, {0: range(10, 12)})


def test_available_now_ends_before_records_that_arrive_while_the_query_starts(streams: Streams) -> None:
    """Spark asks for the ends before it asks for the start."""
    topic = streams.topic()
    streams.fill(topic, {0: 10})
    for loss in ("true", "false"):
        query = streams.query(topics=topic, starting_offsets="latest", fail_on_data_loss=loss)
        query.reader.prepareForTriggerAvailableNow()
        streams.fill(topic, {0: 5})
        assert query.batch() == []
        streams.fill(topic, {0: 5})
        assert query.batch() == []


def test_available_now_ends_where_topics_ended_when_it_began(streams: Streams) -> None:
    topic = streams.topic(partitions=2)
    streams.fill(topic, {0: 10, 1: 3})
    query = streams.query(topics=topic, max_offsets_per_trigger=5)
    query.reader.prepareForTriggerAvailableNow()
    streams.fill(topic, {0: 10, 1: 10})
    found, sizes = [], []
    while batch := query.batch():
        found += batch
        sizes.append(len(batch))
    assert sizes == [5, 5, 3]
    assert sorted(found) == records(topic, {0: range(10), 1: range(3)})


def test_available_now_after_one_topic_was_deleted_reads_the_others_or_is_data_loss(streams: Streams) -> None:
    kept, deleted = streams.topic(), streams.topic()
    streams.fill(kept, {0: 3})
    streams.fill(deleted, {0: 3})
    names = f"{kept},{deleted}"
    strict, lenient = streams.query(topics=names), streams.query(topics=names, fail_on_data_loss="false")
    assert len(strict.batch()) == len(lenient.batch()) == 6
    streams.cluster.delete_topic(deleted)
    streams.fill(kept, {0: 2})
    for query in (strict, lenient):
        query.restart()
        query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=f"'{deleted}' was deleted"):
        strict.batch()
    assert lenient.batch() == records(kept, {0: range(3, 5)})
