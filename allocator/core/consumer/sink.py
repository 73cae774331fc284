"""The interface of a sink: the user's database that stores the offsets of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Optional, Protocol, TypeVar, Union, runtime_checkable

from allocator.core.errors import ConfigError
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.starting_positions import SinkOffsets
from allocator.core.record import Record
from allocator.core.types import TopicPartition

Unit = TypeVar("Unit", bound=Union[Batch, Record])


class SinkClaim(NamedTuple):
    """An owner's claim to one partition: its fencing token, and the id of the topic if the brokers know it.

    `left_out` returns the lowest offset in hand for which `may_act` was False; None if there is none.
    """

    fence: int
    topic_id: Any = None
    left_out: Callable[[], Optional[int]] = lambda: None


class SinkOffset(NamedTuple):
    """The next offset of a partition, and the leader epoch of the record before it (-1 if unknown).

    The epoch lets the consumer detect a truncation of the log (KIP-320).
    """

    offset: int
    leader_epoch: int = -1


@runtime_checkable
class OffsetSink(Protocol):
    """Stores the offsets of a group, for one owner of each partition. `allocator.sinks` has implementations."""

    async def begin(
        self, group: str, owner: str, claims: Mapping[TopicPartition, SinkClaim], confirm: Callable[[], Awaitable[bool]]
    ) -> Mapping[TopicPartition, SinkOffset]:
        """Makes `owner` the only writer of these partitions, and returns the offsets in the database.

        `confirm` returns whether the claims were still valid after its call. Raises AllocatorError.
        """

    def reached(self, partition: TopicPartition) -> int:
        """Returns the offset after what this owner has stored; -1 if nothing is stored."""

    async def rewind(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> None:
        """Sets the offset of a partition back, so that later records can be stored again. Raises AllocatorError."""

    def take_rewind(self, partition: TopicPartition) -> int | None:
        """Returns the offset of the last `rewind`, which may still run; None if this owner has not called it since the
        last `take_rewind`."""

    async def give_up(self, unit: Unit) -> Unit | None:
        """Returns the records of `unit` that are not stored; None if all are. Until `take_back`, no other call than
        `pass_by` stores them.

        Raises Fenced if the partition has another owner, and AllocatorError.
        """

    def take_back(self, partition: TopicPartition) -> None:
        """Ends `give_up`."""

    async def pass_by(self, unit: Batch | Record) -> None:
        """Stores the offset after a unit without effects: it became a dead letter, or is skipped.

        Raises Fenced if the partition has another owner, and AllocatorError.
        """


class MemberSink(SinkOffsets, Protocol):
    """One member's access to its sink. `allocator.handlers.sinks` implements it."""

    database: OffsetSink

    def sought(self, partition: TopicPartition) -> None:
        """Called after the user has sought. Holds the records back until the sink's offset is as low as the user's call
        of its `rewind` demands, before the seek or directly after it."""


def check_sink(sink: object) -> OffsetSink:
    """Returns the sink. Raises ConfigError if it is none."""
    if isinstance(sink, type) or not isinstance(sink, OffsetSink):
        raise ConfigError(f"sink takes an SqliteSink or an SqlSink, not {sink!r}")
    return sink
