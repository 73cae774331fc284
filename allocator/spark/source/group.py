"""Commits a stream's offsets to its group, and checks that the group has no other members."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.core.subscription import stamped
from allocator.core.text import some_of
from allocator.errors import CommitFailed
from allocator.operate import live_members
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.spark.errors import GroupInUse
from allocator.spark.options import Options
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

REMEDY = (
    "give the stream its own group, stop those members first, or join a group in ZooKeeper with membership = zookeeper"
)


async def refuse_members(client: KafkaClient, options: Options, *, in_zookeeper: bool = True) -> None:
    """Raises GroupInUse if the group has live members in Kafka or, if `zookeeper` is set, in ZooKeeper.

    Brokers before 0.9 know no members.
    """
    assert options.group is not None
    async with contextlib.AsyncExitStack() as stack:
        ensembles = []
        if in_zookeeper and options.zookeeper is not None:
            ensembles.append(zk := ZooKeeperClient(options.zookeeper))
            stack.push_async_callback(zk.close)
            await zk.connect(options.timeout_s, make_chroot=False)
        members = await live_members(client, ensembles, options.group, options.zookeeper_root, options.timeout_s)
    if members:
        raise GroupInUse(
            f"group {options.group!r} has {len(members)} live members ({some_of(members)}), which commit themselves; "
            f"{REMEDY}"
        )


async def commit(
    client: KafkaClient, options: Options, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> bool:
    """Commits the next offset of each partition. Returns False, with a warning, if a retry may succeed.

    `ids` has the id of each topic. Raises GroupInUse if the group has members now. Raises CommitFailed if a retry
    cannot succeed.
    """
    assert options.group is not None
    group = GroupOffsets(client, options.group, timeout_s=min(options.timeout_s, 30.0))
    wanted = {tp: OffsetAndMetadata(at, stamped("spark", ids.get(tp.topic)), -1) for tp, at in offsets.items()}
    try:
        await group.commit(wanted)
    except CommitFailed as error:
        await refuse_members(client, options, in_zookeeper=False)
        if not error.retriable:
            raise
        log.warning("%s; the next micro-batch will commit these offsets", error)
        return False
    finally:
        await group.close()
    return True
