"""Deletes a group without members: its znodes, and its committed offsets in Kafka.

One transaction deletes all znodes. It fails if a member has joined since they were listed, because ZooKeeper deletes no
znode that has children. Kafka's coordinator refuses to delete a group with members of its own protocols.
Protocol: DeleteGroups (KIP-229, from Kafka 1.1 on).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Optional

from kafka.protocol.admin import DeleteGroupsRequest

from allocator.core.client import KafkaClient, for_code
from allocator.core.offsets import Coordinator, GroupOffsets
from allocator.core.znodes import Paths
from allocator.core.zookeeper import ConnectionLost, NoZnode, Op, ZooKeeperClient, ZooKeeperError
from allocator.errors import AllocatorError
from allocator.operate.clusters import Clusters
from allocator.operate.group_reader import describe
from allocator.operate.group_report import listed
from allocator.operate.kafka_describe import kafka_group
from allocator.operate.layouts import old_layouts

TRIES = 3  # attempts. more: tolerates more changes of the group during the deletion; less: fails sooner
GROUP_NOT_FOUND, NON_EMPTY_GROUP = 69, 68
OLD_BROKERS = "brokers before Kafka 1.1 cannot delete them; they expire after offsets.retention.minutes"


class GroupHasMembers(AllocatorError):
    """The group still has members. Nothing was deleted."""

    retriable = True


class NothingToDelete(AllocatorError):
    """Neither ZooKeeper nor Kafka has data of the group."""


@dataclass(frozen=True)
class GroupRemains:
    """The stored data of a group, and what prevents its deletion."""

    group: str
    members: tuple[str, ...] = ()
    """Names of the live members, of each protocol. They prevent the deletion."""
    znodes: tuple[str, ...] = ()
    """Paths of the znodes to delete, children before their parents."""
    committed: Optional[int] = None
    """Partitions with a committed offset in Kafka; None if no broker was queried."""
    offsets_stay: str = ""
    """Why the committed offsets are kept; "" if they are deleted."""

    @property
    def some_members(self) -> str:
        return listed(self.members)

    def to_json(self, *, executed: bool) -> dict[str, Any]:
        """A JSON object: "group", "executed", "members_alive" (names), "znodes" (count), "committed" (count of
        partitions with a committed offset), "offsets_stay"."""
        found: dict[str, Any] = {**vars(self), "executed": executed, "znodes": len(self.znodes)}
        found["members_alive"] = list(found.pop("members"))
        return found


async def remains(
    zk: Optional[ZooKeeperClient], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """Lists what `delete_group` would delete. If a client is None, it skips that cluster. Raises NothingToDelete."""
    members: list[str] = []
    znodes: list[str] = []
    if zk is not None:
        state = await describe(zk, group, root)
        znodes, live = await _tree(zk, Paths(root, group).base)
        # a member whose member znode was deleted by hand keeps working while its claim exists
        names = dict.fromkeys(path.rpartition("/")[2] for path in live)
        members += [name if state is None else state.name_of(name) for name in names]
        older = await old_layouts(zk, group)
        members += [*older.kiel, *older.consumers]
    committed, stay = None, "the brokers are not known here"
    if client is not None:
        found = await kafka_group(client, group)
        if found is not None:
            members += map(found.name_of, found.members)
        committed = len(await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None))
        stay = "" if client.api_version(DeleteGroupsRequest) is not None else OLD_BROKERS
    if keep_offsets:
        stay = "as you asked"
    if not (members or znodes or committed):
        raise NothingToDelete(f"there are neither znodes of group {group!r} under {root} nor offsets in Kafka")
    return GroupRemains(group, tuple(members), tuple(znodes), committed, stay)


async def delete(clusters: Clusters, group: str, *, keep_offsets: bool = False, execute: bool = False) -> GroupRemains:
    """Deletes a group, or only reports what a delete removes. Raises GroupHasMembers, NothingToDelete."""
    async with contextlib.AsyncExitStack() as stack:
        asked = clusters.zookeeper is not None or clusters.brokers is None
        zk = await stack.enter_async_context(clusters.ensemble()) if asked else None
        client = None if clusters.brokers is None else await stack.enter_async_context(clusters.cluster())
        work = delete_group if execute else remains
        return await work(zk, client, group, clusters.root, keep_offsets=keep_offsets)


async def delete_group(
    zk: Optional[ZooKeeperClient], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """Deletes the znodes and the committed offsets of a group, and returns them.

    Raises GroupHasMembers if the group has members, and deletes nothing then. It deletes the znodes before the offsets.
    If a member joins at the same time, either the deletion fails, or the member still finds its committed offsets.
    """
    for attempt in range(TRIES):
        found = await remains(zk, client, group, root, keep_offsets=keep_offsets)
        if found.members:
            raise GroupHasMembers(
                f"group {group!r} has members: {found.some_members}; stop them first. Nothing was deleted"
            )
        try:
            if zk is not None and found.znodes:
                await zk.multi([Op("delete", path) for path in found.znodes])
            break
        # a znode was created or deleted since the listing: a member joined, or another client deletes the same group
        except ZooKeeperError as error:
            if attempt == TRIES - 1 or isinstance(error, ConnectionLost):
                raise
    if client is not None and found.committed and not found.offsets_stay:
        await _delete_offsets(client, found)
    return found


async def _tree(zk: ZooKeeperClient, path: str) -> tuple[list[str], list[str]]:
    """Returns (persistent paths, ephemeral paths) at and below `path`; in the first, children precede their parents.

    Ephemeral znodes belong to members. The transaction must not delete them: it fails if one exists.
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
        answer = await coordinator.send(DeleteGroupsRequest(groups_names=[found.group]), deadline)
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
        coordinator.forget(coordinator.node)  # the coordinator moved, or is loading its offsets
        await asyncio.sleep(client.retry_backoff_s)
