"""The base of all sinks: one row for each partition of a group, with the next offset and the owner that may write.

Guarantee: the effects of each record are in the database exactly once. Two conditions apply: all effects go through
`write`, in the order of the log, and the owners of partitions are exclusive, as docs/guarantees.md describes. A
transaction contains the effects and the offset after them, so both are stored or neither is. Only the owner that the
row names may write. So a process that lost its partitions while it was frozen writes nothing.

An owner registers before it reads its first record, and its fencing token decides. A row with a lower token belongs to
a former owner. A row with a higher token, or with the same token of another owner, belongs to a later owner, or the
tokens have restarted (an ensemble came back without its data; Kafka forgot the group). In that case the owner checks
its claim with the group again. If the group confirms the claim after the row was read, no later owner can exist, and
the owner replaces exactly that row.

A database may lose transactions that it has acknowledged: a replica that was behind takes over, or it crashes with
`synchronous_commit` off. Then the row is lower than what this process has stored, or is the one that this process
replaced when it registered, and the process stores nothing more: the next records would leave a gap. An owner that
registers later starts at the row, and stores the lost effects again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, NamedTuple, Optional, TypeVar, Union

from allocator.core.consumer import SinkClaim, SinkOffset
from allocator.core.fetch import Batch
from allocator.core.text import partition_names
from allocator.errors import AlreadyStored, ConfigError, Fenced, SinkBehind, SinkError
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

Parameters = Mapping[str, Any]
Connection = TypeVar("Connection")
Unit = TypeVar("Unit", bound=Union[Batch, Record])

# SQL that SQLite and PostgreSQL share, with placeholders that sqlite3 and SQLAlchemy share
CREATE = """CREATE TABLE IF NOT EXISTS {table} (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, next_offset BIGINT,
    leader_epoch INTEGER, fence BIGINT NOT NULL, owner TEXT NOT NULL, topic_id TEXT,
    PRIMARY KEY (group_id, topic, part))"""
INSERT = """INSERT INTO {table} (group_id, topic, part, next_offset, fence, owner, topic_id)
    VALUES (:group_id, :topic, :part, NULL, -2, '', NULL) ON CONFLICT DO NOTHING"""
SELECT_ALL = """SELECT topic, part, next_offset, leader_epoch, fence, owner, topic_id FROM {table}
    WHERE group_id = :group_id"""
SELECT = "SELECT next_offset, fence, owner FROM {table} WHERE group_id = :group_id AND topic = :topic AND part = :part"
REGISTER = """UPDATE {table} SET fence = :fence, owner = :owner, topic_id = :topic_id,
    next_offset = CASE WHEN :recreated = 1 THEN NULL ELSE next_offset END,
    leader_epoch = CASE WHEN :recreated = 1 THEN NULL ELSE leader_epoch END
    WHERE group_id = :group_id AND topic = :topic AND part = :part AND fence = :old_fence AND owner = :old_owner"""
STORE = """UPDATE {table} SET next_offset = :next_offset, leader_epoch = :leader_epoch
    WHERE group_id = :group_id AND topic = :topic AND part = :part AND fence = :fence AND owner = :owner
    AND COALESCE(next_offset, -1) = :stored"""
REWIND = """UPDATE {table} SET next_offset = :next_offset, leader_epoch = NULL, topic_id = COALESCE(:topic_id, topic_id)
    WHERE group_id = :group_id AND topic = :topic AND part = :part AND fence = :fence AND owner = :owner"""


class _Owned(NamedTuple):
    """The registration of this process as the owner of a partition."""

    fence: int
    owner: str


NEW_ROW = _Owned(-2, "")  # the owner in a row that `INSERT` has just added


class _Row(NamedTuple):
    next_offset: Optional[int]
    leader_epoch: Optional[int]
    fence: int
    owner: str
    topic_id: Optional[str]


class TransactionalSink(Generic[Connection]):
    """Stores the offsets of one group in a database, for one consumer at a time. Pass it to `Consumer(sink=...)`.

        sink = SqliteSink("orders.db")

        def store(connection, batch):
            connection.executemany("INSERT INTO orders VALUES (?)", [(record.value,) for record in batch])

        async with Consumer("orders", group="billing", sink=sink, ...) as consumer:
            async for batch in consumer:
                await sink.write_async(batch, store)

    `write` may be called from any thread. Write the records of a partition in the order of the log, one call at a time.
    `async for` and the daemon with ordering "partition" do so.
    """

    def __init__(self, table: str) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise ConfigError(f"table {table!r} is not a name; write TABLE or SCHEMA.TABLE with letters, digits and _")
        self.table = table
        self._group: str | None = None
        self._owned: dict[TopicPartition, _Owned] = {}
        self._left_out: dict[TopicPartition, Callable[[], Optional[int]]] = {}
        self._replaced: dict[TopicPartition, _Owned] = {}
        """The owner in the row before this process registered. It is there again only if the database has lost that."""
        self._tried: dict[TopicPartition, int] = {}
        """The first offset of the last write of a partition, which may have failed."""
        self._reached: dict[TopicPartition, int] = {}
        """The next offset that this owner has seen in the row, or stored there; -1 if none. The row is never lower."""
        self._rewound: dict[TopicPartition, int] = {}
        """The offsets of rewinds that a seek has not followed yet."""
        self._given_up: dict[TopicPartition, int] = {}
        """The ends of units that become dead letters or are skipped, so that a late call must not store them."""
        self._turns: dict[TopicPartition, threading.Lock] = {}
        """Held by whoever changes the offset in the row: a write that a rewind overtakes would undo it."""
        self._prepared = False

    # -- implemented for a database ------------------------------------------------------------------------------

    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yields a connection. Commits at the end of the block, and rolls back if the block raises."""
        raise NotImplementedError

    def _execute(self, connection: Connection, statement: str, parameters: Parameters | Sequence[Parameters]) -> Any:
        """Runs a statement, once for each mapping of a sequence. Returns the driver's result."""
        raise NotImplementedError

    def _in_transaction(self, connection: Connection) -> bool:
        """Returns whether the transaction is open. False: the user's function has ended it."""
        raise NotImplementedError

    def _errors(self) -> tuple[type[Exception], ...]:
        """Returns the classes of errors that the database's driver raises."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connections that the sink opened. Safe to call twice."""
        raise NotImplementedError

    # -- effects -------------------------------------------------------------------------------------------------

    def reached(self, partition: TopicPartition) -> int:
        return self._reached.get(partition, -1)

    def write(self, unit: Unit, effects: Callable[[Connection, Unit], object]) -> bool:
        """Calls `effects(connection, unit)` and stores the offset after `unit`, in one transaction.

        `unit` is a batch or a record, as the consumer delivered it. After an error you may write the same unit again:
        records that an earlier attempt has stored are left out, so `effects` gets the rest of the batch, or is not
        called. Returns whether `effects` was called; it must not commit or roll back.

        Raises `Fenced` if the partition has had another owner since. Nothing of this unit is stored then; the new owner
        stores it. Also raises it if `may_act` was False for a record of this unit or before it: these come again.
        Raises `AlreadyStored` for a unit out of order, and `SinkBehind` if the database has lost effects, or the
        registration of this owner. Errors of the database and of `effects` are raised unchanged. After such an error
        nothing is stored, unless the response to the commit was lost.
        """
        partition, start, _ = _extent(unit)
        with self._turn(partition):
            if start < self._given_up.get(partition, -1):
                raise AlreadyStored(partition, start, self._given_up[partition])
            return self._write(unit, effects)

    def _write(self, unit: Unit, effects: Callable[[Connection, Unit], object]) -> bool:
        partition, start, _ = _extent(unit)
        owned, key = self._owner(unit), self._key(partition)
        with self._transaction() as connection:
            stored = self._stored(connection, key, owned)
            if stored > start and self._tried.get(partition) != start:
                raise AlreadyStored(partition, start, stored)
            left: Any = _since(unit, stored)
            if left is None:
                return False
            if isinstance(left, Batch):
                left = _decodable(left)
            _check_refused(left, self._left_out[partition]())
            effects(connection, left)
            if not self._in_transaction(connection):
                raise ConfigError(
                    "the effects ended the transaction, so they were stored without their offset: do not commit"
                )
            _check_refused(left, self._left_out[partition]())  # the effects may have asked
            end = _extent(left)[2]
            self._tried[partition] = start
            values = {**key, **owned._asdict(), "next_offset": end, "leader_epoch": left.leader_epoch, "stored": stored}
            if self._run(connection, STORE, values).rowcount != 1:
                self._stored(connection, key, owned)
                raise AlreadyStored(partition, start, end)
        if self._owned.get(partition) is owned:
            self._reached[partition] = end
        return True

    async def write_async(self, unit: Unit, effects: Callable[[Connection, Unit], object]) -> bool:
        """Like `write`, in a thread."""
        return await asyncio.to_thread(self.write, unit, effects)

    async def give_up(self, unit: Unit) -> Unit | None:
        """Returns the records of `unit` that the table does not have; None if it has them all.

        The consumer calls it before records become dead letters or are skipped: a handler may have stored some of them
        before it failed. Waits for a write of the partition that runs. From then on `write` refuses the unit, until
        `take_back`. Raises `Fenced`, `SinkBehind` and `SinkError`.
        """
        partition, _, end = _extent(unit)

        def left() -> Unit | None:
            with self._turn(partition), self._mapped_errors(), self._transaction() as connection:
                stored = self._stored(connection, self._key(partition), self._owner(unit))
            return _since(unit, stored)

        self._given_up[partition] = end
        return await asyncio.to_thread(left)

    def take_back(self, partition: TopicPartition) -> None:
        """Ends `give_up`: what is not stored may be written again."""
        self._given_up.pop(partition, None)

    async def pass_by(self, unit: Unit) -> None:
        """Stores the offset after `unit` without effects.

        The consumer calls it for a record that became a dead letter or is skipped: otherwise the next owner, which
        starts at the offset in the table, would handle it again. Raises `Fenced`, `AlreadyStored` and `SinkError`.
        """

        def passed() -> None:
            with self._turn(TopicPartition(unit.topic, unit.partition)), self._mapped_errors():
                self._write(unit, lambda *_: None)

        await asyncio.to_thread(passed)

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Returns the next offset of each partition that has one. Raises `SinkError`."""
        with self._mapped_errors():
            self._prepare()
            with self._transaction() as connection:
                rows = self._read(connection, group)
        return {p: row.next_offset for p, row in rows.items() if row.next_offset is not None}

    # -- ownership -----------------------------------------------------------------------------------------------

    async def begin(
        self, group: str, owner: str, claims: Mapping[TopicPartition, SinkClaim], confirm: Callable[[], Awaitable[bool]]
    ) -> dict[TopicPartition, SinkOffset]:
        """Registers `owner` for these partitions. Returns the next offset of each partition that has an offset.

        The consumer calls it before it reads. `confirm` returns whether the claims were still valid after its call.
        Raises `SinkError`, and ConfigError if the sink already serves another group.
        """
        if self._group not in (None, group):
            raise ConfigError(f"this sink serves group {self._group!r}; create another one for group {group!r}")
        self._group = group
        found, doubtful = await asyncio.to_thread(self._register, owner, claims, {})
        if doubtful:
            if not await confirm():
                raise SinkError(f"{self._names(doubtful)}: the group does not confirm that this member owns them")
            log.warning(
                "%s: %s: the table has an owner whose fencing token is not lower than this member's, but the group "
                "confirms this member as owner: the tokens have restarted, perhaps because the ensemble lost its data",
                group,
                self._names(doubtful),
            )
            more, left = await asyncio.to_thread(self._register, owner, {p: claims[p] for p in doubtful}, doubtful)
            if left:
                raise SinkError(f"{self._names(left)}: another process registers as their owner at the same time")
            found.update(more)
        return found

    async def rewind(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> None:
        """Allows records from this lower offset on to be stored again. Waits for a write of the partition that runs.

        The consumer calls it when the log was truncated or the topic was created again. Call it yourself together with
        `Consumer.seek` to a lower offset, directly before or after it. Raises `Fenced`, `SinkBehind` or `SinkError`.
        """
        self._rewound[partition] = offset
        try:
            await asyncio.to_thread(self._rewind, partition, offset, topic_id)
        except BaseException:
            self.take_rewind(partition)
            raise

    def take_rewind(self, partition: TopicPartition) -> int | None:
        """Returns the offset of a rewind that no seek has followed; None if there is none, or after this call.

        The consumer calls it after a seek: records that were delivered before it may have moved the offset on since.
        """
        return self._rewound.pop(partition, None)

    # ------------------------------------------------------------------------------------------------------------

    def _register(
        self, owner: str, claims: Mapping[TopicPartition, SinkClaim], overruled: Mapping[TopicPartition, _Owned]
    ) -> tuple[dict[TopicPartition, SinkOffset], dict[TopicPartition, _Owned]]:
        """Returns the next offsets of the registered partitions, and the current owners of the others."""
        assert self._group is not None
        with self._mapped_errors():
            self._prepare()
            with self._transaction() as connection:
                # sorted, or two owners could wait for each other's rows
                wanted = sorted(claims)
                self._run(connection, INSERT, [self._key(partition) for partition in wanted])
                before = self._read(connection, self._group)
                changes = []
                for partition in wanted:
                    row, claim = before[partition], claims[partition]
                    if _supersedes(claim, owner, row, overruled.get(partition)):
                        if (row.fence, row.owner) != (claim.fence, owner):  # else the response to COMMIT was lost
                            self._replaced[partition] = _Owned(row.fence, row.owner)
                        changes.append(self._registration(partition, claim, owner, row))
                if changes:
                    self._run(connection, REGISTER, changes)
                # read again: the update locks the rows, so no other owner can store beyond these offsets
                after = self._read(connection, self._group)
        found: dict[TopicPartition, SinkOffset] = {}
        doubtful = {}
        for partition in wanted:
            row = after[partition]
            if (row.fence, row.owner) != (claims[partition].fence, owner):
                doubtful[partition] = _Owned(row.fence, row.owner)
                continue
            self._owned[partition] = _Owned(row.fence, owner)
            self._left_out[partition] = claims[partition].left_out
            self._tried.pop(partition, None)
            self.take_rewind(partition)
            self._reached[partition] = -1 if row.next_offset is None else row.next_offset
            if row.next_offset is not None:
                found[partition] = SinkOffset(row.next_offset, -1 if row.leader_epoch is None else row.leader_epoch)
        return found, doubtful

    def _registration(self, partition: TopicPartition, claim: SinkClaim, owner: str, row: _Row) -> Parameters:
        topic_id = row.topic_id if claim.topic_id is None else str(claim.topic_id)
        recreated = row.topic_id is not None and topic_id != row.topic_id
        if recreated and row.next_offset is not None:
            log.warning(
                "%s:%d: the table has offset %d of a topic that was deleted and created again; it is discarded",
                *partition,
                row.next_offset,
            )
        return {
            **self._key(partition),
            "fence": claim.fence,
            "owner": owner,
            "topic_id": topic_id,
            "recreated": int(recreated),
            "old_fence": row.fence,
            "old_owner": row.owner,
        }

    def _rewind(self, partition: TopicPartition, offset: int, topic_id: Any) -> None:
        with self._turn(partition):
            owned, key = self._owned.get(partition), self._key(partition)
            if owned is None:
                raise self._refused(partition, None, None)
            values = {**key, **owned._asdict(), "next_offset": offset}
            values["topic_id"] = None if topic_id is None else str(topic_id)
            with self._mapped_errors(), self._transaction() as connection:
                self._stored(connection, key, owned, offset)
                # before the commit, whose response may be lost
                self._reached[partition] = min(offset, self._reached.get(partition, -1))
                if self._run(connection, REWIND, values).rowcount != 1:
                    self._stored(connection, key, owned, offset)
            self._tried.pop(partition, None)

    def _owner(self, unit: Batch | Record) -> _Owned:
        """Returns this process's registration. Raises `Fenced` if the unit was delivered under another one."""
        partition = TopicPartition(unit.topic, unit.partition)
        owned = self._owned.get(partition)
        if owned is None or owned.fence != unit.fence:
            raise self._refused(partition, unit.fence, owned.fence if owned else None)
        return owned

    def _stored(self, connection: Connection, key: Parameters, owned: _Owned, needed: int | None = None) -> int:
        """Returns the next offset; -1 if none is stored.

        Raises `Fenced` if the row belongs to another owner, and `SinkBehind` if the database has lost the registration
        of this one, or effects before `needed` (None: any).
        """
        partition = TopicPartition(key["topic"], key["part"])
        row = self._run(connection, SELECT, key).fetchone()
        next_offset, *now = (None, *NEW_ROW) if row is None else row
        stored, reached = -1 if next_offset is None else int(next_offset), self._reached.get(partition, -1)
        owner = _Owned(*now)
        if owner == owned:
            is_lost = stored < (reached if needed is None else min(needed, reached))
        else:
            # a lower fence alone proves nothing: fences may have restarted
            is_behind = owner.fence < owned.fence and stored < reached
            is_lost = row is None or owner == self._replaced.get(partition) or is_behind
        if is_lost:
            raise SinkBehind(partition, stored, reached)
        if owner != owned:
            raise self._refused(partition, owned.fence, owner.fence)
        return stored

    def _turn(self, partition: TopicPartition) -> threading.Lock:
        return self._turns.setdefault(partition, threading.Lock())

    def _refused(self, partition: TopicPartition, fence: int | None, now: int | None) -> Fenced:
        name = f"{partition.topic}:{partition.partition}"
        if now is None:
            return Fenced(
                f"{name}: no consumer has registered this sink as the owner of the partition; pass the sink to the "
                "Consumer, and write what this consumer delivered"
            )
        advice = "Drop the unit; the new owner stores it"
        if fence is not None and now < fence:
            advice += ". If no member has this fence, the database has lost transactions: start the consumer again"
        return Fenced(
            f"{name}: a write under fence {fence} is refused: the owner with fence {now} has registered since. {advice}"
        )

    def _read(self, connection: Connection, group: str) -> dict[TopicPartition, _Row]:
        rows = self._run(connection, SELECT_ALL, {"group_id": group}).fetchall()
        return {TopicPartition(topic, part): _Row(*rest) for topic, part, *rest in rows}

    def _prepare(self) -> None:
        if self._prepared:
            return
        try:
            with self._transaction() as connection:
                self._run(connection, CREATE, {})
        except self._errors():
            # if two processes create the table at the same time, PostgreSQL refuses one of them
            with self._transaction() as connection:
                self._read(connection, "")
        self._prepared = True

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors() as error:
            raise SinkError(f"table {self.table}: the database failed: {error}") from error

    def _key(self, partition: TopicPartition) -> dict[str, Any]:
        return {"group_id": self._group, "topic": partition.topic, "part": partition.partition}

    def _run(self, connection: Connection, statement: str, parameters: Parameters | Sequence[Parameters]) -> Any:
        return self._execute(connection, statement.format(table=self.table), parameters)

    def _names(self, partitions: Mapping[TopicPartition, Any]) -> str:
        return partition_names(partitions)


def _extent(unit: Batch | Record) -> tuple[TopicPartition, int, int]:
    """Returns the partition, the first offset and the offset after the last record."""
    partition = TopicPartition(unit.topic, unit.partition)
    if isinstance(unit, Batch):
        return partition, unit.base_offset, unit.next_offset
    return partition, unit.offset, unit.offset + 1


def _since(unit: Unit, stored: int) -> Unit | None:
    """Returns the part of a unit from this offset on; None if it is empty."""
    _, start, end = _extent(unit)
    if stored <= start:
        return unit
    if stored >= end:
        return None
    assert isinstance(unit, Batch)  # a record cannot be stored in parts
    return unit.from_offset(stored)  # type: ignore[return-value]


def _check_refused(unit: Batch | Record, left_out: int | None) -> None:
    partition, _, end = _extent(unit)
    if left_out is not None and left_out < end:
        raise Fenced(
            f"{partition.topic}:{partition.partition}: a write up to offset {end} is refused: may_act() was False for "
            f"offset {left_out}. Request records, or end the handler's call: they come again",
            retriable=True,
        )


def _decodable(batch: Batch) -> Batch:
    """Returns the records before bytes that do not decode, which the effects may not reach. Raises `CorruptRecordError`
    if there is none."""
    raw = batch.raw()
    deque(raw, maxlen=0)
    return batch if raw.next_offset == batch.next_offset else batch.until_offset(raw.next_offset)


def _supersedes(claim: SinkClaim, owner: str, row: _Row, overruled: _Owned | None) -> bool:
    """Returns whether this owner may replace the row."""
    if row.fence != claim.fence:
        return row.fence < claim.fence or (row.fence, row.owner) == overruled
    return row.owner == owner or (row.fence, row.owner) == overruled
