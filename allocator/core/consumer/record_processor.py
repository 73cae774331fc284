"""The methods of a record processor that the consumer calls. `allocator.handlers` implements them."""

from __future__ import annotations

from typing import Protocol

from allocator.core.commands.record_orders import RecordOrders


class RecordProcessor(Protocol):
    """Calls a handler for the records of a consumer. It adds a `Hold` to the progress of each partition."""

    @property
    def refuses(self) -> frozenset[str]:
        """The kinds of operator commands that the processor cannot carry out."""

    def order(self, orders: RecordOrders) -> None:
        """Replaces the operator commands."""
