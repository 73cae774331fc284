"""Adds, lists and withdraws the operator commands of a group that uses Kafka's own protocols, without joining it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from allocator.commands import OWNERS_KINDS, CommandKeeper
from allocator.core.client import KafkaClient
from allocator.core.settings import names_arguments
from allocator.errors import CommandRefused
from allocator.operate.command_check import check_partitions
from allocator.operate.group_commands import NOT_OURS, CommandsFromOutside
from allocator.operate.group_report import GroupState
from allocator.operate.kafka_describe import kafka_group
from allocator.protocols import CommandTopic


class CommandsOfKafkaGroup(CommandsFromOutside):
    """The operator commands of a group that uses Kafka's own protocols. The caller opens and closes the connection."""

    def __init__(self, client: KafkaClient, commands: CommandKeeper, group: str, who: str | None = None) -> None:
        super().__init__(commands, group, who, partial(check_partitions, client))
        self._client = client

    def _check_kind(self, kind: str) -> None:
        if kind not in OWNERS_KINDS:
            raise CommandRefused(f"group {self._group!r} uses one of Kafka's group protocols. {NOT_OURS}")

    async def _state(self) -> GroupState:
        found = await kafka_group(self._client, self._group) or GroupState(self._group, {}, {}, None)
        # Kafka does not report the kinds of commands that a member knows
        return replace(found, members={m: replace(info, commands=OWNERS_KINDS) for m, info in found.members.items()})


@names_arguments
class KafkaGroupCommands(CommandsOfKafkaGroup):
    """Adds, lists and withdraws operator commands of one group with membership "kafka": pause, skip, quarantine, seek.

        async with KafkaGroupCommands("b1:9092", "billing", create=True) as commands:
            await commands.pause([TopicPartition("orders", 3)], why="its customer asked for it")

    The commands are in the compacted topic `<group>.orders`. With `create`, the first command creates it. Each command
    has `who` (default user@host), the time and `why`, and expires after `expires_s` seconds. Kafka's coordinator
    assigns the partitions, so commands about members and assignments raise CommandRefused.

    Members of older versions and of other clients ignore the commands, and Kafka does not report which members those
    are. `timeout_s`: seconds for the brokers to respond.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        group: str,
        *,
        security: Mapping[str, Any] | None = None,
        who: str | None = None,
        create: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        topic = CommandTopic(brokers, group, security=security, create=create, timeout_s=timeout_s)
        super().__init__(KafkaClient(brokers, security=security, request_timeout_s=timeout_s), topic, group, who)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> KafkaGroupCommands:
        try:
            await self._client.connect(self._timeout_s)
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
