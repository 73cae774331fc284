"""Sources of the names of resources: a list, a function, or the children of a znode.

Only the leader reads the source. So even if members would see different lists, only the leader's list counts, and no
resource has two owners.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Union

from allocator.core.aio import call_user
from allocator.core.settings import check_path
from allocator.core.text import shown
from allocator.errors import AllocatorError, ConfigError
from allocator.protocols.zookeeper import NoZnode, Watched, ZooKeeperClient
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

LONGEST_NAME = 1_000  # characters
MOST_NAMES = 1_000_000
# bytes of all names as JSON, with 5 more for each. The assignment names each at most twice, within INFLATED_BYTES
MOST_BYTES = 30_000_000

ResourceNames = Union[Collection[str], Callable[[], Union[Iterable[str], Awaitable[Iterable[str]]]], "ChildrenOf"]
"""A list of names; a function that returns them, plain or a coroutine; or the children of a znode."""


@dataclass(frozen=True)
class ChildrenOf:
    """The names of the children of a znode, in the chroot of the ensemble. A missing znode has no children."""

    path: str

    def __post_init__(self) -> None:
        check_path("path of the resources", self.path)


class NameSource:
    """The `PartitionCountSource` of a group whose topics are resources."""

    certain = True
    """Whether a name that is missing after a successful `refresh` no longer exists."""

    def __init__(self, names: ResourceNames, zk: ZooKeeperClient) -> None:
        if isinstance(names, (str, bytes)) or not (isinstance(names, (Collection, ChildrenOf)) or callable(names)):
            raise ConfigError(f"resources {shown(names)}: give a list of names, a function, or ChildrenOf(path)")
        self._read: Callable[[], Any]
        self._callbacks: list[Callable[[], None]] = []
        self._warned = False
        if isinstance(names, ChildrenOf):
            path = names.path

            async def children(watch: Callable[[], None]) -> list[str]:
                while True:
                    try:
                        return self._usable(path, await zk.get_children(path, watch))
                    except NoZnode:
                        if await zk.exists(path, watch) is None:
                            return []

            self._read = Watched(children, self._changed).get
        elif isinstance(names, Collection):
            fixed = checked(names)
            self._read = lambda: fixed
        else:
            self._read = names
        self._names: frozenset[str] | None = None

    def _usable(self, path: str, names: list[str]) -> list[str]:
        """Returns the names that a resource can have. Logs once that the znode has others, which any client may have
        created: they must not keep the group from the new names."""
        usable = [name for name in names if len(name) <= LONGEST_NAME]
        if len(usable) < len(names) and not self._warned:
            self._warned = True
            log.error("%s: children with a name of more than %d characters are no resources", path, LONGEST_NAME)
        return usable

    def _changed(self) -> None:
        for callback in tuple(self._callbacks):
            callback()

    def follow(self, topics: Iterable[str]) -> None:
        """Does nothing, because no member subscribes to single names."""

    def follow_all(self) -> None:
        """Does nothing, because every read returns all names."""

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Reads the names. Raises AllocatorError, and then keeps the earlier names."""
        try:
            self._names = checked(await call_user(self._read))
        except AllocatorError:
            raise
        except Exception as error:
            raise AllocatorError(f"the resources cannot be read: {type(error).__name__}: {error}") from error

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        return (0,) if topic in self.topics() else None

    def hides(self, topic: str) -> bool:
        return False

    def topics(self, internal: bool = False) -> frozenset[str]:
        return self._names or frozenset()

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]:
        return ()

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


def checked(names: Iterable[str]) -> frozenset[str]:
    """Returns the names as a set. Raises ConfigError for an invalid name."""
    found = frozenset(names)
    for name in found:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(f"resource {shown(name)}: a name is a text of 1 to {LONGEST_NAME} characters")
    if len(found) > MOST_NAMES:
        raise ConfigError(f"{len(found)} resources are more than the {MOST_NAMES} that a group can have")
    size = len(json.dumps(list(found))) + 5 * len(found)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the names of {len(found)} resources take {size} bytes, more than the {MOST_BYTES} of a group"
        )
    return found
