"""The methods of a record processor that the consumer calls. `allocator.handlers` implements them."""

from __future__ import annotations

from typing import Protocol

from allocator.core.commands.record_orders import RecordOrders
from allocator.core.subscription.loss import Committed
from allocator.core.types import Partitions, TopicPartition


class RecordProcessor(Protocol):
    """Calls a handler for the records of a consumer, and tracks which of them are done.

    It also has the methods of a `RebalanceListener`. The consumer calls them before those of the user's listener.
    """

    @property
    def refuses(self) -> frozenset[str]:
        """The kinds of operator commands that the processor cannot carry out."""

    def order(self, orders: RecordOrders) -> None:
        """Replaces the operator commands."""

    def reached(self, partition: TopicPartition) -> Committed | None:
        """Returns the first offset that is not done, and the done records beyond it, of a partition that comes back.

        None if the processor has read no record of the partition.
        """

    def working(self, partitions: Partitions) -> Partitions:
        """Returns the partitions with running handler calls. The member must not release them yet.

        `on_partitions_revoked` may return earlier, and is called again for these partitions.
        """

    def set_back(self, partition: TopicPartition, offset: int) -> None:
        """Handles records again from `offset` on, where the log was replaced or truncated."""

    def restart(self, partition: TopicPartition, offset: int) -> None:
        """Continues at `offset` when the running calls have ended. Drops the records that wait for a call.

        The consumer does not call it for a partition that drains. `commit_restart` follows.
        """

    async def commit_restart(self, partition: TopicPartition, offset: int) -> None:
        """Commits `offset`, or a later offset that is done since the restart. Raises AllocatorError."""

    async def until_ended(self, partition: TopicPartition | None = None) -> None:
        """Waits until no call of the handler runs. If `partition` is given, waits only for calls with its records."""
