"""KIP-848, Kafka's next-generation group protocol: ConsumerGroupHeartbeat; the coordinator assigns.

In: a connected `KafkaClient`. Out: calls to an `AssignmentListener`; the member id and epoch that commits carry.
Changes the group on its coordinator, but no records and no offsets.

Start with `membership` and `settings`. `group` is the state machine, `messages` builds the requests.
"""

from __future__ import annotations

from allocator.protocols.kip848.messages import ConsumerGroupDescribeRequest
