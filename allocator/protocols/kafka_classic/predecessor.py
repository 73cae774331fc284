"""Reads the group that a static member joins in the place of its predecessor: the earlier process of its instance id.

The coordinator keeps the assignment of a stable group when a static member restarts. It ignores a changed subscription,
and does not tell other members than the leader anything about the group.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

from kafka.protocol.admin import DescribeGroupsRequest

from allocator.core.client import Coordinator, KafkaClient, Reaction, for_code, reaction_to
from allocator.protocols.kafka_classic.consumer_protocol import Malformed, MemberAssignment, Subscription
from allocator.protocols.kafka_classic.messages import (
    DescribedMember,
    JoinedMember,
    describe_request,
    described_members,
)
from allocator.types import Partitions

log = logging.getLogger(__name__)

# seconds for the description of the group. Higher: a hung coordinator delays the join longer; lower: a slow one has to
# repeat the description
DESCRIBED_WITHIN_S = 5.0


class Inheritance(NamedTuple):
    """What a static member takes over from its predecessor."""

    topics: frozenset[str]
    """The predecessor's subscription."""
    partitions: Partitions
    """The predecessor's assignment."""
    counts: Counter[str]
    """Topic -> number of assigned partitions in the group."""


class Predecessor:
    """The earlier process of a static member, as the group knew it before this process joined."""

    def __init__(self, client: KafkaClient, coordinator: Coordinator, group: str, instance_id: Optional[str]) -> None:
        self.found: Optional[DescribedMember] = None
        """None before `read`, and if the group had no such member."""
        self.members: Sequence[DescribedMember] = ()
        """All members of the group; none if it was not stable."""
        self._client = client
        self._coordinator = coordinator
        self._group_name = group
        self._instance_id = instance_id

    @property
    def member_id(self) -> Optional[str]:
        return None if self.found is None else self.found.member.member_id

    @property
    def group(self) -> list[JoinedMember]:
        """The members of the group without their assignments."""
        return [each.member for each in self.members]

    async def read(self) -> None:
        """Reads the group. Call it before the first JoinGroup. Does nothing for a member that is not static.

        Finds no members if this user may not read the group. Raises `BrokerError` if repeating helps.
        """
        if self._instance_id is None or self._client.api_version(DescribeGroupsRequest) is None:
            return
        deadline = time.monotonic() + DESCRIBED_WITHIN_S
        response = await self._coordinator.send(describe_request(self._group_name), deadline)
        code = response.groups[0].error_code
        if code:
            if reaction_to(code, {}) is Reaction.REFIND:
                self._coordinator.forget()
            error = for_code(code, f"group {self._group_name!r}: cannot read its members before the join")
            if error.retriable:
                raise error
            log.info("%s", error)
        self.members = described_members(response)
        self.found = next((each for each in self.members if each.member.instance_id == self._instance_id), None)

    def inheritance(self) -> Optional[Inheritance]:
        """Returns None if there was no predecessor, or if another client wrote what cannot be read."""
        if self.found is None:
            return None
        try:
            topics = frozenset(Subscription.decode(self.found.member.metadata).topics)
            mine = MemberAssignment.decode(self.found.assignment).partitions
            assigned = {p for each in self.members for p in MemberAssignment.decode(each.assignment).partitions}
        except Malformed as error:
            log.info("%s: cannot read the group before the join: %s", self._group_name, error)
            return None
        return Inheritance(topics, mine, Counter(partition.topic for partition in assigned))
