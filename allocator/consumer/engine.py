"""What every consumer is made of, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Union

from allocator.assign import Assignor, resolve
from allocator.consumer.listener import RebalanceListener
from allocator.consumer.ownership import Ownership
from allocator.consumer.progress import Progress
from allocator.coordinator.offsets import GroupOffsets
from allocator.coordinator.old_offsets import fetch_old_offsets
from allocator.errors import AllocatorError, CommitFailed, ConfigError, NotOwned
from allocator.fetch.batch import Batch
from allocator.fetch.fetcher import Fetcher
from allocator.membership.leader import LeaderSettings
from allocator.membership.znodes import Paths
from allocator.membership.zookeeper import Settings, ZooKeeperMembership
from allocator.subscription.state import SubscriptionState
from allocator.tasks import Scope
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["Assignors", "Engine"]

log = logging.getLogger(__name__)

Assignors = Union[str, Callable[..., Any], Sequence[Union[str, Callable[..., Any]]]]


class Engine:
    """Client, membership, fetcher and offsets of one member of one group.

    Guarantee: `take` gives a batch, and `commit` sends offsets, only while this member owns the partition and its
    lease is valid. The rooms meet in the subscription state; this only starts, ends and asks them.
    """

    def __init__(
        self,
        *,
        brokers: str | Sequence[str],
        group: str,
        zookeeper: str,
        topics: Sequence[str],
        pattern: str | None,
        assignor: Assignors,
        client_id: str,
        listener: RebalanceListener,
        session_timeout_s: float,
        connect_timeout_s: float,
        auto_commit_interval_s: float | None,
        commit_on_revoke: bool,
        auto_offset_reset: str | int,
        root: str = "/allocator",
        zookeeper_options: Mapping[str, Any] | None = None,
        security: Mapping[str, Any] | None = None,
        weight: float = 1.0,
        rack: str | None = None,
        leader_settings: LeaderSettings | None = None,
        old_offsets: bool = False,
        **fetch: Any,
    ) -> None:
        if not topics and pattern is None:
            raise ConfigError("a consumer needs topics or a pattern to subscribe to")
        if auto_commit_interval_s is not None and not auto_commit_interval_s > 0:
            raise ConfigError(f"auto_commit_interval_s must be positive or None, not {auto_commit_interval_s!r}")
        if not weight > 0:
            raise ConfigError(f"weight must be positive, not {weight!r}")
        self.group = group
        self._old_offsets = old_offsets
        self.progress = Progress(asking_is_done=auto_commit_interval_s is not None)
        self.state = SubscriptionState(auto_offset_reset)
        self.state.subscribe(list(topics), pattern)
        # brokers of 0.9 make a JMX name of it, and fail every fetch when that has a colon, as kiel's names do
        self.client = KafkaClient(brokers, client_id=re.sub(r"[^A-Za-z0-9._-]", "-", client_id), security=security)
        self.offsets = GroupOffsets(self.client, group)
        self.fetcher = Fetcher(self.client, self.state, auto_offset_reset=auto_offset_reset, **fetch)
        self._ownership = Ownership(
            self.state,
            self.progress,
            self.committed,
            self.fetcher,
            self.commit_progress,
            listener,
            auto_commit=commit_on_revoke,
        )
        self.membership = ZooKeeperMembership(
            ZooKeeper(zookeeper, session_timeout_s=session_timeout_s, options=zookeeper_options),
            Paths(root, group),
            self._ownership,
            self.client,
            _by_name(assignor),
            Settings(
                name=client_id,
                topics=frozenset(topics),
                pattern=pattern,
                weight=weight,
                rack=rack,
                connect_timeout_s=connect_timeout_s,
                leader=leader_settings or LeaderSettings(),
            ),
        )
        self._topics, self._pattern = tuple(topics), pattern
        self._connect_timeout_s = connect_timeout_s
        self._auto_commit_interval_s = auto_commit_interval_s
        self._exits = contextlib.AsyncExitStack()
        self._one_commit: asyncio.Lock

    async def start(self) -> None:
        """Connects to Kafka and ZooKeeper and joins the group; undoes all of it when a step fails."""
        self._one_commit = asyncio.Lock()
        try:
            self._exits.push_async_callback(self.client.close)
            await self.client.connect(self._connect_timeout_s)
            self.client.follow(self._topics)
            if self._pattern is not None:
                self.client.follow_all()
            await self.client.refresh()
            for topic in self._topics:
                if self.client.partitions(topic) is None:
                    log.warning("%s: topic %r does not exist (yet); waiting for it", self.group, topic)
            self._exits.push_async_callback(self.offsets.close)
            scope = await self._exits.enter_async_context(Scope())
            self._ownership.start(scope)
            self._exits.push_async_callback(self.fetcher.close)
            await self.fetcher.start()
            if self._auto_commit_interval_s is not None:
                scope.start(self._auto_commit(self._auto_commit_interval_s), "auto-commit")
            await self.membership.join()
        except BaseException:
            await self._exits.aclose()
            raise

    async def close(self) -> None:
        """Drains, commits what is done, leaves, and closes every connection."""
        try:
            await self.membership.leave()
        finally:
            await self._exits.aclose()

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def may_deliver(self) -> bool:
        """Whether records may be given to the user at this instant."""
        return not self._ownership.closed_gate and self.membership.may_act()

    async def until_may_act(self) -> None:
        """Returns once records may be handled and offsets committed; at once if that is so."""
        while not self.membership.may_act():
            await self.fetcher.news()  # `resumed` wakes it

    def take(self, topic: str | None = None) -> Batch | None:
        """The next batch if there is one that may be delivered; raises what the user has to know."""
        error, self._ownership.error = self._ownership.error or self.membership.ended, None
        if error is not None:
            raise error
        return self.fetcher.take(topic) if self.may_deliver else None

    def deliver(self, batch: Batch, next_offset: int) -> None:
        """The user gets the records of `batch` up to `next_offset`."""
        partition = TopicPartition(batch.topic, batch.partition)
        self.state.update_position(partition, next_offset)
        self.progress.hand_out(partition, next_offset)

    # -- offsets -------------------------------------------------------------------------------------------------

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed in Kafka; with `old_offsets`, else what older clients left in ZooKeeper."""
        wanted = set(partitions)
        found = await self.offsets.fetch(wanted)
        rest = wanted - set(found)
        if rest and self._old_offsets:
            found = {**await fetch_old_offsets(self.client, self.group, rest), **found}
        return found

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits exactly these. Raises NotOwned or CommitFailed, having sent nothing, or what the coordinator said."""
        if not offsets:
            return
        self.must_own(offsets)
        if not self.membership.may_act():
            error = CommitFailed(
                f"{self.group}: offsets of {len(offsets)} partitions are not committed: ZooKeeper has not confirmed "
                "that this member still owns them; they are committed once it has, or read again by the next owner"
            )
            error.retriable = True
            raise error
        stamp = f"generation {self.membership.generation} member {self.membership.member_id}"
        await self.offsets.commit(
            {p: OffsetAndMetadata(o.offset, o.metadata or stamp, o.leader_epoch) for p, o in offsets.items()}
        )
        self.progress.note_committed({p: o.offset for p, o in offsets.items()})

    async def commit_progress(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        topics: Collection[str] | None = None,
        in_hand: bool = False,
        metadata: str = "",
    ) -> None:
        """Commits how far the user has got; with `in_hand`, what was handed out as well, which then is done.

        One at a time: a commit that was computed earlier and sent later would set the group back.
        """
        async with self._one_commit:
            offsets = self.progress.uncommitted(partitions, in_hand=in_hand)
            if topics is not None:
                offsets = {p: offset for p, offset in offsets.items() if p.topic in topics}
            await self.commit({p: OffsetAndMetadata(offset, metadata, -1) for p, offset in offsets.items()})
            # only now: a partition that is to move is released when it is done, and the commit comes before
            self.progress.finish_up_to(offsets)

    async def _auto_commit(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.commit_progress()
            except AllocatorError as error:
                # nothing is lost: the next turn, the revocation or the close commits a later offset
                log.warning("%s: auto-commit put off: %s", self.group, error)

    # -- what is owned -------------------------------------------------------------------------------------------

    def must_own(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises NotOwned naming those that are not ours."""
        foreign = [p for p in partitions if not self.state.is_assigned(p)]
        if foreign:
            names = ", ".join(f"{p.topic}:{p.partition}" for p in foreign[:5])
            more = f" and {len(foreign) - 5} more" if len(foreign) > 5 else ""
            raise NotOwned(f"{self.group}: this member does not own {names}{more}")


def _by_name(assignor: Assignors) -> dict[str, Assignor]:
    offered = [assignor] if isinstance(assignor, str) or callable(assignor) else list(assignor)
    if not offered:
        raise ConfigError("assignor is an empty list; name at least one, e.g. 'naive'")
    return {found.name: found for found in map(resolve, offered)}
