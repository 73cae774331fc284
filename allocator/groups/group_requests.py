"""Requests that the coordinator holds back until other members have sent theirs, and giving up on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import LEAVE, GroupReaction, react
from allocator.errors import AllocatorError, BrokerError
from allocator.groups.kafka_classic.messages import (
    MEMBER_ID_FIRST,
    join_request,
    leave_code,
    leave_request,
    sync_request,
)
from allocator.groups.kafka_classic.settings import KafkaGroupSettings
from allocator.offsets.coordinator import MAX_VERSION, Coordinator
from allocator.offsets.messages import Identity
from allocator.tasks import within

__all__ = ["LEAVE_WITHIN_S", "Interrupted", "SlowRequests", "leave_group", "unless"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Interrupted(Exception):
    """What was waited for does not matter any more. Never leaves this room."""

    def __init__(self, member_id: str = "") -> None:
        super().__init__(member_id)
        self.member_id = member_id
        """Of the member that the coordinator made meanwhile."""


async def unless(work: Coroutine[Any, Any, T], *events: asyncio.Event) -> T:
    """The result of `work`; raises `Interrupted` if one of the events comes first, and then `work` has ended."""
    task = asyncio.ensure_future(work)
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait({task, *waits}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Interrupted
    finally:
        pending = [each for each in (task, *waits) if not each.done()]
        for each in pending:
            each.cancel()
        if pending:
            await asyncio.wait(pending)
        if not task.cancelled():
            task.exception()  # seen: an interruption counts for more


class SlowRequests:
    """Sends JoinGroup and SyncGroup, which go over a connection of their own, one at a time.

    A coordinator may hold them back for the whole rebalance timeout, so that its silence there says nothing. On the
    other connection it answers at once, or it hangs; then it is looked for anew, and what it holds back is given up as
    soon as another broker coordinates the group. Heartbeats find that out, if they are sent meanwhile
    (`heartbeats_go`); while there is no generation to send them for (a first join), small requests of ours do.
    """

    def __init__(
        self,
        client: KafkaClient,
        coordinator: Coordinator,
        group: str,
        protocol_type: str,
        settings: KafkaGroupSettings,
        heartbeats_go: Callable[[], bool],
    ) -> None:
        self._heartbeats_go = heartbeats_go
        self._client = client
        self._coordinator = coordinator
        self._group = group
        self._protocol_type = protocol_type
        self._settings = settings

    @property
    def _patience_s(self) -> float:
        return max(self._client.request_timeout_s, self._settings.rebalance_timeout_s + 5)

    async def join(self, member_id: str, offers: Sequence[tuple[str, bytes]], why: str, *events: asyncio.Event) -> Any:
        """The answer to a JoinGroup. Raises as `ask`."""
        request = join_request(
            self._group,
            Identity(-1, member_id, self._settings.instance_id),
            self._protocol_type,
            offers,
            session_timeout_s=self._settings.session_timeout_s,
            rebalance_timeout_s=self._settings.rebalance_timeout_s,
            reason=why,
        )
        return await self.ask(request, self._patience_s, *events, nameless=not member_id)

    async def sync(self, who: Identity, protocol: str, given: Mapping[str, bytes], *events: asyncio.Event) -> Any:
        """The answer to a SyncGroup: the others wait for the leader, who computes. Raises as `ask`."""
        request = sync_request(self._group, who, self._protocol_type, protocol, given)
        return await self.ask(request, self._patience_s, *events)

    async def ready(self, *events: asyncio.Event) -> None:
        """Until the coordinator is known: what it answers proves nothing of the time before it was asked."""
        await unless(self._coordinator.find(time.monotonic() + self._patience_s), *events)

    async def ask(self, request: Any, patience_s: float, *events: asyncio.Event, nameless: bool = False) -> Any:
        """The coordinator's answer. Raises `BrokerError`, or `Interrupted` when one of the events comes first.

        `nameless`: a JoinGroup without a member id.
        """
        deadline = time.monotonic() + patience_s
        node = await unless(self._coordinator.find(deadline), *events)
        moved = asyncio.Event()
        ask = asyncio.ensure_future(self._coordinator.ask(request, deadline, patience_s))
        watch = asyncio.ensure_future(self._watch(node, moved))
        try:
            return await unless(_result(ask), *events, moved)
        except Interrupted:
            old = (self._client.api_version(JoinGroupRequest) or 0) < MEMBER_ID_FIRST
            if nameless and old and not moved.is_set():
                # such brokers have a member by now whose name we do not know, and the group would wait for it
                with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
                    raise Interrupted((await within(_result(ask), LEAVE_WITHIN_S)).member_id) from None
            raise
        finally:
            unanswered = not ask.done()
            for task in (ask, watch):
                task.cancel()
            await asyncio.wait({ask, watch})
            if unanswered and node is not None:
                self._client.hang_up(node, JoinGroupRequest)  # or the next one waits for this one's answer
            for task in (ask, watch):
                if not task.cancelled():
                    task.exception()  # seen: what was waited for counts for more

    async def _watch(self, node: int | None, moved: asyncio.Event) -> None:
        """Sets `moved` once the coordinator is another one than `node`, and ends."""
        settings = self._settings
        while True:
            await asyncio.sleep(settings.heartbeat_interval_s)
            if not self._heartbeats_go():
                # what every version answers at once
                question = FindCoordinatorRequest(key=self._group, max_version=MAX_VERSION)
                with contextlib.suppress(BrokerError):  # by then the coordinator is forgotten
                    await self._coordinator.ask(question, time.monotonic() + settings.session_timeout_s / 3)
            if self._coordinator.node not in (None, node):
                log.info("%s: the coordinator moved while it was to answer us", self._group)
                moved.set()
                return


async def _result(future: asyncio.Future[T]) -> T:
    """Waits for `future` without ending it when cancelled."""
    return await asyncio.shield(future)


# -- leave ----------
# Leaving a group, so that the others need not wait for a session to end.


LEAVE_WITHIN_S = 3.0  # more: closing waits longer for a coordinator that is away; less: the group waits for our session


async def leave_group(coordinator: Coordinator, group: str, who: Identity, why: str, retry_backoff_s: float) -> None:
    """LeaveGroup, repeated while that may help, for `LEAVE_WITHIN_S` at most; a failure is logged and no more."""
    deadline = time.monotonic() + LEAVE_WITHIN_S
    while True:
        try:
            code = leave_code(await coordinator.ask(leave_request(group, who, why), deadline))
            reaction = react(LEAVE, code) if code else GroupReaction.DONE
        except BrokerError as error:
            log.debug("%s: cannot leave: %s", group, error)
            reaction = GroupReaction.RETRY if error.retriable else GroupReaction.FAIL
        if reaction is GroupReaction.DONE:
            log.info("%s: %s left: %s", group, who.member_id, why)
            return
        if reaction is GroupReaction.REFIND:
            coordinator.forget()
        if reaction is GroupReaction.FAIL or time.monotonic() >= deadline:
            log.warning("%s: %s did not get to leave; its session will end by itself", group, who.member_id)
            return
        await asyncio.sleep(retry_backoff_s)
