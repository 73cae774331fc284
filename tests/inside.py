"""Parts of a consumer that no public method shows. Other tests reach them through this file only."""

from __future__ import annotations

from typing import Any

from allocator.core.consumer import GroupMember
from allocator.operate.switching import ChoiceWatcher, SwitchingConsumer
from allocator.protocols.zookeeper.client.client import ZooKeeperClient

__all__ = ["member_of", "session_of", "watcher_of"]


def member_of(consumer: Any) -> GroupMember:
    """Returns the member of a consumer of any kind. Tests read its lease there: `consumer.may_act` refuses records."""
    member: GroupMember = (consumer._consumer if isinstance(consumer, SwitchingConsumer) else consumer)._member
    return member


def watcher_of(consumer: Any) -> ChoiceWatcher:
    """Returns what follows the choice of the group's cluster."""
    watcher: ChoiceWatcher = consumer._watcher
    return watcher


def session_of(part: Any) -> ZooKeeperClient:
    """Returns the ZooKeeper client of a membership or a watcher."""
    zk: ZooKeeperClient = part._zk
    return zk
