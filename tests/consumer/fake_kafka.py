"""A cluster with a coordinator, and members of a group that a test moves by hand, all in memory and in virtual time.

Extends `FakeCluster`, which responds to Fetch, by the content of the logs, retention, topics that are created again,
and committed offsets. `ClientOfMember` takes the place of one consumer's `KafkaClient`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Optional
from unittest import mock

from allocator import Consumer
from allocator.core.client import protocol
from allocator.core.client.client import KafkaClient
from allocator.core.client.errors import RequestFailed, broker_error
from allocator.core.client.fetch_messages import FetchedPartition, FetchRequest
from allocator.core.client.offset_commit import OffsetCommit, OffsetCommitResponse
from allocator.core.consumer import SinkClaim, SinkOffset, group_member
from allocator.core.consumer.membership_config import MemberParts, MembershipConfig
from allocator.core.membership.membership import GroupMembership
from allocator.core.subscription.commit_text import as_read, topic_of
from allocator.core.telemetry.measures import Measures
from allocator.errors import AlreadyStored, BrokerError, Fenced
from allocator.protocols.zookeeper.options import EnsembleOptions
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.fetch_encode import TRANSACTIONAL, R, batch, control

UNKNOWN_PARTITION, LOADING, UNKNOWN_ID = 3, 14, 100
POISON = b"poison"


class Log:
    """What one partition contains, until its topic is deleted."""

    def __init__(self, topic_id: uuid.UUID | None) -> None:
        self.topic_id = topic_id
        self.start = self.end = 0
        self.visible: list[int] = []
        """The offsets of the records that a consumer must get, ascending. Deleted records stay in the list."""
        self.poison: set[int] = set()
        """The visible records that the deserializer refuses."""

    def next_visible(self, offset: int) -> int:
        """Returns the offset of the first record from `offset` on that a consumer can still get, or the end."""
        return next((at for at in self.visible if at >= max(offset, self.start)), self.end)


class GroupCluster(FakeCluster):
    """`ids`: the brokers know topic ids (Kafka 2.8 and newer). `stored` is called with each commit before it counts.

    `faults` are those of the next commits: "refused" (retriable), "lost" (not stored), "unanswered" (stored).
    """

    def __init__(self, ids: bool) -> None:
        super().__init__(13 if ids else 11)
        self.knows_ids = ids
        self.cluster_id = str(uuid.UUID(int=0))
        self.content: dict[TopicPartition, Log] = {}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.latency_s = 0.01
        self.faults: list[str] = []
        self.stored: Callable[[ClientOfMember, TopicPartition, OffsetAndMetadata, Log], None] = lambda *_: None
        self._numbers = 0

    def create(self, partitions: Iterable[TopicPartition], *, kept: bool = False) -> None:
        """Creates the topic of these partitions; deletes the log of an earlier one, and unless `kept` its committed
        offsets."""
        self._numbers += 1
        topic_id = uuid.UUID(int=self._numbers) if self.knows_ids else None
        for tp in partitions:
            if topic_id is not None:
                self.ids[tp.topic] = topic_id
            self.content[tp] = Log(topic_id)
            self.logs[tp], self.start[tp], self.aborted[tp] = [], 0, []
            if not kept:
                self.committed.pop(tp, None)
            self.leaders[tp] = 0
        self.sessions.clear()
        self._tell()

    def names_log(self, tp: TopicPartition) -> bool:
        """Returns whether the committed offset names its topic in this cluster."""
        at = self.committed.get(tp)
        return at is not None and " topic " in at.metadata and at.metadata.endswith(f"@{self.cluster_id}")

    def delete(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            del self.leaders[tp]
        self._tell()

    def _tell(self) -> None:
        self.changed()
        for event in self._news:
            event.set()

    def produce(self, tp: TopicPartition, count: int, kind: str = "plain", poison: int | None = None) -> None:
        """Appends one batch: "plain", "committed" or "aborted" (of a transaction), or "compacted" (with gaps).

        `poison`: the index of a record that the deserializer refuses.
        """
        log, base = self.content[tp], self.end(tp)
        step = 2 if kind == "compacted" else 1
        records = [R(at * step, POISON if at == poison else b"v") for at in range(count)]
        size = count * step
        if kind in ("committed", "aborted"):
            self._numbers += 1
            producer, abort = self._numbers, kind == "aborted"
            self.append_raw(tp, batch(records, base, attributes=TRANSACTIONAL, producer=producer, epoch=0), size)
            if abort:
                self.aborted[tp].append((producer, base))
            self.append_raw(tp, control(base + size, producer, abort=abort, epoch=0), 1)
        else:
            self.append_raw(tp, batch(records, base, epoch=0, last_delta=size - 1), size)
        log.end = self.end(tp)
        if kind != "aborted":
            log.visible += [base + record.offset for record in records]
            log.poison |= {base + record.offset for record in records if record.value == POISON}

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Deletes the records before `offset`, as DeleteRecords and retention do."""
        self.content[tp].start = self.start[tp] = offset
        self.logs[tp] = [entry for entry in self.logs[tp] if entry[1] > offset]
        self._tell()

    def end(self, tp: TopicPartition) -> int:
        end: int = super().end(tp)
        return max(end, self.start.get(tp, 0))  # the last batch may be deleted

    def api_version(self, request: Any) -> Any:
        if request is protocol.DescribeConfigsRequest or (
            request is protocol.OffsetForLeaderEpochRequest and not self.knows_ids
        ):
            return None
        return 7 if request is protocol.OffsetFetchRequest else super().api_version(request)

    async def respond(self, node: int, parts: Any, request: Any, session: Any) -> Any:
        """Refuses a partition whose topic is another one than the client knew when it sent the request."""
        before = {tp: self.content[tp] for tp in parts if tp in self.content}
        response = await super().respond(node, parts, request, session)
        for n, part in enumerate(response.parts):
            for tp, log in before.items():
                topic = self.ids[tp.topic].bytes if response.API_VERSION >= 13 else tp.topic
                if (part.topic, part.partition) == (topic, tp.partition) and self.content[tp] is not log:
                    code = UNKNOWN_ID if self.knows_ids else UNKNOWN_PARTITION
                    response.parts[n] = FetchedPartition(*part[:2], code, *part[3:-1], b"")
        return response


class ClientOfMember:
    """Takes the place of the `KafkaClient` of one consumer. After `cut`, none of its commits arrives."""

    bootstrap, security, request_timeout_s, retry_backoff_s = "fake:9092", None, 5.0, 0.05

    def __init__(self, cluster: GroupCluster) -> None:
        self.cluster = cluster
        self.measures = Measures()
        self.cuts = 0
        self.partitions, self.leader, self.topic_id = cluster.partitions, cluster.leader, cluster.topic_id
        self.leader_epoch, self.api_version = cluster.leader_epoch, cluster.api_version
        self.on_metadata, self.refresh, self.send_now = cluster.on_metadata, cluster.refresh, cluster.send_now
        self.broker_version = (3, 9) if cluster.knows_ids else (1, 1)
        self._commits: set[asyncio.Future[Any]] = set()

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(cluster_id=self.cluster.cluster_id, topics=self.topics(), errors={})

    def topics(self, internal: bool = False) -> frozenset[str]:
        return frozenset(tp.topic for tp in self.cluster.leaders)

    async def connect(self, timeout_s: float | None = None) -> None: ...

    async def close(self) -> None: ...

    async def prepare(self, node: int, request_class: Any) -> None: ...

    def follow(self, topics: Iterable[str]) -> None: ...

    def note_broker(self, *broker: Any) -> None: ...

    def hides(self, topic: str) -> bool:
        return False

    reading, unusable, refuse_hidden = KafkaClient.reading, KafkaClient.unusable, KafkaClient.refuse_hidden

    def cut(self) -> None:
        self.cuts += 1

    async def settled(self, request_class: Any) -> None:
        if self._commits:
            await asyncio.wait(set(self._commits))

    async def send_any(self, request: Any, timeout_s: float | None = None) -> Any:
        return await self.send(0, request, timeout_s)

    async def send(self, node: Any, request: Any, timeout_s: float | None = None) -> Any:
        if isinstance(request, FetchRequest):
            return await self.cluster.send(node, request, timeout_s)
        if isinstance(request, OffsetCommit):
            try:
                assert request.check is not None
                request.check()
            except RequestFailed as error:
                raise broker_error(error, "broker 0") from error
            # a task: the request arrives also if the caller is cancelled
            arrival = asyncio.ensure_future(self._commit(request, dict(self.cluster.content), self.cuts))
            self._commits.add(arrival)
            arrival.add_done_callback(self._arrived)
            return await asyncio.shield(arrival)
        await asyncio.sleep(0.002)
        if isinstance(request, protocol.FindCoordinatorRequest):
            return SimpleNamespace(error_code=0, node_id=0, host="fake", port=9092)
        if isinstance(request, protocol.OffsetFetchRequest):
            return self.fetched(request)
        return await self.cluster.send(node, request, timeout_s)

    def _arrived(self, arrival: asyncio.Future[Any]) -> None:
        self._commits.discard(arrival)
        if not arrival.cancelled():
            arrival.exception()  # the caller may be gone

    async def _commit(self, request: OffsetCommit, logs: Mapping[TopicPartition, Log], cuts: int) -> Any:
        cluster = self.cluster
        fault = cluster.faults.pop(0) if cluster.faults else ""
        await asyncio.sleep(cluster.latency_s / 2)
        if fault == "refused":
            return OffsetCommitResponse(8, 0, dict.fromkeys(request.offsets, LOADING))
        results = {}
        if fault != "lost" and cuts == self.cuts:
            for tp, offset in request.offsets.items():
                if tp in cluster.leaders:
                    offset = OffsetAndMetadata(offset.offset, request.text(offset.metadata), offset.leader_epoch)
                    log, named = logs[tp], topic_of(as_read(offset.metadata, cluster.cluster_id))
                    former = None not in (named, log.topic_id) and named != log.topic_id
                    cluster.stored(self, tp, offset, Log(named) if former else log)
                    cluster.committed[tp] = offset
                results[tp] = 0 if tp in cluster.leaders else UNKNOWN_PARTITION
        await asyncio.sleep(cluster.latency_s / 2)
        if fault or cuts != self.cuts:
            raise BrokerError("no response", retriable=True)
        return OffsetCommitResponse(8, 0, results)

    def fetched(self, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for number in topic.partition_indexes:
                at = self.cluster.committed.get(TopicPartition(topic.name, number), OffsetAndMetadata(-1, "", -1))
                fields = {"error_code": 0, "committed_offset": at.offset, "committed_leader_epoch": at.leader_epoch}
                parts.append(SimpleNamespace(partition_index=number, metadata=at.metadata, **fields))
            topics.append(SimpleNamespace(name=topic.name, partitions=parts))
        return SimpleNamespace(API_VERSION=7, error_code=0, topics=topics)


class HandMembership(GroupMembership):
    """A member whose partitions a test moves."""

    generation = 1

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts.listener)
        self.parts = parts
        self.member_id = ""
        self._sessions = 0
        self._active = self._suspended = False
        self._releases: set[asyncio.Task[None]] = set()

    def may_act(self) -> bool:
        return self._active and not self._suspended

    async def confirm(self) -> bool:
        return self.may_act()

    def polled(self) -> None: ...

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None: ...

    async def connect(self) -> None: ...

    async def join(self) -> None:
        self._active = True
        self._sessions += 1
        self.member_id = f"{id(self)}-{self._sessions}"

    async def leave(self) -> None:
        self.give_up(self.held)
        while self._releases:
            await asyncio.wait(set(self._releases))
        self._active = False

    async def take(self, partition: TopicPartition, fence: int, claims: Callable[[], None]) -> bool:
        """Makes this member the owner of a partition that has none. Calls `claims` just before that.

        Returns False if the member has left meanwhile.
        """
        self.parts.listener.expect(frozenset({partition}), free=True)
        session = self._sessions
        await asyncio.sleep(0.003)
        if session != self._sessions or not self._active:
            return False
        claims()
        self.tenures.claim({partition: fence})
        await self._listener.assigned(frozenset({partition}))
        return True

    def give_up(self, partitions: Collection[TopicPartition]) -> asyncio.Task[None]:
        """Drains and releases these partitions. Cancelled if the session is lost meanwhile."""
        task = asyncio.ensure_future(self._give_up(self.tenures.drain(self.held.intersection(partitions))))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return task

    def suspend(self) -> None:
        self._suspended = True
        self._listener.suspended("by the test")

    def resume(self) -> None:
        self._suspended = False
        self._listener.resumed()

    async def lose(self) -> None:
        """The session is lost; the member joins again at once."""
        for task in self._releases:
            task.cancel()
        lost = self.tenures.lose()
        if lost:
            await self._listener.lost(lost)
        await self.join()
        self.resume()


@dataclass(frozen=True)
class ByHand(EnsembleOptions):
    """Like `ZooKeeper`, with an ensemble that is not there. Passes each membership that it makes to `made`."""

    name = "zookeeper"
    zookeeper: Optional[str] = "fake:2181"
    made: Optional[Callable[[HandMembership], None]] = None

    def __post_init__(self) -> None: ...

    def make(self, config: MembershipConfig, parts: MemberParts) -> HandMembership:
        made = HandMembership(parts)
        assert self.made is not None
        self.made(made)
        return made


def consumer_by_hand(cluster: GroupCluster, **arguments: Any) -> tuple[Consumer, list[HandMembership]]:
    """Returns a consumer of this cluster, and a list that has its membership once it has started."""
    made: list[HandMembership] = []
    chosen = {"auto_commit_interval_s": 0.05, "max_wait_s": 0.1, **arguments}
    with mock.patch.object(group_member, "KafkaClient", return_value=ClientOfMember(cluster)):
        consumer = Consumer("t", brokers="fake:9092", group="g", membership=ByHand(made=made.append), **chosen)
    return consumer, made


class MemorySink:
    """A database of the user with one row for each partition."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self._owners: dict[TopicPartition, SinkClaim] = {}

    async def begin(
        self, group: str, owner: str, claims: Mapping[TopicPartition, SinkClaim], confirm: Callable[[], Awaitable[bool]]
    ) -> dict[TopicPartition, SinkOffset]:
        await asyncio.sleep(0.002)
        for partition, claim in claims.items():
            before = self._owners.get(partition)
            if (
                before is not None
                and None not in (before.topic_id, claim.topic_id)
                and before.topic_id != claim.topic_id
            ):
                self.offsets.pop(partition, None)
            self._owners[partition] = claim
        return {p: SinkOffset(self.offsets[p]) for p in claims if p in self.offsets}

    def reached(self, partition: TopicPartition) -> int:
        return self.offsets.get(partition, -1)

    async def rewind(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> None:
        await asyncio.sleep(0.002)
        self.offsets[partition] = offset
        if topic_id is not None and partition in self._owners:
            former = self._owners[partition]
            self._owners[partition] = SinkClaim(former.fence, topic_id, former.left_out)

    def take_rewind(self, partition: TopicPartition) -> int | None:
        return None

    async def give_up(self, unit: Any) -> Any:
        return unit

    def take_back(self, partition: TopicPartition) -> None:
        pass

    async def pass_by(self, unit: Any) -> None:
        self.write(unit)

    def write(self, record: Record) -> None:
        """Stores the record. Raises Fenced if a later owner has registered, AlreadyStored for a repeated record."""
        partition = TopicPartition(record.topic, record.partition)
        if self._owners[partition].fence != record.fence:
            raise Fenced(f"{partition} has another owner")
        if record.offset < self.offsets.get(partition, 0):
            raise AlreadyStored(partition, record.offset, self.offsets[partition])
        self.offsets[partition] = record.offset + 1
