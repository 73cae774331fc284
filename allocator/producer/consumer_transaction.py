"""Writes results together with the offsets of the records that they come from, in one transaction.

Each partition of the consumer has its own transactional id, so the next owner of the partition fences the former one by
InitProducerId, whatever was frozen or delayed where: that request aborts an open transaction of the former owner, and
its later requests are refused. After it, the owner compares the committed offset with the one that it knows. So a
transaction is a compare-and-set of the committed offset, and no second result of a record can be committed.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, Optional

from allocator.core.client import KafkaClient
from allocator.core.consumer import Chosen, ConsumerBase
from allocator.core.subscription import Phase, TopicPartitionState
from allocator.core.text import partition_names
from allocator.errors import AllocatorError, BrokerError, ConfigError, Fenced, IllegalState
from allocator.producer.intake import TakenRecord
from allocator.producer.transaction import OVER, GroupOffset, NewRecord, TooLargeForTopic, TransactionalWriter
from allocator.producer.transactional import TransactionalCommits
from allocator.types import OffsetAndMetadata, TopicPartition

Records = Mapping[TopicPartition, Sequence[NewRecord]]
Choose = Callable[[], Optional[Chosen]]

# partitions whose offsets are committed at a time without results. Higher: many are committed sooner; lower: fewer
# requests at a time
OFFSETS_AT_ONCE = 20


class ConsumerTransactions:
    """The transactions of one consumer with a `Producer`. Raises ConfigError for a consumer without offsets in
    Kafka."""

    def __init__(self, producer: Any, consumer: ConsumerBase) -> None:
        self.producer = producer
        self.core = core = consumer._member
        group, offsets = core.group, core.choice.config.storage
        if group is None or offsets != "kafka" or core.sink is not None:
            raise ConfigError(
                f"a transaction commits the offsets of a group to Kafka; this consumer has group={group!r}, "
                f"offsets={offsets!r} and {'no' if core.sink is None else 'a'} sink; give it a group and "
                "offsets='kafka'"
            )
        self.group = group
        self.offsets = TransactionalCommits(core)
        self._tenures: dict[TopicPartition, TenureTransactions] = {}
        self._limit: asyncio.Semaphore | None = None

    def of(self, tenure: TopicPartitionState) -> TenureTransactions:
        """Returns the transactions of a tenure. Raises ConfigError if the producer writes to another cluster."""
        found = self._tenures.get(tenure.partition)
        if found is None or found.tenure is not tenure:
            client: KafkaClient = self.producer._client
            clusters = client.metadata.cluster_id, self.core.client.metadata.cluster_id
            if clusters[0] != clusters[1]:
                raise ConfigError(
                    f"a transaction cannot span two clusters: the producer writes to {clusters[0]!r}, and the consumer "
                    f"reads {clusters[1]!r}; give both the same brokers"
                )
            found = TenureTransactions(self, tenure)
            owned = self.core.state.assignment
            kept = {each: old for each, old in self._tenures.items() if owned.get(each) is old.tenure}
            self._tenures = {**kept, tenure.partition: found}
        return found

    async def commit_offset(self, partition: TopicPartition, choose: Choose) -> None:
        """Commits the chosen offset without results. Raises AllocatorError, such as Closed if the producer is."""
        self.producer._open_writer()
        tenure = self.core.state.assignment.get(partition)
        if tenure is not None:
            # Python 3.9 binds it to the loop that is current when it is created
            self._limit = self._limit or asyncio.Semaphore(OFFSETS_AT_ONCE)
            await self.of(tenure).commit_offset(choose, self._limit)


class TenureTransactions:
    """The transactions of one tenure of a partition, one after the other."""

    def __init__(self, owner: ConsumerTransactions, tenure: TopicPartitionState) -> None:
        self.tenure = tenure
        self._core = owner.core
        self._offsets = owner.offsets
        self._group = owner.group
        # no part of a topic name has a colon, so the ids of two groups differ
        name = f"{owner.group}:{tenure.partition.topic}:{tenure.partition.partition}"
        writing = {each: owner.producer._writing[each] for each in ("timeout_s", "compression")}
        self._writer = TransactionalWriter(owner.producer._client, name, **writing)
        self._turn = asyncio.Lock()
        self._seen: Any = None
        """The committed offset (`Seen`); None: not looked at in this tenure, or since it continued elsewhere."""
        self._moves: int | None = None
        """The moves of the position that the last sent offset follows."""
        self._confirmed = False
        """Whether nobody else can commit, and `_seen` is true."""

    async def begin(self) -> None:
        """Fences the former owner, at the first call and after an unknown outcome. Raises Fenced if a transaction has
        committed another offset than this tenure knows; the tenure then continues there."""
        async with self._turn:
            await self._begin()

    async def _begin(self) -> None:
        must_last(self.tenure)  # a former owner must not fence the next one
        if not self._confirmed or self._writer.in_doubt:
            await self._writer.open()
            try:
                self._seen = await self._offsets.confirm(self.tenure, self._seen, self._moves)
            except Fenced:
                self._seen = self._moves = None
                raise
            self._confirmed = True

    async def commit(self, records: Records, choose: Choose, committed: Callable[[], None]) -> None:
        """Writes the records and the chosen offset, calls `committed`, and returns once readers see them.

        Raises Fenced if the transaction is over, or BrokerError. If `committed` was not called, the outcome may be
        unknown; `begin` finds out.
        """
        async with self._turn:
            await self._begin()
            chosen = choose()
            if chosen is not None and records and not self._offsets.changes(self._seen, chosen.offset):
                if not self.tenure.can_commit:
                    name = partition_names([self.tenure.partition])
                    raise Fenced(f"{name}: its position is not known; nothing is written", retriable=True)
                # Records before the committed offset were read again, up to that offset. Where they begin is committed
                # first, or nobody could tell without a response whether their results are there.
                begins = OffsetAndMetadata(self.tenure.done()[0], "", -1)
                await self._commit({}, self._core.commits.chosen(self.tenure.partition, begins), lambda: None)
                await self._begin()
                chosen = choose()
            if chosen is not None:
                await self._commit(records, chosen, committed)

    async def commit_offset(self, choose: Choose, limit: asyncio.Semaphore) -> None:
        """Commits the chosen offset without results; leaves it out if nothing is chosen any more. `limit` bounds how
        many tenures do so at a time."""
        async with self._turn, limit:  # in this order: an earlier call of the same partition comes first
            if choose() is None:  # perhaps others have failed, and this one would only wait for the same broker
                return
            await self._begin()
            chosen = choose()
            if chosen is not None and not self._is_late(chosen):
                await self._commit({}, chosen, lambda: None)

    def _is_late(self, chosen: Chosen) -> bool:
        """Returns whether the offset is from before a move of the position that is committed already."""
        moves = chosen.call.moves(self.tenure.partition)
        return moves not in (-1, self.tenure.moves) and not self.tenure.is_sought

    async def _commit(self, records: Records, chosen: Chosen, committed: Callable[[], None]) -> None:
        self._confirmed, self._moves = False, chosen.call.moves(self.tenure.partition)

        async def send(
            to_send: OffsetAndMetadata, refusal: Callable[[], AllocatorError | None]
        ) -> OffsetAndMetadata | None:
            to_commit = GroupOffset(
                self._core.commits.offsets.coordinator, self._group, self.tenure.partition, to_send, refusal
            )
            return await self._writer.commit(records, to_commit)

        try:
            self._seen = await self._offsets.commit_with(self.tenure, chosen, send)
        except TooLargeForTopic:
            self._confirmed = True
            raise
        except BrokerError as error:
            if error.code in OVER:
                raise Fenced(str(error), retriable=True) from error
            raise
        committed()
        try:
            await self._writer.settle()
            await self._until_applied(chosen.offset.offset)
        except AllocatorError:
            return  # it is committed; `begin` makes sure of the rest
        self._confirmed = True

    async def _until_applied(self, offset: int) -> None:
        """Returns once the coordinator of the group has applied the offset, so that it cannot confuse this transaction
        with the next one."""
        deadline = time.monotonic() + self._core.client.request_timeout_s
        while (found := await self._offsets.stable(self.tenure.partition)) is None or found.offset != offset:
            if time.monotonic() > deadline:
                raise BrokerError(f"offset {offset} is not applied", retriable=True)
            await asyncio.sleep(self._core.client.retry_backoff_s)


class Block(Enum):
    """How far the `async with` block of a transaction is. Only an open block takes results."""

    NOT_BEGUN = "not begun"
    OPEN = "begun"
    ENDING = "come to its end"
    """The results are written and committed, or the records in hand are handed back."""
    ENDED = "ended"


NEXT: Final[Mapping[Block, Block]] = {Block.NOT_BEGUN: Block.OPEN, Block.OPEN: Block.ENDING, Block.ENDING: Block.ENDED}


class Transaction:
    """The records in hand of one partition, as one transaction with what `send` adds. Use `async with`, once.

    Results stay in memory until the end of the block, so the transaction on the brokers is short. At the end they are
    written, and committed together with the offset after the records in hand. If the block raises, nothing is written,
    and the consumer reads the records in hand again.
    """

    def __init__(self, transactions: Any) -> None:
        self._transactions: ConsumerTransactions = transactions
        self._block = Block.NOT_BEGUN
        self._records: dict[TopicPartition, list[NewRecord]] = defaultdict(list)
        self._held = 0
        self._under_way = 0
        """Calls of `send` that have not returned."""
        self._moves = 0
        self._tenure: TopicPartitionState

    async def __aenter__(self) -> Transaction:
        """Raises IllegalState unless the records in hand are of one partition and in no other transaction, and for a
        second block of this one. Raises a retriable Fenced if the partition was lost or a former owner has committed
        the records in hand, so that other records have to be read."""
        self._must_precede(Block.OPEN)
        self._tenure = tenure = self._in_hand()
        self._moves = tenure.moves
        self._go_to(Block.OPEN)
        try:
            if self._transactions.core.state.reader.were_cut(tenure):
                name = partition_names([tenure.partition])
                raise Fenced(f"{name}: its log was cut since its records were read; request the next", retriable=True)
            self._of_tenure = self._transactions.of(tenure)
            await self._of_tenure.begin()
        except BaseException:
            self._go_to(Block.ENDING)
            self._end(committed=False)
            raise
        return self

    def _must_precede(self, state: Block) -> None:
        if NEXT.get(self._block) is not state:
            raise IllegalState(
                f"the block of this transaction has {self._block.value}, and a transaction has only one block; call "
                "producer.transaction(consumer) for each"
            )

    def _go_to(self, state: Block) -> None:
        """Changes the state of the block. Until it has ended, no other call takes or confirms the records in hand."""
        self._must_precede(state)
        self._block = state
        self._transactions.core.state.reader.in_transaction = state is not Block.ENDED

    def _in_hand(self) -> TopicPartitionState:
        core = self._transactions.core
        if core.processor is not None:
            raise IllegalState("process() has the records in hand; return Produce with results='exactly-once' there")
        if core.state.reader.in_transaction:
            raise IllegalState("another transaction has the records in hand; end its block first")
        tenures = core.state.reader.tenures
        if not tenures and core.state.reader.was_moved:
            raise Fenced(
                "the consumer was moved from the records in hand by a seek; request the next records", retriable=True
            )
        if len(tenures) != 1:
            names = partition_names([each.partition for each in tenures]) or "none"
            raise IllegalState(
                f"a transaction takes the records in hand of one partition, and this consumer has records of {names}; "
                "read with getbatch() or getone(), and begin one transaction after each call"
            )
        (tenure,) = tenures
        assert isinstance(tenure, TopicPartitionState)
        must_last(tenure)
        return tenure

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Adds a record, with the arguments of `Producer.send`. Raises the same errors, and IllegalState outside of the
        block, and if the records of the transaction have more than `buffer_bytes`."""
        producer = self._transactions.producer
        self._must_be_open(topic)
        taken: TakenRecord = producer._intake.record(topic, value, key, partition, timestamp, headers)
        self._under_way += 1
        try:
            at = await producer._place(taken)
        finally:
            self._under_way -= 1
        self._must_be_open(topic)
        held = self._held + taken.record.size
        if held > producer.buffer_bytes:
            raise IllegalState(
                f"{topic}: the results of one transaction have more than buffer_bytes={producer.buffer_bytes}; "
                "raise it, or read fewer records at a time, with getone() or a smaller prefetch_bytes"
            )
        self._held = held
        self._records[at].append(taken.record)

    def _must_be_open(self, topic: str) -> None:
        if self._block is not Block.OPEN:
            raise IllegalState(
                f"{topic}: the result is not written, because the block of its transaction has {self._block.value}; "
                "await send() inside of `async with producer.transaction(consumer)`"
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        committed = False
        self._go_to(Block.ENDING)

        def finish() -> None:
            nonlocal committed
            committed = True
            self._transactions.core.state.reader.finish_of(self._tenure)

        try:
            if error is None:
                if self._under_way:
                    raise IllegalState(
                        "nothing is written, because a call of send() had not returned at the end of the block; await "
                        "all of them inside of it"
                    )
                await self._of_tenure.commit(self._records, self._offset, finish)
        finally:
            self._end(committed=committed)

    def _end(self, *, committed: bool) -> None:
        """Ends the block. Unless the records in hand are committed, the consumer reads them again."""
        self._go_to(Block.ENDED)
        tenure = self._tenure
        if not committed and tenure.phase is not Phase.ENDED and tenure.position is not None:
            tenure.hand_back()
            self._transactions.core.fetcher.wake()

    def _offset(self) -> Chosen:
        tenure = self._tenure
        must_last(tenure)
        if self._transactions.core.state.reader.were_refused(tenure):
            name = partition_names([tenure.partition])
            raise Fenced(f"{name}: nothing is written, because may_act() was False for some record", retriable=True)
        offset = tenure.to_commit(delivered=True) if tenure.moves == self._moves else None
        if offset is None:
            raise Fenced(
                f"{partition_names([tenure.partition])}: nothing is written, because the consumer was "
                "moved from the records in hand by a seek or a commit during the transaction; request the next records",
                retriable=True,
            )
        return self._transactions.core.commits.chosen(tenure.partition, offset)


def must_last(tenure: TopicPartitionState) -> None:
    """Raises a retriable Fenced if the tenure has ended."""
    if tenure.phase is Phase.ENDED:
        raise Fenced(
            f"{partition_names([tenure.partition])} was lost since its records were read; request the next records",
            retriable=True,
        )
