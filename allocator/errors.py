"""Every error that the public surface raises.

Each says what was wrong, where, and what to do next; `retriable` says whether the same call may succeed later
without anything being changed. Errors of the brokers themselves (`kafka.errors`) never leave `wire/` bare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allocator.foreign import shown

if TYPE_CHECKING:
    from allocator.types import TopicPartition

__all__ = [
    "AllocatorError",
    "AlreadyStored",
    "AssignorError",
    "BadAssignment",
    "BrokerError",
    "BrokersUnavailable",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "CorruptRecordError",
    "DeserializationError",
    "Fenced",
    "GenerationEnded",
    "GroupClosed",
    "GroupNameError",
    "HandlerFailed",
    "IllegalState",
    "InconsistentAssignor",
    "LogTruncated",
    "MissingExtra",
    "NoOffsetsError",
    "NotAssigned",
    "NotOwned",
    "OffsetOutOfRange",
    "RecordTooLarge",
    "SinkError",
    "TopicAuthorizationFailed",
    "TopicNotFound",
    "TopicRecreated",
    "ZooKeeperUnavailable",
]


class AllocatorError(Exception):
    """Root of them all."""

    retriable: bool = False


class ConfigError(AllocatorError, ValueError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another one."""


class MissingExtra(AllocatorError, ImportError):
    """What was asked for needs a package that only an extra installs; says which."""


class GroupNameError(ConfigError):
    """A group name that cannot be a znode or a Kafka group id."""


class AssignorError(AllocatorError):
    """An allocator function cannot be found, imported or called."""


class BadAssignment(AssignorError):
    """An allocator function returned something else than each partition exactly once to known members."""


class InconsistentAssignor(AssignorError):
    """This member and the rest of its group have no allocator function in common."""


class ZooKeeperUnavailable(AllocatorError):
    """No ZooKeeper node answered in time, or none accepts our credentials."""

    retriable = True


class BrokersUnavailable(AllocatorError):
    """No Kafka broker answered in time."""

    retriable = True


class BrokerError(AllocatorError):
    """A broker refused a request, or the connection to it ended before the answer.

    `code` is Kafka's numeric error code, or None when no answer arrived.
    """

    def __init__(self, message: str, *, code: int | None = None, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class TopicAuthorizationFailed(BrokerError):
    """The broker does not let this user read a topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"not authorised to read topic {topic!r}; grant this user READ and DESCRIBE on it", code=29)
        self.topic = topic


class TopicNotFound(AllocatorError):
    """The cluster has no such topic."""

    retriable = True

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(f"the cluster has no topic {', '.join(map(repr, topics))}; create it or correct the name")
        self.topics = tuple(topics)


class NotOwned(AllocatorError):
    """A partition was named that this member does not own (any more)."""


class CommitFailed(AllocatorError):
    """Offsets were not committed: the partition moved, the lease lapsed, or the coordinator refused them."""


class Fenced(CommitFailed):
    """Offsets were not committed because the group went on without this member, or gave the partition to another.

    Whoever owns the partitions now reads what was not committed once more. Drop what was read of them and do not
    repeat the commit: the member joins again by itself, and its listener hears what it lost and what it is given.
    """


class SinkError(AllocatorError):
    """The database of a sink (`allocator.sinks`) cannot be reached, or refused what the sink needs."""

    retriable = True


class AlreadyStored(AllocatorError):
    """Records are written to a sink again, or not in the order of the log."""

    def __init__(self, partition: TopicPartition, offset: int, stored: int) -> None:
        super().__init__(
            f"{partition.topic}:{partition.partition}: a write from offset {offset} on comes out of turn: the sink "
            f"is at offset {stored}. Write a partition's records in the order of the log; after a seek to a lower "
            "offset, call the sink's rewind() first"
        )
        self.partition = partition
        self.offset = offset
        self.stored = stored


class NoOffsetsError(AllocatorError):
    """The coordinator refuses to say what the group has committed, or a partition has no position to start at.

    `partitions` are those that it is about; empty when it is about the whole group.
    """

    partitions: frozenset[TopicPartition] = frozenset()


class NotAssigned(NotOwned, KeyError):
    """A partition was named that is not in the assignment; a `KeyError` too, as in kafka-python."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(partition)
        self.partition = partition

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition} is not assigned; assign it or wait for the group to"


class IllegalState(AllocatorError):
    """The call does not fit what was called before it, such as subscribing after assigning by hand."""


class _AtOffset(AllocatorError):
    """Something about one partition at one offset."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(f"{topic}:{partition} at offset {offset}: {why}")
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OffsetOutOfRange(_AtOffset):
    """The position is outside the partition's log and `auto_offset_reset` is "none"."""


class LogTruncated(OffsetOutOfRange):
    """After an unclean election the log does not hold what was read before the position; nothing says where to go on.

    `divergent_offset` is where the log parted from what was read: what stands there now was not seen yet. None: the
    leader knows nothing of that time, so that only a reset helps.
    """

    def __init__(self, topic: str, partition: int, offset: int, divergent_offset: int | None) -> None:
        where = "at an unknown offset" if divergent_offset is None else f"from offset {divergent_offset} on"
        go_on = "to an end of the log" if divergent_offset is None else f"to {divergent_offset}"
        super().__init__(
            topic,
            partition,
            offset,
            f"the log differs {where} from what was read, as a leader was elected that did not have it, and "
            f"auto_offset_reset is 'none'; seek {go_on} to read what stands there now",
        )
        self.divergent_offset = divergent_offset


class TopicRecreated(OffsetOutOfRange):
    """The topic was deleted and created again, so the position is an offset of a topic that is gone."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(
            topic,
            partition,
            offset,
            "the topic was deleted and created again since, and auto_offset_reset is 'none'; seek to an offset of the "
            "new topic, 0 for all of it",
        )


class RecordTooLarge(_AtOffset):
    """A record does not fit into the fetch size, and the broker's version cannot send it regardless."""


class CorruptRecordError(_AtOffset):
    """Bytes of a partition do not decode: a bad checksum, length or format.

    `next_offset` is where the record batch after the bad one begins, None if that cannot be told: seek there to go on.
    """

    def __init__(self, topic: str, partition: int, offset: int, why: str, *, next_offset: int | None = None) -> None:
        past = "past it" if next_offset is None else f"to {next_offset}"
        super().__init__(topic, partition, offset, f"{why}; seek {past} to go on, or compare with another replica")
        self.next_offset = next_offset


class DeserializationError(_AtOffset):
    """The user's deserializer raised (its error is the `__cause__`); `part` says whether on "key" or "value"."""

    def __init__(self, topic: str, partition: int, offset: int, part: str, cause: BaseException) -> None:
        why = f"the {part} deserializer raised {shown(cause)}"
        super().__init__(topic, partition, offset, f"{why}; go on with batch.from_offset({offset + 1}) or seek past it")
        self.part = part


class Closed(AllocatorError):
    """The object was closed, by its owner or after an error that ended it."""


class GroupClosed(Closed):
    """`ConsumerGroup.next` was called, or was waiting, and the group is closed: there is no next generation."""


class GenerationEnded(AllocatorError):
    """A generation is over: why its functions were told to stop, or why an offset is not committed under it any more.

    Functions find it in `Generation.ended`, and from Python 3.11 on as the argument of their `CancelledError`. The
    next generation comes from `ConsumerGroup.next`; what was not committed is read again there, or by another member.
    """


class HandlerFailed(AllocatorError):
    """A handler raised at a record after all its retries. Nothing is skipped: the record is the next one to read."""

    def __init__(
        self, handler: str, topic: str, partition: int, offset: int, attempts: int, error: BaseException
    ) -> None:
        tried = f"{attempts} times" if attempts > 1 else "once"
        self.what = f"handler {handler!r} failed {tried} at {topic}:{partition} offset {offset}: {shown(error)}"
        """The message without its remedy."""
        super().__init__(f"{self.what}; correct it, or set a dead-letter topic for records that cannot be handled")
        self.topic = topic
        self.partition = partition
        self.offset = offset
