"""All errors of the public API.

The text of an error names the cause, the place and the remedy. If `retriable` is True, the same call may succeed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from allocator.core.text.quoting import Quote, shown

if TYPE_CHECKING:
    from allocator.core.record import TopicPartition

__all__ = [
    "AllocatorError",
    "AlreadyStored",
    "AssignorError",
    "BadAssignment",
    "BrokerError",
    "BrokersUnavailable",
    "Closed",
    "CommandRefused",
    "CommitFailed",
    "ConfigError",
    "CorruptRecordError",
    "DecompressedTooLarge",
    "DeliveryFailed",
    "DeserializationError",
    "Fenced",
    "GenerationEnded",
    "GroupClosed",
    "GroupNameError",
    "HandlerCutOff",
    "HandlerFailed",
    "IllegalState",
    "InconsistentAssignor",
    "InstanceIdInUse",
    "LogTruncated",
    "MissingExtra",
    "NoOffsetsError",
    "NoSuchCommand",
    "NotAssigned",
    "NotOwned",
    "OffsetOutOfRange",
    "RecordTooLarge",
    "ResourceLost",
    "SinkBehind",
    "SinkError",
    "TopicAuthorizationFailed",
    "TopicNotFound",
    "TopicRecreated",
    "ZooKeeperUnavailable",
]


class AllocatorError(Exception):
    """Base class of all errors of this library."""

    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles text and attributes. An exception would call its class with its text, which is one argument."""
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[AllocatorError], args: tuple[Any, ...]) -> AllocatorError:
    return kind.__new__(kind, *args)


class ConfigError(AllocatorError, ValueError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another one."""


class MissingExtra(AllocatorError, ImportError):
    """A feature needs a package of an extra, which the text names."""


class GroupNameError(ConfigError):
    """A group name that is not valid as a znode name or a Kafka group id."""


class AssignorError(AllocatorError):
    """An allocator function cannot be found, imported or called."""


class BadAssignment(AssignorError):
    """An allocator function did not assign each partition exactly once to a known member."""


class InconsistentAssignor(AssignorError):
    """This member and the rest of its group share no allocator function."""


class InstanceIdInUse(AllocatorError):
    """Another live member of the group has the same `instance_id`. This member gets no partitions until that one ends.

    With `group_protocol="consumer"` a killed process counts as live until its session expires.
    """


class ResourceLost(AllocatorError):
    """A resource of an `Allocation` was lost in a `hold`: the session ended, or a call of `close` was cancelled."""


class ZooKeeperUnavailable(AllocatorError):
    """No ZooKeeper node responded in time, or they refuse the credentials."""

    retriable = True


class BrokersUnavailable(AllocatorError):
    """No Kafka broker responded in time."""

    retriable = True


class BrokerError(AllocatorError):
    """A broker refused a request, or the connection ended before the response.

    `code` is Kafka's numeric error code, or None without a response.
    """

    def __init__(self, message: str, *, code: int | None = None, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = None if code is None else int(code)
        self.retriable = retriable


class TopicAuthorizationFailed(BrokerError):
    """This user may not read, write or describe a topic."""

    def __init__(self, topic: str, use: str = "read") -> None:
        rights = " and ".join(dict.fromkeys((use.upper(), "DESCRIBE")))
        super().__init__(f"not authorised to {use} topic {topic!r}; grant this user {rights} on it", code=29)
        self.topic = topic


class TopicNotFound(AllocatorError):
    """The cluster has no such topic."""

    retriable = True

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(f"the cluster has no topic {', '.join(map(repr, topics))}; create it or correct the name")
        self.topics = tuple(topics)


class NotOwned(AllocatorError):
    """This member does not own the partition (any more)."""


class CommitFailed(AllocatorError):
    """Offsets were not committed: the partition moved, the lease expired, or the coordinator refused them.

    `denied` has the topics that this user may not read: such a user may not commit their offsets either.
    """

    def __init__(self, message: str, *, retriable: bool = False, denied: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.retriable = retriable
        self.denied = frozenset(denied)


class Fenced(CommitFailed):
    """Offsets were not committed because the group has removed this member or moved the partition.

    The new owner reads the uncommitted records again. Drop the records that you have read, and do not retry the commit.
    The member joins again by itself, and calls its listener with the lost and the new partitions.
    """


class SinkError(AllocatorError):
    """The database of a sink (`allocator.sinks`) cannot be reached, or refused what the sink needs."""

    retriable = True


class AlreadyStored(AllocatorError):
    """Records were written to a sink twice, or not in the order of the log."""

    def __init__(self, partition: TopicPartition, offset: int, stored: int) -> None:
        super().__init__(
            f"{partition.topic}:{partition.partition}: a write from offset {offset} on is out of order: the sink "
            f"is at offset {stored}. Write a partition's records in the order of the log; after a seek to a lower "
            "offset, call the sink's rewind() first"
        )
        self.partition = partition
        self.offset = offset
        self.stored = stored


class SinkBehind(AllocatorError):
    """The database of a sink has lost effects that it had stored, or the registration of this owner.

    A consumer that starts again continues at `stored`, the offset in the database, and loses no record. If the database
    has no offset (-1), the consumer starts as with a new table.
    """

    def __init__(self, partition: TopicPartition, stored: int, reached: int) -> None:
        what = f"the sink is at offset {max(stored, 0)}, but this process has stored the records before {reached}"
        if stored >= reached:
            what = "the sink no longer has the registration of this owner, and no other owner has registered since"
        advice = "Start the consumer again: it continues at the offset in the database"
        if stored < 0 <= reached:
            advice = (
                "The table has no offset, so a new start begins at the committed offset in Kafka, or as "
                "auto_offset_reset says: seek to the first record whose effects are lost"
            )
        super().__init__(
            f"{partition.topic}:{partition.partition}: {what}: the database has lost transactions, as after a failover "
            f"to a replica that was behind. {advice}"
        )
        self.partition = partition
        self.stored = stored
        self.reached = reached


class NoOffsetsError(AllocatorError):
    """The coordinator does not return the committed offsets, or a partition has no start position.

    `partitions` has the affected partitions; it is empty if the whole group is affected.
    """

    partitions: frozenset[TopicPartition] = frozenset()


class NotAssigned(NotOwned, KeyError):
    """The partition is not in the assignment. Also a `KeyError`, as in kafka-python."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(partition)
        self.partition = partition

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition} is not assigned; assign it or wait for the group to"


class IllegalState(AllocatorError):
    """The call is not possible in this state, for example `subscribe` after `assign`."""


class _AtOffset(AllocatorError):
    """An error of one partition at one offset."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(f"{topic}:{partition} at offset {offset}: {why}")
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OffsetOutOfRange(_AtOffset):
    """The position is outside the partition's log and `auto_offset_reset` is "none"."""


class LogTruncated(OffsetOutOfRange):
    """After an unclean election the log differs from the records that were read before the position.

    `divergent_offset` is the first offset that differs. None: the leader has no data from that time, so seek to an end
    of the log.
    """

    def __init__(self, topic: str, partition: int, offset: int, divergent_offset: int | None) -> None:
        where = "at an unknown offset" if divergent_offset is None else f"from offset {divergent_offset} on"
        go_on = "to an end of the log" if divergent_offset is None else f"to {divergent_offset}"
        super().__init__(
            topic,
            partition,
            offset,
            f"the log differs {where} from the records that were read, because a leader without them was elected, and "
            f"auto_offset_reset is 'none'; seek {go_on} to read the present records",
        )
        self.divergent_offset = divergent_offset


class TopicRecreated(OffsetOutOfRange):
    """The topic was deleted and created again, so the position belongs to the old topic."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(
            topic,
            partition,
            offset,
            "the topic was deleted and created again since, and auto_offset_reset is 'none'; seek to an offset of the "
            "new topic, 0 for all of it",
        )


class RecordTooLarge(_AtOffset):
    """A record is larger than the fetch size, and brokers of this version cannot send it."""


class CorruptRecordError(_AtOffset):
    """A record batch cannot be decoded: wrong checksum, length or format.

    `next_offset` is an offset from which no good record is skipped, None if unknown. Seek there to continue. If the
    bytes of the batch do not tell its end, the error may come again, with a higher `next_offset`. Damage of both fields
    that tell the end, or a length that by chance leads to another batch, may skip records.
    """

    def __init__(self, topic: str, partition: int, offset: int, why: str, *, next_offset: int | None = None) -> None:
        past = "past it" if next_offset is None else f"to {next_offset}"
        super().__init__(topic, partition, offset, f"{why}; {self._remedy(past)}")
        self.why = why
        self.next_offset = next_offset

    def _remedy(self, past: str) -> str:
        return f"seek {past} to continue, or compare with another replica"


class DecompressedTooLarge(CorruptRecordError):
    """A record batch decompresses to more than the limit: 128 MiB or 128 times its size, at most 1 GiB.

    Its records may be good. The limit keeps a batch of a few bytes from filling the memory.
    """

    def _remedy(self, past: str) -> str:
        return (
            "its records may be good, so read them with a client that has no such limit before you seek "
            f"{past}, and lower batch.size of their producer"
        )


class DeserializationError(_AtOffset):
    """The user's deserializer raised the `__cause__` of this error. `part` is "key" or "value"."""

    def __init__(self, topic: str, partition: int, offset: int, part: str, cause: BaseException) -> None:
        raised = shown(cause)
        why = f"the {part} deserializer raised {raised}"
        super().__init__(
            topic, partition, offset, f"{why}; continue with batch.from_offset({offset + 1}) or seek past it"
        )
        self.part = part
        self.raised = raised
        """The deserializer's error as text. It may quote the record."""


class DeliveryFailed(AllocatorError):
    """Brokers did not acknowledge a record, or several of one partition.

    `partition`: their topic and partition. `records`: their number. `error`: the cause, often a BrokerError with a
    `code`. `maybe_written`: a broker may have stored some of them, for example because a response was lost. Then a new
    attempt may write them twice.
    """

    def __init__(self, partition: TopicPartition, records: int, error: AllocatorError, maybe_written: bool) -> None:
        what = "1 record, which" if records == 1 else f"{records} records, which"
        outcome = "may be written" if maybe_written else "is not written" if records == 1 else "are not written"
        super().__init__(f"{partition.topic}:{partition.partition} did not acknowledge {what} {outcome}: {error}")
        self.partition = partition
        self.records = records
        self.error = error
        self.maybe_written = maybe_written
        self.retriable = error.retriable


class CommandRefused(AllocatorError):
    """An operator command that the group cannot follow. Nothing was written."""


class NoSuchCommand(AllocatorError):
    """The group has no operator command with this id. Nothing was withdrawn."""


class Closed(AllocatorError):
    """The object is closed, by a call of `close` or after an error."""


class GroupClosed(Closed):
    """`ConsumerGroup.next` returns no generation, because the group is closed."""


class GenerationEnded(AllocatorError):
    """A generation has ended, so its functions stop and its commits are refused.

    Functions find this error in `Generation.ended`, and from Python 3.11 on as the argument of their `CancelledError`.
    Call `ConsumerGroup.next` for the next generation. This or another member reads uncommitted records again.
    """


class HandlerCutOff(AllocatorError):
    """Calls of a handler did not end within `drain_timeout_s`. Their records are handled again.

    `running` has the partitions whose calls continue, because only the end of the process can end them.
    """

    def __init__(
        self, handler: str, places: Iterable[str], timeout_s: float, running: frozenset[TopicPartition]
    ) -> None:
        end = "still runs and ends with the process" if running else "is cut off"
        super().__init__(
            f"handler {handler!r} did not end within drain_timeout_s = {timeout_s:g} at {', '.join(places)}; it {end}, "
            "and its records are handled again"
        )
        self.running = running


class HandlerFailed(AllocatorError):
    """A handler failed at a record after all retries. The record is the next one to read.

    `refused`: the error of the dead-letter topic, if it takes no letter.
    """

    def __init__(
        self,
        handler: str,
        topic: str,
        partition: int,
        offset: int,
        attempts: int,
        error: BaseException,
        refused: BaseException | None = None,
    ) -> None:
        tried = f"{attempts} times" if attempts > 1 else "once"
        raised = shown(error)
        where = f"handler {handler!r} failed {tried} at {topic}:{partition} offset {offset}: "
        self.what = Quote(where + raised, where + raised.hidden)
        """The text of the error without the remedy. It may quote the record."""
        # a ConfigError, such as a result that cannot be written, comes with every record, so it needs no letter
        remedy = (
            "correct it"
            if isinstance(error, ConfigError)
            else "correct it, or set a dead-letter topic for such records"
        )
        super().__init__(f"{self.what}; {remedy if refused is None else f'its dead letter is refused: {refused}'}")
        self.topic = topic
        self.partition = partition
        self.offset = offset


# tracebacks, Spark's messages and the span attribute `error.type` show the public path
for _error in [value for value in globals().values() if isinstance(value, type)]:
    if _error.__module__ == __name__:
        _error.__module__ = "allocator.errors"
