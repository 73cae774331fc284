"""Two members in a group that a simulated Java member of 2.8 to 3.3 leads.

The leader parses the members' bytes as Java's CooperativeStickyAssignor of those versions does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent.parent / room) for room in ("wire", "coordinator")]

from fake_group import GroupBroker
from kafka.protocol.consumer import JoinGroupResponse, SyncGroupResponse
from kafka_members import Ours
from members import History

from allocator.core.types import Partitions
from allocator.protocols.kafka_classic.consumer_protocol import MemberAssignment, Subscription
from allocator.testing import wait_until_async
from allocator.types import TopicPartition

pytestmark = pytest.mark.deadline(60)

HEARTBEAT = 12
FAST = {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.02, "retry_backoff_s": 0.001}


def tp(*numbers: int) -> Partitions:
    return frozenset(TopicPartition("t", n) for n in numbers)


ALL = tp(*range(6))


class JavaLed(GroupBroker):
    """The coordinator, and the leader: member "java", which holds what it gives itself."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"t": [1] * 6}
        self.java = tp(0, 1)
        self.given: dict[str, Partitions] = {}
        self.waiting: dict[str, bytes] = {}
        self.joined: set[str] = set()
        self.due = False
        self.complete = asyncio.Event()

    async def join(self, request: Any) -> Any:
        member, code = request.member_id, 0
        if not member:
            self.members += 1
            member, code = f"member-{self.members}", 79
        else:
            self.joined.add(member)
            self.waiting[member] = request.protocols[0].metadata
            complete = self.complete
            self._try()
            await complete.wait()
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            generation_id=-1 if code else self.generation,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            leader="java",
            skip_assignment=False,
            member_id=member,
            members=[],
            version=request.API_VERSION,
        )

    async def sync(self, request: Any) -> Any:
        return SyncGroupResponse(
            throttle_time_ms=0,
            error_code=0,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            assignment=MemberAssignment(self.given[request.member_id], version=1).encode(),
            version=request.API_VERSION,
        )

    async def heartbeat(self, request: Any) -> Any:
        self.codes[HEARTBEAT] = [27] if self.due or self.waiting else []
        return await super().heartbeat(request)

    async def leave(self, request: Any) -> Any:
        self.joined -= {each.member_id for each in request.members}
        self.due = True
        self._try()
        return await super().leave(request)

    def _try(self) -> None:
        """A new generation, once all members wait for it."""
        if self.waiting.keys() != self.joined:
            return
        self.due = False
        self._assign()
        self.generation += 1
        self.waiting = {}
        self.complete.set()
        self.complete = asyncio.Event()

    def _assign(self) -> None:
        claims = {"java": (self.java, self.generation)}
        for member, data in self.waiting.items():
            said = Subscription.decode(data)
            # v1 is the newest that it reads; without a readable generation there is none
            user_data = said.user_data or b""
            claims[member] = said.owned, int.from_bytes(user_data, "big", signed=True) if len(user_data) == 4 else -1
        newest = max(generation for _, generation in claims.values())
        counted = {member: parts if since == newest else tp() for member, (parts, since) in claims.items()}
        most = -(-len(ALL) // len(claims))
        self.given = {member: frozenset(sorted(parts)[:most]) for member, parts in counted.items()}
        # a partition that must move is assigned after its owner has rejoined without it; free partitions at once
        for partition in sorted(ALL - frozenset().union(*counted.values())):
            taker = min(self.given, key=lambda member: (len(self.given[member]), member))
            self.given[taker] |= {partition}
        self.java = self.given["java"]


def member(broker: JavaLed, name: str, history: History) -> Ours:
    return Ours(
        broker.address, "g", ["t"], name=name, history=history, assignors=["cooperative-sticky"], timing=dict(FAST)
    )


async def test_under_a_java_leader_nobody_begins_with_what_another_drains() -> None:
    history = History()
    async with JavaLed() as broker, member(broker, "a", history) as a:
        await wait_until_async(lambda: len(a.held) == 3, 30, "the part of a")
        a.owner.may_drain.clear()
        async with member(broker, "b", history) as b:
            await wait_until_async(lambda: a.owner.draining.is_set(), 30, "the release")
            try:
                await wait_until_async(lambda: b.membership.generation == broker.generation, 30, "the generation of b")
                assert not b.held & a.held
            finally:
                a.owner.may_drain.set()
            await wait_until_async(
                lambda: len(a.held) == len(b.held) == 2 and a.held | b.held | broker.java == ALL,
                30,
                lambda: f"all partitions shared: {sorted(a.held)}, {sorted(b.held)}, {sorted(broker.java)}",
            )
        await wait_until_async(lambda: len(a.held) == 3, 30, "what b left")
        assert a.owner.lost_partitions == b.owner.lost_partitions == frozenset()
    assert history.overlaps() == []
