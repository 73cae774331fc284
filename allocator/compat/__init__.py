"""Consumers with the interface of kiel 0.9.3: `GroupedConsumer` and `SingleConsumer`.

In: kiel's own arguments. Out: values by topic, as in kiel, with the guarantees of `Consumer`.
May touch: the same as `Consumer`.
"""

from __future__ import annotations

from allocator.compat.grouped import GroupedConsumer
from allocator.compat.single import SingleConsumer

__all__ = ["GroupedConsumer", "SingleConsumer"]
