"""Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

In: a connected `KafkaClient` and assignors. Out: calls to an `AssignmentListener`; the identity that commits carry.
Changes the group on its coordinator, but no records and no offsets.

Start with `membership` and `settings`. `group` is the state machine, `slow_requests` sends JoinGroup and SyncGroup, and
`messages` builds the other requests. `plan` computes the leader's assignment, without I/O. `consumer_protocol` encodes
and decodes the messages that members exchange through the coordinator.
"""

from __future__ import annotations

from allocator.protocols.kafka_classic.consumer_protocol import PROTOCOL_TYPE, Malformed, MemberAssignment, Subscription
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
