"""Follows one group that uses Kafka's own protocols: polls its members, and reads new operator commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Optional

from allocator.commands import Commands
from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.operate import Coordinated, GroupState, kafka_group
from allocator.protocols import CommandTopic


class KafkaGroupWatch:
    """Polls one group's coordinator with one request each time, and fetches the group's command topic.

    `known` is the group's last state from an earlier connection. Calls `changed` when the commands change.
    """

    def __init__(
        self,
        name: str,
        client: KafkaClient,
        brokers: str,
        security: Optional[Mapping[str, Any]],
        known: Optional[GroupState],
        changed: Callable[[GroupState], None],
    ) -> None:
        self.name = name
        self._client = client
        self._topic = CommandTopic(brokers, name, security=security, timeout_s=client.request_timeout_s)
        self._changed = changed
        self._state = known
        self._commands = Commands() if known is None else known.commands

    async def poll(self) -> Optional[GroupState]:
        """Returns the present state; None if Kafka has neither members nor offsets of the group.

        If the coordinator refuses or does not respond, returns the last known state with that problem.
        """
        try:
            self._state = await kafka_group(self._client, self.name) or await self._without_members()
        except AllocatorError as error:
            if self._state is None and error.retriable:
                return None  # the broker may have just started
            known = self._state or GroupState(self.name, {}, {}, None, coordinated=Coordinated("", ""))
            self._state = replace(known, problems=(f"the members are not known: {error}",))
        return self._with_commands()

    async def _without_members(self) -> Optional[GroupState]:
        """Returns the state of a group that has only offsets, which the coordinator does not describe; None without."""
        offsets = await GroupOffsets(self._client, self.name, timeout_s=self._client.request_timeout_s).fetch(None)
        return GroupState(self.name, {}, {}, None, coordinated=Coordinated("Empty", "")) if offsets else None

    async def follow_commands(self) -> None:
        """Fetches new commands until cancelled."""
        await self._topic.follow(self._client, self._learn_commands, asyncio.Event())

    def _learn_commands(self, commands: Commands, _: CommandTopic) -> None:
        self._commands = commands
        state = self._with_commands()
        if state is not None:
            self._changed(state)

    def _with_commands(self) -> Optional[GroupState]:
        return None if self._state is None else replace(self._state, commands=self._commands, read_ms=wall_ms())
