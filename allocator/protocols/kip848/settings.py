"""The settings of a member of a KIP-848 group."""

from __future__ import annotations

from dataclasses import dataclass

from allocator.protocols.kafka_group import GroupSettings


@dataclass(frozen=True)
class Kip848Settings(GroupSettings):
    """The settings of a member of a KIP-848 group. Times in seconds.

    The session timeout and the heartbeat interval are settings of the group on the broker
    (`consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`).

    The member itself matches topics with the pattern. If the broker did, Kafka 4.1 would assign nothing to a member
    whose pattern matches only topics that the group already had. Patterns in Python's syntax also work with all other
    memberships.
    """

    server_assignor: str | None = None  # "uniform" or "range", if the broker has it; None: the broker's default
