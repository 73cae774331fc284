"""Deletes a group without members: its znodes, and its committed offsets in Kafka.

Guarantee: a group with members keeps its znodes. One transaction deletes all except the topmost one. It fails if a
member has joined since the listing, because ZooKeeper does not delete a znode that has children. The topmost znode goes
after the offsets, so that the same call finishes a deletion that failed in between. Kafka's coordinator refuses to
delete a group with members of its own protocols. Protocol: DeleteGroups (KIP-229, from Kafka 1.1 on).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any, Optional

from kafka.protocol.admin import DeleteGroupsRequest

from allocator.core.client import Coordinator, ErrorCode, KafkaClient, for_code
from allocator.core.offsets import GroupOffsets
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.group_report import listed
from allocator.operate.kafka_describe import may_delete
from allocator.operate.liveness import MembersAlive, live_members, refuse_members
from allocator.operate.shell_command import ShellCommand
from allocator.protocols.zookeeper import (
    ClusterChoice,
    ConnectionLost,
    NoZnode,
    Op,
    Paths,
    ZooKeeperClient,
    ZooKeeperError,
    choice_path,
    read_choice,
)

TRIES = 3  # attempts. Higher: tolerates more changes during the deletion; lower: fails sooner
NO_RIGHT = (
    "this user may not delete the committed offsets: grant it the right DELETE on the group, or keep the offsets "
    "(--keep-offsets)"
)
OLD_BROKERS = "brokers before Kafka 1.1 cannot delete offsets; they expire after offsets.retention.minutes"


class GroupPaused(AllocatorError):
    """The services of the group wait in a pause. Without its znode they would join again."""

    retriable = True


class NothingToDelete(AllocatorError):
    """Neither ZooKeeper nor Kafka has data of the group."""


@dataclass(frozen=True)
class GroupRemains:
    """The stored data of a group, and the members that prevent its deletion."""

    group: str
    members: tuple[str, ...] = ()
    """Names of the live members of all protocols."""
    znodes: tuple[str, ...] = ()
    """Paths of the znodes to delete, children before their parents."""
    committed: Optional[int] = None
    """Number of partitions with a committed offset in Kafka; None without brokers."""
    offsets_stay: str = ""
    """Why the committed offsets stay; "" if the deletion includes them."""
    offsets_refused: str = ""
    """Why Kafka would refuse to delete the offsets; "" if it would not, or if brokers before 2.3 do not tell."""
    paused: bool = False
    """Whether the group is paused, so that its services wait in no list of members."""
    brokers: Optional[str] = None
    """The cluster choice among the znodes: services that start afterwards use the brokers in their own settings."""

    @property
    def some_members(self) -> str:
        return listed(self.members)

    @property
    def with_offsets(self) -> bool:
        """Whether the deletion deletes committed offsets."""
        return bool(self.committed) and not self.offsets_stay

    def to_json(self, *, executed: bool) -> dict[str, Any]:
        """Returns the fields for JSON: "members_alive" lists the names; "znodes" and "committed" are numbers."""
        found: dict[str, Any] = {**vars(self), "executed": executed, "znodes": len(self.znodes)}
        found["members_alive"] = list(found.pop("members"))
        return found


async def remains(
    zk: Optional[ZooKeeperClient], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """Returns what `delete_group` would delete. Skips a cluster whose client is None. Raises NothingToDelete."""
    members = await live_members(client, [] if zk is None else [zk], group, root)
    znodes: list[str] = []
    choice = ClusterChoice()
    if zk is not None:
        znodes, live = await _tree(zk, Paths(root, group).base)
        with contextlib.suppress(ConfigError):  # of an invalid znode
            choice = await read_choice(zk, choice_path(root, group))
        if live and not members:
            members = live  # another program's ephemeral znodes, which no transaction may delete
    committed, stay = None, "no brokers were given"
    if client is not None:
        committed = len(await GroupOffsets(client, group, timeout_s=client.request_timeout_s).fetch(None))
        stay = "" if client.api_version(DeleteGroupsRequest) is not None else OLD_BROKERS
    if keep_offsets:
        stay = "--keep-offsets was given"
    if not (members or znodes or committed):
        raise NothingToDelete(f"there are neither znodes of group {group!r} under {root} nor offsets in Kafka")
    found = GroupRemains(group, tuple(members), tuple(znodes), committed, stay, "", choice.frozen, choice.brokers)
    if client is not None and found.with_offsets and not await may_delete(client, group):
        found = replace(found, offsets_refused=NO_RIGHT)
    return found


async def delete(clusters: Clusters, group: str, *, keep_offsets: bool = False, execute: bool = False) -> GroupRemains:
    """Deletes a group with `execute`, and otherwise returns what it would delete.

    Raises MembersAlive and GroupPaused (with `execute`), NothingToDelete, and ConfigError if the group may have unknown
    members.
    """
    clusters.need_members_of(group)
    async with contextlib.AsyncExitStack() as stack:
        wanted = clusters.zookeeper is not None or clusters.brokers is None
        zk = await stack.enter_async_context(clusters.ensemble()) if wanted else None
        client = None if clusters.brokers is None else await stack.enter_async_context(clusters.cluster())
        work = delete_group if execute else remains
        return await work(zk, client, group, clusters.root, keep_offsets=keep_offsets)


async def delete_group(
    zk: Optional[ZooKeeperClient], client: Optional[KafkaClient], group: str, root: str, *, keep_offsets: bool = False
) -> GroupRemains:
    """Deletes the znodes and the committed offsets of a group, and returns them.

    Raises MembersAlive or GroupPaused and deletes nothing if the group has members, or is paused. Also deletes nothing
    if the coordinator says that this user may not delete the offsets. Any later error says what was deleted.

    The znodes go first: if a member joins at the same time, then either the deletion fails, or the member still finds
    the committed offsets.
    """
    for attempt in range(TRIES):
        found = await remains(zk, client, group, root, keep_offsets=keep_offsets)
        refuse_members(found.members, group, why="because a deletion removes what they work with")
        if found.paused:
            raise GroupPaused(
                f"group {group!r} is paused: its services wait, and would join again with the brokers in their own "
                "settings. Resume it on the page, or finish or roll back its cutover. Nothing was changed"
            )
        if found.offsets_refused:
            raise BrokerError(
                f"group {group!r}: {found.offsets_refused}. Nothing was changed",
                code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
                retriable=False,
            )
        first = found.znodes[:-1] if found.with_offsets else found.znodes
        try:
            if zk is not None and first:
                await zk.multi([Op("delete", path) for path in first])
            break
        # a znode was created or deleted after the listing: a member joined, or another client deletes the group too
        except ZooKeeperError as error:
            if attempt == TRIES - 1 or isinstance(error, ConnectionLost):
                raise
    if client is not None and found.with_offsets:
        try:
            await _delete_offsets(client, found)
        except BrokerError as error:
            raise BrokerError(f"{error}. {_half_done(found)}", code=error.code, retriable=error.retriable) from error
        if zk is not None and found.znodes:
            await _delete_topmost(zk, found.znodes[-1])
    return found


async def _delete_topmost(zk: ZooKeeperClient, path: str) -> None:
    """Deletes the group's topmost znode, unless a member has created the group again meanwhile."""
    with contextlib.suppress(NoZnode):
        try:
            await zk.delete(path)
        except ZooKeeperError:
            if not await zk.get_children(path):
                raise


def _half_done(found: GroupRemains) -> str:
    """Returns what a deletion has changed whose offsets stay, and how to finish it."""
    if not found.znodes:
        return "Nothing was changed"
    again = ShellCommand.of("allocator group delete", found.group, execute=True)
    return (
        f"The {len(found.znodes)} znodes of the group were deleted, except the topmost one; the committed offsets of "
        f"{found.committed} partitions stay. `{again}` with the same options deletes the rest"
    )


async def _tree(zk: ZooKeeperClient, path: str) -> tuple[list[str], list[str]]:
    """Returns (persistent paths, ephemeral paths) at and below `path`. Children precede their parents.

    Ephemeral znodes belong to live members, so the transaction must not delete them.
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
        response = await coordinator.send(DeleteGroupsRequest(groups_names=[found.group]), deadline)
        code = response.results[0].error_code
        if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return
        if code == ErrorCode.NON_EMPTY_GROUP:
            raise MembersAlive(
                f"a member joined group {found.group!r} in Kafka during the deletion. {_half_done(found)}"
            )
        error = for_code(code, f"group {found.group!r}")
        if not error.retriable or time.monotonic() > deadline:
            raise error
        coordinator.forget(coordinator.node)  # the coordinator moved, or still loads its offsets
        await asyncio.sleep(client.retry_backoff_s)
