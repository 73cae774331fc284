"""Operator commands as the consumer sees them: what carries them out, and what that needs.

`allocator.commands` defines the commands. A membership that delivers commands gives the consumer an object that carries
them out.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from allocator.core.client.client import KafkaClient
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.fetch.starting_positions import SinkOffsets
from allocator.core.membership.membership import Membership
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import TopicPartition


class CommandedConsumer(Protocol):
    """The parts of `GroupMember` that operator commands need."""

    group: str | None
    client: KafkaClient
    state: SubscriptionState
    fetcher: Fetcher
    membership: Membership

    @property
    def sink(self) -> SinkOffsets | None: ...

    @property
    def processor(self) -> RecordProcessor | None: ...

    def sought(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> bool: ...

    async def commit_sought(self, partition: TopicPartition) -> None: ...

    async def log_offset(self, partition: TopicPartition, at: int | str) -> int: ...

    def start_task(self, work: Coroutine[Any, Any, Any], name: str) -> None: ...


class CommandExecutor(Protocol):
    """Carries out the operator commands for the partitions of one consumer."""

    def take(self, commands: Any, store: Any) -> None:
        """Replaces the commands. `store` keeps their results."""

    def apply(self) -> None:
        """Applies the commands again, because partitions or the processor have changed."""


class NoCommands:
    """The commands of a membership that delivers none."""

    def take(self, commands: Any, store: Any) -> None:
        raise AssertionError("this membership delivers no commands")

    def apply(self) -> None:
        pass
