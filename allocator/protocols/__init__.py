"""The memberships: this project's own over ZooKeeper, Kafka's two, those of older libraries, and one without a group.

`command_topic` stores the operator commands of groups that use Kafka's own protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.protocols.command_topic import CommandTopic, changes_commands, commands_topic


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(__name__, {"command_topic": "CommandTopic changes_commands commands_topic"})
