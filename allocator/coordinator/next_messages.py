"""What a member of the next-generation protocol says: the heartbeat that has the news, or everything, or farewell."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

from allocator.coordinator.find import Coordinator
from allocator.coordinator.leave import LEAVE_WITHIN_S
from allocator.coordinator.next_settings import Ids, NextSettings
from allocator.coordinator.reactions import NEXT_LEAVE, Reaction, react
from allocator.errors import BrokerError
from allocator.wire.consumer_heartbeat import compose, parse

__all__ = ["JOINS", "Said", "heartbeat", "say_goodbye"]

log = logging.getLogger(__name__)

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2  # in place of an epoch


class Said(NamedTuple):
    """What the coordinator was told of a member."""

    topics: frozenset[str]
    owned: Ids


def heartbeat(group: str, member_id: str, epoch: int, said: Said, heard: Said | None, settings: NextSettings) -> Any:
    """In full if the coordinator is not known to have heard anything, which has it repeat the assignment; else what
    is new since `heard`."""
    if heard is None:
        return compose(
            group,
            member_id,
            epoch,
            instance_id=settings.instance_id,
            rack=settings.rack,
            rebalance_timeout_s=settings.rebalance_timeout_s,
            topics=said.topics,
            assignor=settings.server_assignor,
            owned=said.owned,
        )
    return compose(
        group,
        member_id,
        epoch,
        instance_id=settings.instance_id,
        topics=said.topics if said.topics != heard.topics else None,
        owned=said.owned if said.owned != heard.owned else None,
    )


async def say_goodbye(coordinator: Coordinator, group: str, member_id: str, settings: NextSettings, why: str) -> None:
    """Leaves, a static member for a while. Repeated while that may help, for `LEAVE_WITHIN_S` at most; a failure is
    logged and no more."""
    deadline = time.monotonic() + LEAVE_WITHIN_S
    epoch = LEAVES if settings.instance_id is None else LEAVES_FOR_A_WHILE
    while True:
        request = compose(group, member_id, epoch, instance_id=settings.instance_id)
        try:
            code = parse(await coordinator.ask(request, deadline)).code
            reaction = react(NEXT_LEAVE, code) if code else Reaction.DONE
        except BrokerError as error:
            log.debug("%s: cannot leave: %s", group, error)
            reaction = Reaction.RETRY if error.retriable else Reaction.FAIL
        if reaction is Reaction.DONE:
            log.info("%s: %s left: %s", group, member_id, why)
            return
        if reaction is Reaction.REFIND:
            coordinator.forget()
        if reaction is Reaction.FAIL or time.monotonic() >= deadline:
            log.warning("%s: %s did not get to leave; its session will end by itself", group, member_id)
            return
        await asyncio.sleep(settings.retry_backoff_s)
