"""The part of a record processor that the consumer calls. `allocator.handlers` implements it."""

from __future__ import annotations

from typing import Protocol

from allocator.core.commands.record_orders import RecordOrders
from allocator.core.subscription.loss import Committed
from allocator.core.types import Partitions, TopicPartition


class RecordProcessor(Protocol):
    """Calls a handler for the records of a consumer, and tracks in its place which of them are done.

    It also has the methods of a `RebalanceListener`, and is told of changes before the user's listener.
    """

    @property
    def refuses(self) -> frozenset[str]:
        """The kinds of operator commands that it cannot carry out."""

    def order(self, orders: RecordOrders) -> None:
        """Replaces the operator commands."""

    def reached(self, partition: TopicPartition) -> Committed | None:
        """Where a partition that comes back continues: its first record that is not done, and what is done beyond.

        None if no record of the partition was read.
        """

    def working(self, partitions: Partitions) -> Partitions:
        """Returns the partitions whose calls still run, so that they must not be released.

        `on_partitions_revoked` may return before, and is called again for them.
        """

    def set_back(self, partition: TopicPartition, offset: int) -> None:
        """Handles records again from `offset` on, because the log was replaced or cut there."""

    def restart(self, partition: TopicPartition, offset: int) -> None:
        """Continues at `offset` as soon as the running calls have ended. Drops the records that wait for a call.

        Not called for a partition that drains. `commit_restart` follows.
        """

    async def commit_restart(self, partition: TopicPartition, offset: int) -> None:
        """Commits `offset`, or what has been done since the restart there. Raises AllocatorError."""

    async def until_ended(self, partition: TopicPartition | None = None) -> None:
        """Returns once no call runs. With `partition`, no call for it: `restart` has stopped further ones."""
