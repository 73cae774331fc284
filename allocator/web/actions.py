"""What may be done to a group from the page or the API, by whoever has the token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Optional

from allocator.consumer.switching import choose, path_of, read_choice
from allocator.errors import AllocatorError, ConfigError
from allocator.groups.zookeeper.store import Store
from allocator.groups.zookeeper.znodes import Paths
from allocator.zookeeper.client import BadVersion, ConnectionLost, NoZnode, ZooKeeper

__all__ = ["Action", "NotNow", "Reset", "actions"]

Action = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Reset = Callable[[str, str, Collection[str], bool], Awaitable[dict[str, Any]]]
"""Given group, target ("earliest", ...), topics (none: all) and whether to do it: what was or would be committed."""


class NotNow(AllocatorError):
    """The group is not in a state in which that can be done."""

    retriable = True


def actions(zookeeper: Callable[[], Optional[ZooKeeper]], root: str, reset: Reset) -> dict[str, Action]:
    """The actions by the last part of their path."""
    return {
        "rebalance": partial(_rebalance, zookeeper, root),
        "pause": partial(_freeze, zookeeper, root, True),
        "resume": partial(_freeze, zookeeper, root, False),
        "offsets/reset": partial(_reset, reset),
    }


async def _freeze(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, frozen: bool, group: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Has the members that follow the group's setting finish what they have, commit and leave; or join again.

    It is the setting of a cutover, whose choice of brokers stays.
    """
    _only(given)
    zk = _connected(zookeeper)
    path = path_of(root, group)
    before = await read_choice(zk, path)
    await choose(zk, path, before._replace(frozen=frozen))
    return {"group": group, "paused": frozen}


async def _rebalance(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, group: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Has the leader compute the assignment anew.

    It does so when the assignment's znode is gone, from what the members claim: nobody stops meanwhile, and what the
    function answers as before does not move. No member needs to know of us.
    """
    _only(given)
    zk = _connected(zookeeper)
    store = Store(zk, Paths(root, group))
    if not await store.member_names():
        raise NotNow(f"group {group!r} has no members, so nobody would compute an assignment")
    stat = await zk.exists(store.paths.assignment)
    if stat is not None:
        try:
            await zk.delete(store.paths.assignment, stat.version)
        except (BadVersion, NoZnode):
            raise NotNow(f"group {group!r} is rebalancing at this moment") from None
    return {"group": group, "asked": True}


async def _reset(reset: Reset, group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces committed offsets; only says what it would do, until `confirm` is the group's name."""
    _only(given, "to", "topics", "confirm")
    to, topics, confirm = given.get("to"), given.get("topics", []), given.get("confirm")
    if not isinstance(to, (str, int)) or isinstance(to, bool):
        raise ConfigError(
            '"to" must be "earliest", "latest", an offset, "timestamp:MILLISECONDS" or '
            'a time such as "2026-01-31T12:00:00Z"'
        )
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ConfigError('"topics" must be a list of topics; an empty one stands for all of the group')
    if confirm is not None and confirm != group:
        raise ConfigError(
            f'"confirm" must be the name of the group, {group!r}, or be left out to see what would be done'
        )
    return await reset(group, str(to), topics, confirm is not None)


def _connected(zookeeper: Callable[[], Optional[ZooKeeper]]) -> ZooKeeper:
    zk = zookeeper()
    if zk is None:
        raise ConnectionLost("ZooKeeper does not answer at present")
    return zk


def _only(given: Mapping[str, Any], *known: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"{', '.join(map(repr, unknown))} is not known here; {', '.join(known) or 'nothing'} is")
