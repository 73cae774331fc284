"""Leaving a group, so that the others need not wait for a session to end."""

from __future__ import annotations

import asyncio
import logging
import time

from allocator.coordinator.find import Coordinator
from allocator.coordinator.group_messages import leave_code, leave_request
from allocator.coordinator.identity import Identity
from allocator.coordinator.reactions import LEAVE, Reaction, react
from allocator.errors import BrokerError

__all__ = ["LEAVE_WITHIN_S", "leave_group"]

log = logging.getLogger(__name__)

LEAVE_WITHIN_S = 3.0  # more: closing waits longer for a coordinator that is away; less: the group waits for our session


async def leave_group(coordinator: Coordinator, group: str, who: Identity, why: str, retry_backoff_s: float) -> None:
    """LeaveGroup, repeated while that may help, for `LEAVE_WITHIN_S` at most; a failure is logged and no more."""
    deadline = time.monotonic() + LEAVE_WITHIN_S
    while True:
        try:
            code = leave_code(await coordinator.ask(leave_request(group, who, why), deadline))
            reaction = react(LEAVE, code) if code else Reaction.DONE
        except BrokerError as error:
            log.debug("%s: cannot leave: %s", group, error)
            reaction = Reaction.RETRY if error.retriable else Reaction.FAIL
        if reaction is Reaction.DONE:
            log.info("%s: %s left: %s", group, who.member_id, why)
            return
        if reaction is Reaction.REFIND:
            coordinator.forget()
        if reaction is Reaction.FAIL or time.monotonic() >= deadline:
            log.warning("%s: %s did not get to leave; its session will end by itself", group, who.member_id)
            return
        await asyncio.sleep(retry_backoff_s)
