"""The cluster choice: a znode that selects the Kafka cluster of a group, so that services move without a restart.

The znode `<root>/<group>/cluster` holds JSON: {"format": 1, "brokers": "host:port,...", "frozen": false}. Without this
znode, each service reads the cluster in its own settings.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple, Optional

from allocator.core.text import parse_json, shown
from allocator.errors import ConfigError
from allocator.protocols.zookeeper.client.client import NoZnode, ZnodeExists, ZooKeeperClient, ZooKeeperError
from allocator.protocols.zookeeper.znodes.documents import Paths

FORMAT = 1


class ClusterChoice(NamedTuple):
    """The content of the znode. `brokers` None: those in the settings of the service. `frozen`: no member reads."""

    brokers: Optional[str] = None
    frozen: bool = False


def choice_path(root: str, group: str) -> str:
    """Returns the path of the group's znode."""
    return f"{Paths(root, group).base}/cluster"


def elsewhere(choice: ClusterChoice, brokers: str | None) -> str | None:
    """Returns a warning for offsets that were read from `brokers`, if the members read another cluster."""
    if choice.brokers is None or brokers is None or same_cluster(choice.brokers, brokers):
        return None
    return (
        f"the members read {choice.brokers} (cluster choice), but offsets and lag are from {brokers}: "
        f"run this with --brokers {choice.brokers}"
    )


def same_cluster(brokers: str, others: str) -> bool:
    """Returns whether two lists of addresses name the same cluster: they share at least one address."""
    some, more = ({text.strip().lower() for text in texts.split(",")} for texts in (brokers, others))
    return not some.isdisjoint(more)


async def read_choice(zk: ZooKeeperClient, path: str, watch: Any = None) -> ClusterChoice:
    """Returns the choice, and calls `watch` at its next change. Raises ConfigError for invalid content."""
    while True:
        try:
            data, _ = await zk.get(path, watch)
        except NoZnode:
            if await zk.exists(path, watch) is None:
                return ClusterChoice()
            continue
        except ZooKeeperError as error:
            if error.retriable:
                raise
            raise ConfigError(str(error)) from error
        try:
            choice = parse_json(data)
            brokers, frozen = choice["brokers"], choice["frozen"]
            if choice["format"] != FORMAT or not isinstance(frozen, bool) or not isinstance(brokers, (str, type(None))):
                raise ValueError("a field has an unexpected value")
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"znode {path} is not a valid cluster choice: {shown(data)} ({shown(error)})") from error
        return ClusterChoice(brokers, frozen)


async def check_choice(zk: ZooKeeperClient, path: str, brokers: str) -> None:
    """Raises ConfigError if the group does not read the cluster of these addresses now, as a member must that does not
    follow the choice: it would take partitions from the others, and read the other cluster."""
    choice = await read_choice(zk, path)
    if choice.frozen:
        raise ConfigError(
            f"the group is frozen (znode {path}), because it moves to another cluster; start this member afterwards, "
            "with the brokers of the new cluster, or use SwitchingConsumer, which waits and follows"
        )
    if choice.brokers is not None and not same_cluster(choice.brokers, brokers):
        raise ConfigError(
            f"the members of the group read {shown(choice.brokers)} (znode {path}), but this member would read "
            f"{shown(brokers)}; give it the brokers that the znode names, or use SwitchingConsumer, which follows it"
        )


async def choose_cluster(zk: ZooKeeperClient, path: str, choice: ClusterChoice) -> None:
    """Writes the choice. Every service of the group follows it."""
    data = json.dumps({"format": FORMAT, "brokers": choice.brokers, "frozen": choice.frozen}).encode()
    while True:
        base = path.rpartition("/")[0] or "/"
        await zk.use_acl_of(base)  # the members may have other credentials
        await zk.ensure_path(base)
        try:
            with contextlib.suppress(ZnodeExists):
                await zk.create(path, data)  # create it with its data, because a service may read it at any time
                return
            await zk.set(path, data)
            return
        except NoZnode:
            continue  # deleted in the meantime
