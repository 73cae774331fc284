"""A scripted coordinator of a group with one real member, and a participant that records its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fake_broker import MODERN, SILENT, FakeBroker
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from run_group import RunGroup

from allocator.core.client.client import KafkaClient
from allocator.protocols.kafka_classic.group import GroupCoordinator
from allocator.protocols.kafka_classic.messages import JoinedMember
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.testing import wait_until_async

FAST = {"session_timeout_s": 30.0, "heartbeat_interval_s": 0.02, "retry_backoff_s": 0.001, "failure_pause_s": 0.02}


class GroupBroker(FakeBroker):
    """`codes[api key]` are the codes of its next answers; `gates[api key]` holds answers back until it is set."""

    def __init__(self, versions: Mapping[int, tuple[int, int]] | None = None) -> None:
        handlers = {11: self.join, 12: self.heartbeat, 13: self.leave, 14: self.sync}
        super().__init__(handlers, versions={**MODERN, **(versions or {})})
        self.codes: dict[int, list[int]] = {11: [], 12: [], 13: [], 14: []}
        self.gates: dict[int, asyncio.Event] = {}
        self.silent: set[int] = set()
        self.generation = 0
        self.members = 0
        self.leads = True
        self.chooses: str | None = None  # None: the protocol that the member prefers

    def requests(self, key: int) -> list[Any]:
        return [request for request in self.seen if key == request.API_KEY]

    async def _code(self, key: int, scripted: bool = True) -> Any:
        if key in self.silent:
            return SILENT
        if key in self.gates:
            await self.gates[key].wait()
        return self.codes[key].pop(0) if scripted and self.codes[key] else 0

    async def join(self, request: Any) -> Any:
        code = await self._code(11)
        if code is SILENT:
            return SILENT
        member_id = request.member_id
        if not member_id:
            self.members += 1
            member_id = f"member-{self.members}"
            if request.API_VERSION >= 4 and request.group_instance_id is None and code == 0:
                code = 79
        members = []
        if code == 0:
            self.generation += 1
            if self.leads:
                members = [
                    JoinGroupResponse.JoinGroupResponseMember(
                        member_id=member_id,
                        group_instance_id=request.group_instance_id,
                        metadata=request.protocols[0].metadata,
                    )
                ]
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            generation_id=self.generation if code == 0 else -1,
            protocol_type=request.protocol_type,
            protocol_name=self.chooses or request.protocols[0].name,
            leader=member_id if self.leads else "another",
            skip_assignment=False,
            member_id=member_id,
            members=members,
            version=request.API_VERSION,
        )

    async def sync(self, request: Any) -> Any:
        code = await self._code(14)
        if code is SILENT:
            return SILENT
        given = {a.member_id: a.assignment for a in request.assignments}
        return SyncGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=given.get(request.member_id, b"") if code == 0 else b"",
            version=request.API_VERSION,
        )

    async def heartbeat(self, request: Any) -> Any:
        # one of an earlier generation that is late: its answer is ignored, so it must not take a code
        code = await self._code(12, request.generation_id == self.generation)
        if code is SILENT:
            return SILENT
        return HeartbeatResponse(throttle_time_ms=0, error_code=code, version=request.API_VERSION)

    async def leave(self, request: Any) -> Any:
        code = await self._code(13)
        if code is SILENT:
            return SILENT
        members = [
            LeaveGroupResponse.MemberResponse(member_id=m.member_id, group_instance_id=None, error_code=code)
            for m in request.members or ()
        ]
        group_code = 0 if members else code
        return LeaveGroupResponse(
            throttle_time_ms=0, error_code=group_code, members=members, version=request.API_VERSION
        )


class Recorder:
    """A participant that records its calls; `block` names the call that waits for `go`."""

    protocol_type = "consumer"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: list[BaseException] = []
        self.proofs: list[bool] = []
        self.block = ""
        self.go = asyncio.Event()
        self.wants = b"wants"
        self.prepared = b""
        """The value of `wants` at the last preparation, which the participant offers."""

    async def _note(self, call: str) -> None:
        name = call.split()[0]
        self.calls.append(call)
        if name == self.block:
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.calls.append(f"{name} cancelled")
                raise

    def offers(self) -> Sequence[tuple[str, bytes]]:
        return [("first", self.prepared), ("second", b"")]

    async def prepare(self) -> None:
        self.prepared = self.wants
        await self._note("prepare")

    async def compute_assignment(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        await self._note(f"assign {protocol}")
        return {member.member_id: b"given " + member.metadata for member in members}

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        await self._note(f"joined {generation} {protocol} {assignment.decode()}")

    async def lost(self, why: str) -> None:
        await self._note("lost")

    async def leaving(self) -> None:
        await self._note("leaving")

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        self.proofs.append(rebalancing)

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)

    async def called(self, call: str, times: int = 1) -> None:
        await wait_until_async(
            lambda: sum(c.startswith(call) for c in self.calls) >= times,
            30,
            f"{call} in {self.calls}",
            interval_s=0.002,
        )


class Member(RunGroup):
    """A member of the classic protocol."""

    recorder: Recorder
    group: GroupCoordinator

    def __init__(self, broker: GroupBroker, *, wait: bool = True, **settings: Any) -> None:
        recorder, client = Recorder(), KafkaClient(broker.address)
        group = GroupCoordinator(client, "g", recorder, KafkaSettings(**{**FAST, **settings}))
        super().__init__(client, recorder, group, wait)
