"""A member of a group that reads the partitions it owns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from allocator.core.aio.tasks import ClosesOnce, ends, start_task, warn_unclosed
from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import Found, list_offsets
from allocator.core.consumer.group_member import GroupMember
from allocator.core.consumer.membership_config import MembershipConfig, MembershipOptions
from allocator.core.consumer.reading import Reading
from allocator.core.consumer.sink import MemberSink, OffsetSink
from allocator.core.errors import Closed, CommitFailed, ConfigError, IllegalState, NotOwned
from allocator.core.fetch.batch import Batch, deserialized
from allocator.core.settings.arguments import (
    as_load,
    as_offset,
    as_offsets,
    as_partition,
    as_partitions,
    as_times,
    as_topics,
)
from allocator.core.settings.table import DEFAULT
from allocator.core.subscription.loss import RecordsLost, as_written, listed
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.telemetry.measures import Measures, reference_metrics
from allocator.core.text.quoting import partition_names, shown
from allocator.core.types import (
    EARLIEST,
    LATEST,
    NO_PARTITIONS,
    Assignors,
    Deserializer,
    IsolationLevel,
    Listener,
    MembershipName,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetReset,
    OffsetStorage,
    OnCommit,
    PartitionKey,
    PartitionLike,
    Record,
    TopicPartition,
)

if TYPE_CHECKING:
    import uuid

NOT_STARTED = "the consumer is not started; use `async with`, or call start() first"

This = TypeVar("This", bound="ConsumerBase")


class ConsumerBase:
    """`Consumer` without the calls of a handler. The docstring of `Consumer` describes the arguments."""

    _fetching: ClassVar[Mapping[str, Any]] = {}
    """Further settings of the `Fetcher`, for subclasses."""

    def __init__(
        self,
        *topics: str,
        brokers: str | Sequence[str],
        group: str | None,
        zookeeper: str | None = DEFAULT["zookeeper"],
        membership: MembershipName | MembershipOptions = DEFAULT["membership"],
        pattern: str | None = DEFAULT["pattern"],
        assignor: Assignors | None = DEFAULT["assignor"],
        client_id: str | None = DEFAULT["client_id"],
        security: Mapping[str, Any] | None = DEFAULT["security"],
        auto_offset_reset: OffsetReset | int = DEFAULT["auto_offset_reset"],
        auto_commit_interval_s: float | None = DEFAULT["auto_commit_interval_s"],
        key_deserializer: Deserializer = None,
        value_deserializer: Deserializer = None,
        max_wait_s: float = DEFAULT["max_wait_s"],
        min_bytes: int = DEFAULT["min_bytes"],
        latency_budget_s: float = DEFAULT["latency_budget_s"],
        prefetch_bytes: int = DEFAULT["prefetch_bytes"],
        isolation_level: IsolationLevel = DEFAULT["isolation_level"],
        weight: float = DEFAULT["weight"],
        rack: str | None = DEFAULT["rack"],
        listener: Listener | None = None,
        connect_timeout_s: float = DEFAULT["connect_timeout_s"],
        max_poll_interval_s: float | None = DEFAULT["max_poll_interval_s"],
        offsets: OffsetStorage | None = DEFAULT["offsets"],
        sink: OffsetSink | None = None,
        transactions: Any = None,
    ) -> None:
        self.group = group
        joining = MembershipConfig.of(
            membership,
            zookeeper=zookeeper,
            group=group,
            client_id=client_id,
            topics=as_topics(topics),
            pattern=pattern,
            assignor=assignor,
            weight=weight,
            rack=rack,
            connect_timeout_s=connect_timeout_s,
            max_poll_interval_s=max_poll_interval_s,
            offsets=offsets,
        )
        self.client_id = joining.client_id
        self._member = GroupMember(
            joining,
            brokers=brokers,
            listener=listener,
            auto_commit_interval_s=auto_commit_interval_s,
            auto_offset_reset=auto_offset_reset,
            security=security,
            max_wait_s=max_wait_s,
            min_bytes=min_bytes,
            latency_budget_s=latency_budget_s,
            prefetch_bytes=prefetch_bytes,
            isolation_level=isolation_level,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            sink=None if sink is None else partial(self._member_sink, sink),
            **self._fetching,
        )
        self._isolation_level = isolation_level
        self._reading = Reading(self._member, (key_deserializer, value_deserializer))
        raw = key_deserializer is None and value_deserializer is None
        self._deserialize = None if raw else partial(deserialized, key=key_deserializer, value=value_deserializer)
        self._started = False
        self._starting: asyncio.Future[None] | None = None
        self._closed = False
        self._closing = ClosesOnce()
        self._transactions = transactions
        if transactions is not None:
            if not hasattr(transactions, "_commits_of"):
                raise ConfigError(f"transactions is {shown(transactions)}; pass a Producer")
            self._member.commits.transact = transactions._commits_of(self).commit_offset

    def _member_sink(self, sink: OffsetSink, member: GroupMember) -> MemberSink:
        """Returns the member's access to its sink; for subclasses."""
        raise NotImplementedError

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and joins the group. If a topic does not exist, logs a warning and waits for it.

        Raises BrokersUnavailable or ZooKeeperUnavailable after `connect_timeout_s`, InstanceIdInUse if another member
        of a Kafka group still has the `instance_id` then, and Closed if `close` is called meanwhile. Raises
        TopicAuthorizationFailed if this user may not describe a topic that is named, and joins nothing.
        """
        if self._started:
            raise RuntimeError("start() was called already; create another Consumer")
        if self._closed:
            raise Closed("this consumer is closed; create another one")
        self._started = True
        self._starting = start_task(self._member.start())
        try:
            await ends(self._starting)
            if self._closed:
                cause = None if self._starting.cancelled() else self._starting.exception()
                raise Closed("the consumer was closed while it started") from cause
            self._starting.result()
        except BaseException:
            self._closed = True
            self._reading.close()
            raise

    async def close(self, *, commit: bool = True, restart: bool = True) -> None:
        """Commits done records, releases all partitions, and leaves the group.

        May be called repeatedly; each call returns once the consumer is closed. If a listener or a handler calls it, it
        returns at once, and the consumer closes when they have returned.

        If a task is reading, `close` waits until that task requests more records. The request raises Closed. If the
        reader itself calls `close`, or a task that it has started, the records delivered last do not count as done, and
        the next owner reads them again.

        When `asyncio.run` ends, because main returns or by Ctrl-C, it cancels all tasks. A cancelled task still closes
        the consumer of its `async with` block, or calls `close` in `finally`. A consumer that no task closes commits
        nothing more.

        A call that is cancelled, as by `asyncio.wait_for`, waits no longer: other members may read the partitions at
        once, and `may_act()` is False.

        With `commit` False, the next owner also reads records again that are done and not committed.

        With `restart` False, the partitions move to other members at once. Otherwise a group reserves those of a member
        with an `instance_id` for its next process: for `restart_grace_s`, or in a Kafka group for the session timeout.
        """
        if not self._started or (self._closed and not self._closing.begun):  # not started, or the start failed
            self._closed = True
            return
        self._member.must_be_here()
        self._closed = True
        self._reading.close()  # even in a later call: another task may have called `close` before the reader does
        called = self._member.hold_of_call is not None
        await self._closing.run(partial(self._close, commit=commit, restart=restart), called=called)

    async def _close(self, **how: bool) -> None:
        try:
            await self._member.close(**how)
        finally:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.wait({self._starting})

    async def stop(self) -> None:
        """Calls `close`, under aiokafka's name."""
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._closed:  # `__init__` may have raised
            warn_unclosed(self, f"of group {self.group or ''!r}")

    async def __aenter__(self: This) -> This:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def __aiter__(self: This) -> This:
        return self

    async def __anext__(self) -> Batch:
        try:
            batch = await self.getbatch()
        except Closed as error:
            if error is self._member.ended:
                raise
            raise StopAsyncIteration from None
        assert batch is not None
        return batch

    async def getbatch(self, timeout_s: float | None = None) -> Batch | None:
        """Returns the next batch of one partition, or None after `timeout_s` seconds (None: no limit, 0: no wait).

        The call marks the previous batch as done.
        """
        return await self._readable().batch(timeout_s)

    async def getone(self, timeout_s: float | None = None) -> Record | None:
        """Returns the next record, or None after `timeout_s` seconds. The call marks the previous record as done."""
        return await self._readable().one(timeout_s)

    async def getmany(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Returns records by partition: waits up to `timeout_s` seconds for the first, then adds records that have
        arrived. The call marks the previous records as done."""
        return await self._readable().many(timeout_s, max_records)

    def _readable(self) -> Reading:
        if self._member.load.source == "handler_s" and self._member.processor is None:
            raise ConfigError(
                'follow_load = "handler_s" measures handlers, which only `process` calls; use `process`, or set '
                'follow_load to "records", "bytes" or "reported"'
            )
        return self._begun()

    def _begun(self) -> Reading:
        if not self._started:
            raise Closed(NOT_STARTED)
        if not self._member.choice.ever_made:
            raise IllegalState("nothing is subscribed or assigned; name topics, or call subscribe() or assign() first")
        return self._reading

    def report_load(self, partition: PartitionLike, load: float) -> None:
        """Reports the current load of a partition, for `follow_load="reported"`.

        `load` is in any unit that all members share, for example bytes or seconds of work per second. It holds until
        the next call; the group uses its mean over ten minutes. It has no effect for a partition that this member does
        not own. Raises ValueError for a number that is not finite or below 0.
        """
        partition = as_partition(partition)
        self._member.load.reported[partition] = as_load(load)

    # -- offsets -------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[PartitionKey, Offset] | None = None) -> None:
        """Commits these offsets, each the next one to read. Without offsets, marks all delivered records as done and
        commits them.

        Raises NotOwned for a partition that this member does not own, or has lost since it delivered the records in
        hand. Raises ConfigError for an offset below 0, CommitFailed if the lease has expired or the coordinator rejects
        the commit. Metadata larger than the brokers' offset.metadata.max.bytes (4096 by default) is dropped, which the
        log says; the offset is committed.
        """
        if offsets is None:
            self._finish()
            await self._member.commits.commit_done(or_raise=True)
            return
        await self._member.commits.commit(self._to_commit(offsets))

    def commit_async(
        self, offsets: Mapping[PartitionKey, Offset] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Like `commit`, but returns at once. Commits keep the order of the calls, and `close` waits for them.

        When the commit has ended, it calls `callback(offsets, error)`; `error` is None on success. Without a callback,
        it logs an error. Raises NotOwned, CommitFailed if the lease has expired, and IllegalState for a consumer whose
        commits are transactions.
        """
        if self._member.commits.transact is not None:
            raise IllegalState(
                f"group {self.group!r} commits in transactions, which keep no order of calls; use commit()"
            )
        if offsets is None:
            self._finish()
        self._member.commits.commit_async(None if offsets is None else self._to_commit(offsets), callback)

    def _finish(self) -> None:
        """Marks the delivered records as done. Raises NotOwned if some of them were lost."""
        self._must_be_started()
        self._must_not_be_lost(self._member.outlived)
        self._member.state.reader.finish()

    def _to_commit(self, offsets: Mapping[PartitionKey, Offset]) -> dict[TopicPartition, OffsetAndMetadata]:
        wanted = as_offsets(offsets)
        self._must_not_be_lost(wanted)
        former = sorted(self._member.state.reader.of_former_logs.intersection(wanted))
        if former:
            raise CommitFailed(
                f"{self.group}: {former[0].topic!r} was created again since this member read the records in hand, and "
                "their offsets belong to the former topic; request the next records"
            )
        return wanted

    def _must_not_be_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises NotOwned if one of these was lost since its records were delivered, also if it has come back."""
        lost = self._member.outlived.intersection(partitions)
        if lost:
            names = partition_names(lost)
            raise NotOwned(f"{self.group}: this member lost {names} since it read their records; request the next ones")

    async def committed(self, partition: PartitionLike) -> OffsetAndMetadata | None:
        """Returns the committed offset of the group from the coordinator, or None. The member need not own the
        partition.

        The metadata is the user's, "" if there is none. The leader epoch is -1 if it is unknown.
        """
        partition = as_partition(partition)
        found = (await self._member.commits.fetch([partition])).get(partition)
        return None if found is None else as_written(found)

    async def position(self, partition: PartitionLike) -> int:
        """Returns the next offset to deliver. Waits until it is known.

        Raises NotOwned, and the error that prevents the consumer from finding the offset. In a group, `start` may
        return before the member owns a partition; a listener's `on_partitions_assigned` is called when it does.
        """
        while True:
            tenure = self._tenure(partition)
            if tenure.position is not None:
                return int(tenure.position.offset)
            error = self._member.fetcher.fault(tenure.partition)
            if error is not None:
                raise error.with_traceback(None)
            await self._member.fetcher.news(0.1)

    def seek(self, partition: PartitionLike, offset: Offset) -> None:
        """Sets the position of a partition. Raises NotOwned.

        An `offset` from `committed` has a leader epoch and the id of its topic. The consumer validates such a position
        against the log before it delivers records.
        """
        self._member.seek(self._tenure(partition).partition, as_offset(offset))

    async def seek_to_beginning(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> None:
        """Seeks to the oldest record of these partitions, or of all owned ones.

        Raises NotOwned, also if this member owns no partition, and BrokerError if a leader does not respond within 30
        s.
        """
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> None:
        """Seeks to the end of these partitions, or of all owned ones.

        Raises NotOwned, also if this member owns no partition, and BrokerError if a leader does not respond within 30
        s.
        """
        await self._seek_to(partitions, LATEST)

    async def seek_to_committed(
        self, *partitions: PartitionLike | Iterable[PartitionLike]
    ) -> dict[TopicPartition, int | None]:
        """Seeks to the committed offsets of these partitions, or of all owned ones, and returns them.

        A partition without a committed offset keeps its position; its value is None. Raises NotOwned, also if this
        member owns no partition, IllegalState without a group, and NoOffsetsError.
        """
        chosen = self._owned(partitions)
        found = await self._member.commits.fetch(chosen)
        for partition, offset in found.items():
            self.seek(partition, as_written(offset))
        return {partition: found[partition].offset if partition in found else None for partition in chosen}

    async def _seek_to(self, partitions: Iterable[PartitionLike | Iterable[PartitionLike]], where: int) -> None:
        found = await self._list_offsets(dict.fromkeys(self._owned(partitions), where))
        for partition, there in found.items():
            if there is not None:
                self.seek(partition, listed(there))

    def _tenure(self, partition: PartitionLike) -> TopicPartitionState:
        """Returns the tenure of a partition. Raises NotOwned."""
        partition = as_partition(partition)
        self._member.must_own([partition])
        return self._member.state.assignment[partition]

    def _owned(self, partitions: Iterable[PartitionLike | Iterable[PartitionLike]]) -> tuple[TopicPartition, ...]:
        """Returns these partitions, or all owned ones. Raises NotOwned."""
        chosen = as_partitions(partitions) or tuple(sorted(self.assignment()))
        if not chosen:
            raise NotOwned(
                f"{self.group}: no partition is assigned to this member; to seek partitions that the "
                "group assigns, use a listener's on_partitions_assigned"
            )
        self._member.must_own(chosen)
        return chosen

    def pause(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> None:
        """Stops the delivery of these partitions until `resume`. The member still owns them. Raises NotOwned.

        During `process`, records that wait for the handler are held too. Calls that run go on.
        """
        self._of_each(self._member.state.pause, partitions)

    def resume(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> None:
        """Ends the pause of these partitions. Raises NotOwned."""
        self._of_each(self._member.state.resume, partitions)

    def _of_each(self, change: Callable[[TopicPartition], None], partitions: Iterable[Any]) -> None:
        chosen = as_partitions(partitions)
        self._member.must_own(chosen)
        for partition in chosen:
            change(partition)
        self._member.fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that the user has paused, and those of retry topics after the end of `process`."""
        return frozenset(self._member.state.paused_partitions())

    def may_act(self, record: Record | Batch | None = None) -> bool:
        """Returns whether records may be handled and offsets committed at this instant.

        Check it before you handle a record that was delivered earlier, because the lease may have expired since. If
        this member has lost the partition of a delivered record, it stays False until the next request for records,
        also if the member has joined again and owns the partition again. In a handler of `process`, it answers for the
        record of the call.

        If a record or batch is given, it answers for this one: whether the ownership under which it was delivered still
        lasts. Without a group (`membership="fixed"`), whether this member owns its partition.

        False is final for this delivery: the record is not done by it, and each later answer about it is False, whoever
        asks. If the partition stays with this member, the record comes again once the lease is renewed, and so do the
        records after it that the reader, or the call of a batch handler, has in hand. For these it is False too.

        If the reader, or a task that it has started, asks without `record` and gets False, all records in hand come
        again that the sink has not stored. So give the record: otherwise the reader makes no progress while the lease
        comes and goes. A handler's thread must give it if it lacks the context of the call, as with `run_in_executor`,
        and so must a task that may outlive its call. Once its call has returned, the record is done.
        """
        hold, member = self._member.hold_of_call, self._member
        if record is None:
            may_act = member.may_act()
            if hold is not None:
                return hold.answer(None, may_act)
            may_act = may_act and not member.state.reader.refused
            if not may_act and self._reading.may_be_asked():
                member.state.reader.refuse_all()
            return may_act
        try:
            holds = [hold] if hold is not None and hold.is_of(record) else member.state.holds_of(record)
            if holds:  # of another call, or a thread lacks the context of this one
                may_act = member.membership.may_act()
                return False not in [each.answer(record, may_act and not each.has_outlived) for each in holds]
            tenure = member.state.assignment.get(TopicPartition(record.topic, record.partition))
            return tenure is not None and tenure.fence == record.fence and member.membership.may_act()
        except AttributeError:
            if isinstance(record, (Record, Batch)):
                raise
            raise TypeError(
                f"may_act takes a record or a batch as this consumer delivered it, or nothing, not {shown(record)}"
            ) from None

    async def until_may_act(self) -> None:
        """Returns once `may_act` is true for the record or batch of the handler's call, or for all records in hand.

        It lifts no refusal. If `may_act` was False for one of these records, it raises NotOwned, and all of them come
        again. So ask or wait, and never wait after a False. Also raises NotOwned if the partition was lost: only a
        request for records, or the end of the handler's call, ends that. A handler that ends with this error has not
        failed: it is called again.
        """
        await self._member.commits.until_may_act()
        self._must_not_be_lost(self._member.outlived)
        hold, reader = self._member.hold_of_call, self._member.state.reader
        refused = reader.refused
        if hold is not None:
            refused = NO_PARTITIONS if hold.answer(None, True) else frozenset({hold.tenure.partition})
        elif refused and self._reading.may_be_asked():
            reader.refuse_all()
        if refused:
            raise NotOwned(
                f"{self.group}: may_act() was False for a record in hand of {partition_names(refused)}; request "
                "records, or end the handler's call: the record comes again"
            )

    # -- subscription --------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: str | Iterable[str] = (), *more: str, pattern: str | None = None, listener: Listener | None = None
    ) -> None:
        """Replaces the subscription by these topics, or by a pattern. May be called before `start`.

        A rebalance releases the partitions of topics that are no longer subscribed. `listener` replaces the earlier
        listener, which stays if none is given. Raises ConfigError, or IllegalState after `assign`; an error changes
        nothing.
        """
        wanted = as_topics((topics, *more) if more else (topics,))
        if not wanted and pattern is None:
            raise ConfigError("subscribe needs topics or a pattern; unsubscribe() ends a subscription")
        self._member.choice.subscribe(wanted, pattern, listener)

    def unsubscribe(self) -> None:
        """Ends the subscription: drains and releases all partitions, and commits done records as in a rebalance.

        The consumer stays in its group without partitions, and can `subscribe` again.
        """
        self._member.choice.subscribe((), None)

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Assigns these partitions and no others; only with membership "fixed".

        They are assigned when the call returns, so `seek` may follow. If it is called before `start`, they are assigned
        when `start` returns. Partitions that are no longer assigned can be committed until their delivered records are
        done. Without partitions it works like `unsubscribe`.

        Raises IllegalState if topics are subscribed or a group assigns, ConfigError for a partition that its topic does
        not have. An error changes nothing.
        """
        self._member.choice.assign(as_partitions(partitions))

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics; with a pattern, the known topics that match. Empty after `assign`."""
        return self._member.choice.subscribed()

    # -- metadata and offsets of the cluster ---------------------------------------------------------------------

    async def topics(self) -> set[str]:
        """Returns the topics that this user may see, without Kafka's internal ones. Raises BrokerError."""
        self._must_be_started()
        return set(await self._member.client.list_topics())

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Requests the partition numbers of a topic from the brokers. Returns None if it does not exist, or if this
        user may not describe it.

        The topic need not be subscribed, and is not created. Raises BrokersUnavailable.
        """
        self._must_be_started()
        (topic,) = as_topics((topic,))
        await self._member.client.refresh([topic])
        found = self._member.client.partitions(topic)
        return None if found is None else set(found)

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """Returns the offset of the oldest record of each partition. The member need not own them. Positions do not
        change.

        Raises TopicNotFound, and BrokerError if a leader does not respond within 30 s.
        """
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """Returns the offset after the last record of each partition. With the isolation level "read_committed" it
        returns the last stable offset: the first offset of a transaction that is still open, or the end.

        The member need not own the partitions. Positions do not change. Raises the same errors as `beginning_offsets`.
        """
        return await self._ends(partitions, LATEST)

    async def offsets_for_times(
        self, timestamps: Mapping[PartitionKey, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns for each partition the first record at or after a time, in milliseconds since the epoch; None if
        there is none.

        The member need not own the partitions. Positions do not change. Brokers before 0.10.1 know only the times of
        log segments: the offset is then the start of a segment at or before that record, with timestamp -1.

        Raises ConfigError (a ValueError) for a time below 0 or of more than 63 bits, and the same errors as
        `beginning_offsets`.
        """
        return await self._list_offsets(as_times(timestamps))

    async def _ends(self, partitions: Iterable[PartitionLike], where: int) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(as_partitions(partitions), where))
        return {partition: there.offset for partition, there in found.items() if there is not None}

    async def _list_offsets(self, at: Mapping[TopicPartition, int]) -> Found:
        self._must_be_started()
        return await list_offsets(self._member.client, at, isolation_level=self._isolation_level)

    def _must_be_started(self) -> None:
        if not self._started:
            raise Closed(NOT_STARTED)
        self._member.must_be_here()

    # -- state ---------------------------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this member owns, without those that drain."""
        return self._member.state.held

    def fence(self, partition: PartitionLike) -> int:
        """Returns the fencing token of this ownership: a number that grows with each new owner of the partition.

        A store that remembers the highest token, and rejects writes with a lower one, is safe from a process that was
        paused and continues after it has lost the partition. `batch.fence` and `record.fence` are the tokens of the
        ownership under which they were delivered. docs/howto/effects-once.md has the promise of each membership. Raises
        NotOwned.
        """
        found = self._tenure(partition).fence
        assert found is not None  # every membership claims with a fencing token
        return found

    async def next_owners(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> dict[TopicPartition, str]:
        """Returns the ids of the members that get these partitions next. For a listener's `on_partitions_revoked`.

        The member releases the partitions when that method returns, so the method may pass state on:
        docs/howto/handover.md. A partition is left out if its next owner is unknown: the assignment names none, or the
        membership does not report it (only "zookeeper" does). Raises AllocatorError if ZooKeeper does not respond.
        """
        return dict(await self._member.membership.next_owners(frozenset(as_partitions(partitions))))

    async def former_owners(self, *partitions: PartitionLike | Iterable[PartitionLike]) -> dict[TopicPartition, str]:
        """Returns the ids of the members that committed these partitions last. For a listener's
        `on_partitions_assigned`.

        It works with every membership, because the id is in the metadata of the commit. It is this member's own id if
        no other member has committed since. A partition is left out if it has no committed offset, if another client
        committed it, if its user added metadata, or if offsets are in ZooKeeper. Raises IllegalState without a group,
        and AllocatorError if the coordinator does not respond.
        """
        found = await self._member.commits.offsets.fetch(set(as_partitions(partitions)))
        members = {partition: as_written(offset).member for partition, offset in found.items()}
        return {partition: member for partition, member in members.items() if member is not None}

    def high_watermark(self, partition: PartitionLike) -> int | None:
        """Returns the offset after the partition's last record as of the last fetch; None before the first fetch."""
        return self._tenure(partition).high_watermark

    def lag(self) -> dict[TopicPartition, int]:
        """Returns the number of offsets between position and end of each owned partition whose end is known from a
        fetch. The end is that of `end_offsets`: with the isolation level "read_committed", records of an open
        transaction and the records after them do not count."""
        tenures = self._member.state.assignment.items()
        return {partition: lag for partition, tenure in tenures if (lag := tenure.lag) is not None}

    def unreachable(self) -> frozenset[TopicPartition]:
        """Returns the owned partitions that are not paused and that the consumer cannot read.

        Their position or leader is unknown, or the leader does not respond. A new partition is unreachable for a
        moment.
        """
        unknown = {p for p, tenure in self._member.state.assignment.items() if tenure.high_watermark is None}
        return frozenset(unknown | self._member.fetcher.unreachable()) - self.paused()

    @property
    def measures(self) -> Measures:
        """Counts and durations of joins, heartbeats, commits and more."""
        return self._member.client.measures

    def metrics(self) -> dict[str, float]:
        """Returns metrics under the names of Kafka's own clients. `allocator.web.metrics` serves Prometheus."""
        return reference_metrics(self.measures, self.lag(), len(self.assignment()))

    def topic_id(self, partition: PartitionLike) -> uuid.UUID | None:
        """Returns the id of the topic that the position belongs to; None if it is unknown, or before Kafka 2.8."""
        found: uuid.UUID | None = self._tenure(partition).topic_id
        return found

    @property
    def losses(self) -> tuple[RecordsLost, ...]:
        """The latest 100 losses: which offsets were skipped, and where the consumer continued."""
        return tuple(self._member.losses)

    @property
    def generation(self) -> int:
        """Number of the assignment that this member follows."""
        return self._member.membership.generation

    @property
    def member_id(self) -> str:
        """The name of this member's znode; a new one for each ZooKeeper session."""
        return self._member.membership.member_id


def join_again_if(consumer: ConsumerBase, admitted: Callable[[Any], Awaitable[bool]]) -> None:
    """Calls `join_again_if` of the consumer's membership."""
    consumer._member.membership.join_again_if(admitted)


async def until_lease(consumer: ConsumerBase) -> None:
    """Returns once the consumer may commit. A record on which its user was told not to act stays undone."""
    await consumer._member.commits.until_may_act()


def client_of(consumer: ConsumerBase) -> KafkaClient:
    """Returns the consumer's client of the brokers."""
    return consumer._member.client
