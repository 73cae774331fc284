"""Clients with the interfaces of other libraries.

`GroupedConsumer` and `SingleConsumer` have the interface of kiel 0.9.3: they take kiel's arguments and return values by
topic, with the guarantees of `Consumer`. `KielProducer` is kiel's producer, with the guarantees of `Producer`.
`ConsumerGroup` and `Generation` have the interface of kafka-go. Effects: those of `Consumer` and `Producer`.
"""

from __future__ import annotations

from allocator.compat.grouped import GroupedConsumer
from allocator.compat.single import SingleConsumer
