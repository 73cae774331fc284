"""A scripted coordinator of a classic group with one member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse

from tests.client.fake_broker import MODERN, SILENT, FakeBroker


class GroupBroker(FakeBroker):
    """`codes[api key]` are the codes of its next responses; `gates[api key]` delays the responses until it is set."""

    def __init__(self, versions: Mapping[int, tuple[int, int]] | None = None) -> None:
        handlers = {11: self.join, 12: self.heartbeat, 13: self.leave, 14: self.sync}
        super().__init__(handlers, versions={**MODERN, **(versions or {})})
        self.codes: dict[int, list[int]] = {11: [], 12: [], 13: [], 14: []}
        self.gates: dict[int, asyncio.Event] = {}
        self.silent: set[int] = set()
        self.generation = 0
        self.members = 0
        self.leads = True

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
            protocol_name=request.protocols[0].name,
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
        assigned = {a.member_id: a.assignment for a in request.assignments}
        return SyncGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assigned.get(request.member_id, b"") if code == 0 else b"",
            version=request.API_VERSION,
        )

    async def heartbeat(self, request: Any) -> Any:
        # the response to a late request of an earlier generation is ignored, so it must not take a code
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
