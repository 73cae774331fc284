"""Commits a stream's offsets to its group, and checks that the group has no other members."""

from __future__ import annotations

import contextlib
import logging

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.core.subscription import stamped
from allocator.core.text import partition_names, some_of
from allocator.errors import CommitFailed
from allocator.operate import live_members
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.spark.errors import GroupInUse
from allocator.spark.options import Options
from allocator.spark.ranges import StreamOffsets
from allocator.spark.source.plan import still_there
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

STAMP = "spark"
"""The metadata of a query's commits, before the id of the topic."""
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


async def commit(client: KafkaClient, options: Options, done: StreamOffsets, since: StreamOffsets | None) -> bool:
    """Commits the positions `done`, which finished batches have reached. Returns False, with a warning, if a retry may
    succeed.

    `since` has the positions at the commit before. It is None after a restart: the former process may have committed
    `done`, and other consumers may have committed later. `_replaces` says which offsets of the group stay. Commits
    nothing for a topic that was deleted or created again, nor for a log that ends before the position.

    Raises GroupInUse if the group has members now. Raises CommitFailed if a retry cannot succeed, NoOffsetsError, and
    BrokerError.
    """
    assert options.group is not None
    new = {tp: at for tp, at in done.next.items() if since is None or since.next.get(tp) != at or tp in done.begin}
    there = await still_there(client, options, new, done.ids)
    group = GroupOffsets(client, options.group, timeout_s=min(options.timeout_s, 30.0))
    try:
        found = await group.fetch(there)
        for tp in group.of_former_topics(found):
            del found[tp]
        ahead = {tp for tp, now in found.items() if now.offset > there[tp]}
        wanted = {
            tp: OffsetAndMetadata(at, stamped(STAMP, done.ids.get(tp.topic)), -1)
            for tp, at in there.items()
            if _replaces(tp, done, since, found.get(tp))
        }
        if ahead - wanted.keys():
            await refuse_members(client, options, in_zookeeper=False)
            log.info("group %s has offsets beyond this query at %s; they stay", group.group, partition_names(ahead))
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


def _replaces(
    tp: TopicPartition, done: StreamOffsets, since: StreamOffsets | None, found: OffsetAndMetadata | None
) -> bool:
    """Returns whether the position in `done` replaces `found`, the group's offset; None if the group has none in this
    topic."""
    at, topic_id = done.next[tp], done.ids.get(tp.topic)
    if since is None:
        # the offsets are from before the restart only if a query has committed them in this very topic
        return topic_id is not None and (
            found is None or (found.offset < at and found.metadata == stamped(STAMP, topic_id))
        )
    before = since.next.get(tp)
    if found is None:
        return True
    if found.offset > at:
        # lower only after data loss, and only what this query has committed
        return found.offset == before and tp in done.begin and found.metadata.startswith(STAMP)
    # a partition of which no batch has read a record does not change the group's offset
    return found.offset < at and done.begin.get(tp, before) != at
