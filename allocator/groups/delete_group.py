"""Deletes a group without members: its znodes, and its committed offsets in Kafka.

One transaction deletes all znodes. It fails if a member has joined since they were listed, because ZooKeeper deletes no
znode that has children. Kafka's coordinator refuses to delete a group with members of its own protocols.
Protocol: DeleteGroups (KIP-229, from Kafka 1.1 on).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Optional

from kafka.protocol.admin import DeleteGroupsRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import for_code
from allocator.errors import AllocatorError
from allocator.groups import kafka_describe
from allocator.groups.describe import describe
from allocator.groups.legacy.describe import old_layouts
from allocator.groups.zookeeper.znodes import Paths
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.group_offsets import GroupOffsets
from allocator.zookeeper.client import ConnectionLost, NoZnode, Op, ZooKeeper, ZooKeeperError

__all__ = ["GroupHasMembers", "GroupRemains", "NothingToDelete", "delete_group", "remains"]

TRIES = 3  # more: a group that changes all the time is read more often before the error
SHOWN = 5  # names in an error
GROUP_NOT_FOUND, NON_EMPTY_GROUP = 69, 68
OLD_BROKERS = "brokers before Kafka 1.1 cannot delete them; they expire after offsets.retention.minutes"


class GroupHasMembers(AllocatorError):
    """A group with members cannot be deleted. Nothing was deleted."""

    retriable = True


class NothingToDelete(AllocatorError):
    """The servers have neither znodes nor offsets of the group."""


@dataclass(frozen=True)
class GroupRemains:
    """What is left of a group, and what prevents its deletion."""

    group: str
    members: tuple[str, ...] = ()
    """Names of the live members, of each protocol. They prevent the deletion."""
    znodes: tuple[str, ...] = ()
    """Paths, children before their parents."""
    committed: Optional[int] = None
    """Partitions with a committed offset in Kafka; None if no broker was asked."""
    offsets_stay: str = ""
    """Why the committed offsets stay; "" if they are deleted."""

    @property
    def some_members(self) -> str:
        more = f" and {len(self.members) - SHOWN} more" if len(self.members) > SHOWN else ""
        return ", ".join(self.members[:SHOWN]) + more

    def to_json(self, *, executed: bool) -> dict[str, Any]:
        """{"group", "executed", "members_alive", "znodes", "committed", "offsets_stay"}: names of members, numbers of
        znodes and of partitions with a committed offset."""
        return {
            "group": self.group,
            "executed": executed,
            "members_alive": list(self.members),
            "znodes": len(self.znodes),
            "committed": self.committed,
            "offsets_stay": self.offsets_stay,
        }


async def remains(
    zk: Optional[ZooKeeper], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """What `delete_group` would delete. None: that cluster is not asked. Raises NothingToDelete."""
    members: list[str] = []
    znodes: list[str] = []
    if zk is not None:
        state = await describe(zk, group, root)
        znodes, live = await _tree(zk, Paths(root, group).base)
        # a member whose own znode was deleted works on while its claim exists
        names = dict.fromkeys(path.rpartition("/")[2] for path in live)
        members += [name if state is None else state.name_of(name) for name in names]
        older = await old_layouts(zk, group)
        members += [*older.kiel, *older.consumers]
    committed, stay = None, "the brokers are not known here"
    if client is not None:
        found = await kafka_describe.group(client, group)
        if found is not None:
            members += [member.name for member in found.members]
        committed = len(await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None))
        stay = "" if client.api_version(DeleteGroupsRequest) is not None else OLD_BROKERS
    if keep_offsets:
        stay = "as you asked"
    if not (members or znodes or committed):
        raise NothingToDelete(f"there are neither znodes of group {group!r} under {root} nor offsets in Kafka")
    return GroupRemains(group, tuple(members), tuple(znodes), committed, stay)


async def delete_group(
    zk: Optional[ZooKeeper], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """Deletes the group; returns what was deleted. Raises GroupHasMembers, and deletes nothing then.

    The znodes are deleted first. So a member that joins meanwhile reads from its committed offsets, or keeps the group.
    """
    for attempt in range(TRIES):
        found = await remains(zk, client, group, root, keep_offsets=keep_offsets)
        _refuse(found)
        try:
            if zk is not None and found.znodes:
                await zk.multi([Op("delete", path) for path in found.znodes])
            break
        except ConnectionLost:
            raise
        except ZooKeeperError:  # a znode came or went: a member joined, or another client deletes the group too
            if attempt == TRIES - 1:
                raise
    if client is not None and found.committed and not found.offsets_stay:
        await _delete_offsets(client, found)
    return found


def _refuse(found: GroupRemains) -> None:
    if found.members:
        raise GroupHasMembers(
            f"group {found.group!r} has members: {found.some_members}; stop them first. Nothing was deleted"
        )


async def _tree(zk: ZooKeeper, path: str) -> tuple[list[str], list[str]]:
    """The persistent znodes from here on, children before their parents; and the ephemeral ones, which are a member's.

    The transaction must not contain these: so it fails if one of them exists.
    """
    try:
        children, stat = await asyncio.gather(zk.get_children(path), zk.exists(path))
    except NoZnode:
        return [], []
    if stat is None:
        return [], []
    if stat.owner:
        return [], [path]
    persistent, live = [], []
    for below in await asyncio.gather(*(_tree(zk, f"{path}/{child}") for child in sorted(children))):
        persistent += below[0]
        live += below[1]
    return [*persistent, path], live


async def _delete_offsets(client: KafkaClient, found: GroupRemains) -> None:
    coordinator = Coordinator(client, found.group, client.retry_backoff_s)
    deadline = time.monotonic() + client.request_timeout_s
    while True:
        answer = await coordinator.ask(DeleteGroupsRequest(groups_names=[found.group]), deadline)
        code = answer.results[0].error_code
        if code in (0, GROUP_NOT_FOUND):
            return
        if code == NON_EMPTY_GROUP:
            raise GroupHasMembers(
                f"a member joined group {found.group!r} over Kafka's coordinator meanwhile; its offsets are kept"
            )
        error = for_code(code, f"group {found.group!r}")
        if not error.retriable or time.monotonic() > deadline:
            raise error
        coordinator.forget(coordinator.node)  # it moved, or is loading
        await asyncio.sleep(client.retry_backoff_s)
