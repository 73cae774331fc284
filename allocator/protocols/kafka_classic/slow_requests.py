"""Sends JoinGroup and SyncGroup, whose responses the coordinator delays until all members have sent these requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest

from allocator.core.aio import start_task, within
from allocator.core.client import Coordinator, Identity, KafkaClient
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.kafka_classic.messages import MAX_REASON, MEMBER_ID_FIRST
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.protocols.kafka_group import LEAVE_WITHIN_S, Interrupted, unless

log = logging.getLogger(__name__)


@dataclass(eq=False)
class SlowRequests:
    """Sends JoinGroup and SyncGroup, one at a time, over a connection of their own.

    A coordinator may delay the responses for the whole rebalance timeout, so a silent connection does not mean that it
    has failed. Heartbeats on another connection show whether the coordinator is alive and still coordinates the group.
    While there is no generation to send heartbeats for (`heartbeats_go` returns False), this class sends small requests
    instead. As soon as another broker coordinates the group, it cancels the delayed request.
    """

    client: KafkaClient
    coordinator: Coordinator
    group: str
    protocol_type: str
    settings: KafkaSettings
    heartbeats_go: Callable[[], bool]

    @property
    def _patience_s(self) -> float:
        return max(self.client.request_timeout_s, self.settings.rebalance_timeout_s + 5)

    async def join(self, member_id: str, offers: Sequence[tuple[str, bytes]], why: str, *events: asyncio.Event) -> Any:
        """Returns the response to a JoinGroup. Raises the errors of `send`. `offers`: pairs of assignor name and the
        member's metadata, the preferred assignor first.
        """
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=round(self.settings.session_timeout_s * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout_s * 1000),
            member_id=member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offers],
            reason=why[:MAX_REASON],
            max_version=9,
        )
        return await self.send(request, self._patience_s, *events, nameless=not member_id)

    async def sync(
        self, member: Identity, protocol: str, assignments: Mapping[str, bytes], *events: asyncio.Event
    ) -> Any:
        """Returns the response to a SyncGroup, which waits for the leader's assignment. Raises the errors of `send`.
        `assignments`: member id -> assignment, from the leader; empty from the other members.
        """
        entry = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=protocol,
            assignments=[entry(member_id=each, assignment=data) for each, data in assignments.items()],
            max_version=5,
        )
        return await self.send(request, self._patience_s, *events)

    async def ready(self, *events: asyncio.Event) -> None:
        """Finds the coordinator. Call it before a request's start time is taken, because the lookup may take long."""
        await unless(self.coordinator.find(time.monotonic() + self._patience_s), *events)

    async def send(self, request: Any, patience_s: float, *events: asyncio.Event, nameless: bool = False) -> Any:
        """Returns the coordinator's response. Raises `BrokerError`, or `Interrupted` if one of the events is set first.

        `nameless`: whether the request is a JoinGroup without a member id.
        """
        deadline = time.monotonic() + patience_s
        node = await unless(self.coordinator.find(deadline), *events)
        moved = asyncio.Event()
        sending = start_task(self.coordinator.send(request, deadline, patience_s))
        watch = start_task(self._watch(node, moved))
        try:
            return await unless(asyncio.shield(sending), *events, moved)
        except Interrupted:
            old = (self.client.api_version(JoinGroupRequest) or 0) < MEMBER_ID_FIRST
            if nameless and old and not moved.is_set():
                # an old broker has created a member whose id this process does not know, and the group would wait for
                # it
                with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
                    raise Interrupted((await within(asyncio.shield(sending), LEAVE_WITHIN_S)).member_id) from None
            raise
        finally:
            pending = not sending.done()
            for task in (sending, watch):
                task.cancel()
            await asyncio.wait({sending, watch})
            if pending and node is not None:
                self.client.hang_up(node, JoinGroupRequest)  # otherwise the next request would wait for this response
            for task in (sending, watch):
                if not task.cancelled():
                    task.exception()  # marks it as retrieved, because the interruption takes precedence

    async def _watch(self, node: int | None, moved: asyncio.Event) -> None:
        """Sets `moved` and returns as soon as another broker than `node` coordinates the group."""
        settings = self.settings
        while True:
            await asyncio.sleep(settings.heartbeat_interval_s)
            if not self.heartbeats_go():
                with contextlib.suppress(BrokerError):  # the next request finds the coordinator again
                    await self.coordinator.probe(time.monotonic() + settings.session_timeout_s / 3)
            if self.coordinator.node not in (None, node):
                log.info("%s: the coordinator moved while a request was pending", self.group)
                moved.set()
                return
