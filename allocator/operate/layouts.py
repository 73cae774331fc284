"""Reads a group in the znode layout of kiel, or of pykafka and the consumers of Kafka 0.8."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from allocator.core.settings import check_group
from allocator.core.text import whole_number
from allocator.documents import InvalidZnode
from allocator.errors import ConfigError
from allocator.protocols.legacy import KielPaths, OldSubscription, read_shared
from allocator.protocols.zookeeper import NoZnode, ZooKeeperClient, above_chroot
from allocator.types import TopicPartition

KIEL = "/kiel/groups/{}/members"
OLD_CONSUMERS = "/consumers/{}/ids"
OLD_OWNERS = "/consumers/{}/owners"
OLD_OFFSETS = "/consumers/{}/offsets"


@dataclass(frozen=True)
class OldLayouts:
    kiel: tuple[str, ...] = ()
    """Members in kiel's layout."""
    assigned: frozenset[TopicPartition] = frozenset()
    """The partitions of the kiel group; kiel does not store the owners."""
    consumers: tuple[str, ...] = ()
    """Members in the layout of Kafka 0.8."""
    subscriptions: tuple[OldSubscription, ...] = ()
    claimed: frozenset[TopicPartition] = frozenset()
    """Partitions that members in the layout of Kafka 0.8 own."""
    stored: frozenset[str] = frozenset()
    """Topics with offsets in ZooKeeper, with or without members."""

    def __add__(self, other: OldLayouts) -> OldLayouts:
        """Combines the results from two places, which may be the same place."""
        return OldLayouts(
            tuple(sorted({*self.kiel, *other.kiel})),
            self.assigned | other.assigned,
            tuple(sorted({*self.consumers, *other.consumers})),
            (*self.subscriptions, *(each for each in other.subscriptions if each not in self.subscriptions)),
            self.claimed | other.claimed,
            self.stored | other.stored,
        )

    def reads(self, partition: TopicPartition) -> bool:
        """Returns whether the group reads this partition."""
        return partition in self.assigned or any(each.threads(partition.topic) for each in self.subscriptions)


async def old_layouts(zk: ZooKeeperClient, group: str) -> OldLayouts:
    """Returns the group in all old layouts. A member with an invalid znode counts, without a subscription.

    Reads with and without the chroot: the older clients are where Kafka's own znodes are, and they know no chroot for
    the groups of this library.
    """
    if not is_znode(group):
        return OldLayouts()
    found = await _below(zk, group)
    return found + await _below(above_chroot(zk), group) if zk.chroot else found


async def groups_in_old_layouts(zk: ZooKeeperClient) -> set[str]:
    """Returns the names of the groups with members in an old layout, with and without the chroot."""
    found = await _live_below(zk)
    return found | await _live_below(above_chroot(zk)) if zk.chroot else found


async def _live_below(zk: ZooKeeperClient) -> set[str]:
    found = set()
    for layout in (KIEL, OLD_CONSUMERS):
        names = [name for name in await children(zk, layout.partition("/{}")[0]) if is_znode(name)]
        members = await asyncio.gather(*(children(zk, layout.format(name)) for name in names))
        found |= {name for name, present in zip(names, members) if present}
    return found


async def _below(zk: ZooKeeperClient, group: str) -> OldLayouts:
    kiel = await children(zk, KIEL.format(group))
    consumers = await children(zk, OLD_CONSUMERS.format(group))
    claims: set[TopicPartition] = set()
    for directory in await children(zk, OLD_OWNERS.format(group)) if consumers else ():
        topic = re.sub("^b'(.*)'$", r"\1", directory)  # pykafka on Python 3 writes the repr of bytes
        names = await children(zk, f"{OLD_OWNERS.format(group)}/{directory}")
        numbers = (whole_number(name.rpartition("-")[2]) for name in names)
        claims |= {TopicPartition(topic, number) for number in numbers if number is not None}
    subscriptions = [await _subscription(zk, f"{OLD_CONSUMERS.format(group)}/{name}") for name in consumers]
    return OldLayouts(
        tuple(kiel),
        await _assigned(zk, KielPaths(group)) if kiel else frozenset(),
        tuple(consumers),
        tuple(filter(None, subscriptions)),
        frozenset(claims),
        frozenset(await children(zk, OLD_OFFSETS.format(group))),
    )


def is_znode(group: str) -> bool:
    """Returns whether a group of this name can be in ZooKeeper. Kafka allows names that are no names of znodes."""
    try:
        check_group(group)
    except ConfigError:
        return False
    return True


async def children(zk: ZooKeeperClient, path: str) -> list[str]:
    """Returns the names of the children, sorted; [] if the znode does not exist."""
    try:
        return sorted(await zk.get_children(path))
    except NoZnode:
        return []


async def _assigned(zk: ZooKeeperClient, paths: KielPaths) -> frozenset[TopicPartition]:
    try:
        return read_shared(paths.partitions, (await zk.get(paths.partitions))[0])[0]
    except (NoZnode, InvalidZnode):
        return frozenset()


async def _subscription(zk: ZooKeeperClient, path: str) -> OldSubscription | None:
    try:
        data = (await zk.get(path))[0]
        if re.fullmatch(rb"[a-zA-Z0-9._-]{1,249}", data):  # pykafka: the name of the only topic
            return OldSubscription("static", {data.decode(): 1})
        return OldSubscription.decode(path, data)
    except (NoZnode, InvalidZnode):
        return None
