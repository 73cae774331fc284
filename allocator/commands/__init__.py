"""What operators order a group to do: the commands, and how a member carries out those about its partitions.

`command` defines the commands and their stored form, without I/O. `operator_commands` applies them to one consumer. The
leader of a group on ZooKeeper obeys the others: `protocols.zookeeper.steering`.
"""

from __future__ import annotations

from allocator.commands.command import (
    KINDS,
    LEADERS_KINDS,
    NOT_KEPT,
    OWNERS_KINDS,
    Command,
    CommandKeeper,
    CommandResult,
    Commands,
    last_reports,
)
from allocator.commands.operator_commands import OperatorCommands
