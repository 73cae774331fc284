"""The part of a record processor that the consumer calls. `allocator.handlers` implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from allocator.core.commands.record_orders import RecordOrders
from allocator.core.subscription.listener import DrainingListener
from allocator.core.subscription.loss import Committed
from allocator.core.types import Partitions, TopicPartition


class RecordProcessor(DrainingListener, ABC):
    """Calls a handler for the records of a consumer, and tracks in its place which of them are done."""

    @property
    @abstractmethod
    def refuses(self) -> frozenset[str]:
        """The kinds of operator commands that it cannot carry out."""

    @abstractmethod
    def order(self, orders: RecordOrders) -> None:
        """Replaces the operator commands."""

    @abstractmethod
    def restart(self, partition: TopicPartition, offset: int) -> bool:
        """Continues at `offset` as soon as the running calls have ended. Drops the records that wait for a call.

        Returns False, and changes nothing, if the partition is about to leave. `commit_restart` follows.
        """

    @abstractmethod
    async def commit_restart(self, partition: TopicPartition, offset: int) -> None:
        """Commits `offset`, or what has been done since the restart there. Raises AllocatorError."""

    @abstractmethod
    async def until_idle(self, partition: TopicPartition) -> None:
        """Returns once no call runs for the partition. `restart` has stopped further ones."""

    @property
    @abstractmethod
    def stuck(self) -> Partitions:
        """The partitions whose calls cannot be ended and still run."""

    @abstractmethod
    async def until_ended(self) -> None:
        """Returns once no call runs."""

    @abstractmethod
    def retire(self) -> None:
        """Lets go of all partitions but those of running calls. The consumer continues without this processor."""

    @abstractmethod
    def resume_points(self) -> Mapping[TopicPartition, tuple[Committed, bool]]:
        """For each partition, the first record that is not done, and whether that offset is committed."""
