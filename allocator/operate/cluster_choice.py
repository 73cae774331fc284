"""A znode selects the Kafka cluster that a group reads, so that running services move to another cluster without a
restart.

The znode `<root>/<group>/cluster` holds JSON: {"format": 1, "brokers": "host:port,...", "frozen": false}. Without this
znode, services read the cluster of their own settings.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple, Optional

from allocator.core.text import shown
from allocator.core.znodes import Paths
from allocator.core.zookeeper import NoZnode, ZnodeExists, ZooKeeperClient
from allocator.errors import ConfigError

FORMAT = 1


class ClusterChoice(NamedTuple):
    """`brokers` None: use those of the service's settings. `frozen`: no member may read."""

    brokers: Optional[str] = None
    frozen: bool = False


def choice_path(root: str, group: str) -> str:
    """The znode of a group."""
    return f"{Paths(root, group).base}/cluster"


def elsewhere(choice: ClusterChoice, brokers: str | None) -> str | None:
    """Returns a hint for readers of the group's offsets on these brokers, if the znode tells members to read
    other brokers."""
    if choice.brokers is None or brokers is None or same_cluster(choice.brokers, brokers):
        return None
    return (
        f"the group is told to read {choice.brokers}; offsets and lag are those of {brokers}: look at it by the others"
    )


def same_cluster(brokers: str, others: str) -> bool:
    """Whether two address lists name the same cluster: they share at least one address."""
    some, more = ({text.strip().lower() for text in texts.split(",")} for texts in (brokers, others))
    return not some.isdisjoint(more)


async def read_choice(zk: ZooKeeperClient, path: str, watch: Any = None) -> ClusterChoice:
    """Reads the setting; `watch` is called at the next change. Raises ConfigError for invalid content."""
    while True:
        try:
            data, _ = await zk.get(path, watch)
        except NoZnode:
            if await zk.exists(path, watch) is None:
                return ClusterChoice()
            continue
        try:
            told = json.loads(data)
            brokers, frozen = told["brokers"], told["frozen"]
            if told["format"] != FORMAT or not isinstance(frozen, bool) or not isinstance(brokers, (str, type(None))):
                raise ValueError("its fields are others")
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"znode {path} does not say which cluster to read: {shown(data)} ({shown(error)})"
            ) from error
        return ClusterChoice(brokers, frozen)


async def choose_cluster(zk: ZooKeeperClient, path: str, choice: ClusterChoice) -> None:
    """Writes the setting. Every service of the group follows it."""
    data = json.dumps({"format": FORMAT, "brokers": choice.brokers, "frozen": choice.frozen}).encode()
    while True:
        await zk.ensure_path(path.rpartition("/")[0] or "/")
        try:
            with contextlib.suppress(ZnodeExists):
                await zk.create(path, data)  # with its data in one step: a service may read it at any moment
                return
            await zk.set(path, data)
            return
        except NoZnode:
            continue  # deleted in the meantime
