"""Offsets that the user's database keeps: the part of a sink that a consumer uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from allocator.core.types import TopicPartition


class SinkClaim(NamedTuple):
    """An owner's claim to one partition: its fence, and the id of the topic if the brokers know it."""

    fence: int
    topic_id: Any = None


class SinkOffset(NamedTuple):
    """Where an owner begins: the next offset, and the leader epoch of the record before it (-1: unknown).

    The consumer compares the epoch with the log, to detect a truncation (KIP-320).
    """

    offset: int
    leader_epoch: int = -1


@runtime_checkable
class OffsetSink(Protocol):
    """Keeps the offsets of a group, for one owner of each partition. `allocator.sinks` has implementations."""

    async def begin(
        self,
        group: str,
        owner: str,
        claims: Mapping[TopicPartition, SinkClaim],
        confirm: Callable[[], Awaitable[bool]],
    ) -> Mapping[TopicPartition, SinkOffset]:
        """Makes `owner` the only writer of these partitions, and returns the offsets in the database.

        `confirm` returns whether the claims still stood after it was called. Raises AllocatorError.
        """

    async def rewind(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> None:
        """Lets records from this lower offset on be stored again. Raises AllocatorError."""
