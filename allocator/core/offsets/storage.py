"""Stores the offsets of a group in Kafka, in ZooKeeper as before 0.8.2, or in both during a transition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from allocator.core.aio.tasks import start_task
from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.client.offset_messages import fetch_request
from allocator.core.errors import CommitFailed, GroupNameError
from allocator.core.offsets.group_offsets import SILENT, GroupOffsets
from allocator.core.offsets.pending_commit import TERMS, Offsets, Refusals, Terms, ToCommit
from allocator.core.settings import check_group
from allocator.core.types import OffsetAndMetadata, OffsetStorage, Partitions, TopicPartition

Outdated = Callable[[Iterable[TopicPartition]], Awaitable[Partitions]]


class StoredOffsets(GroupOffsets):
    """`GroupOffsets` with a choice of storage. `storage` may change between two calls.

    - "kafka": like `GroupOffsets`.
    - "zookeeper": under /consumers/<group>/offsets in the ZooKeeper of the brokers, like kiel and clients of 0.8.1.
      Metadata is not stored.
    - "both": a commit succeeds when both have stored it. A fetch returns the greater of the two offsets, like the Java
      client with `dual.commit.enabled`. So members that use only one of the storages can work side by side.
    """

    def __init__(self, client: KafkaClient, group: str, storage: OffsetStorage, *, coordinator: Coordinator) -> None:
        super().__init__(client, group, coordinator=coordinator)
        self.storage = storage
        self._old = GroupOffsets(client, group, coordinator=coordinator, in_zookeeper=True)
        self._both: asyncio.Lock | None = None
        self.outdated: Outdated | None = None
        """Returns those of the given partitions whose offsets in ZooKeeper belong to a former topic of the same name;
        None if that cannot be known."""

    async def fetch(self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False) -> Offsets:
        if self.storage == "kafka":
            return await super().fetch(partitions, require_stable=require_stable)
        wanted = None if partitions is None else set(partitions)
        old = await self.current(await self._old.fetch(wanted))
        if self.storage == "zookeeper":
            return old
        new = await super().fetch(wanted, require_stable=require_stable)
        return {p: max((o[p] for o in (new, old) if p in o), key=lambda o: o.offset) for p in {**old, **new}}

    async def current(self, old: Offsets) -> Offsets:
        """Returns these offsets from ZooKeeper without those of former topics. Raises ZooKeeperError."""
        gone = await self.outdated(old) if self.outdated is not None and old else ()
        return {p: offset for p, offset in old.items() if p not in gone}

    async def commit(self, offsets: ToCommit, terms: Terms = TERMS) -> None:
        if self.storage == "kafka":
            await super().commit(offsets, terms)
        elif self.storage == "zookeeper":
            await self._old.commit(offsets, terms)
        else:
            await self.commit_async(offsets, terms)

    def commit_async(self, offsets: ToCommit, terms: Terms = TERMS) -> asyncio.Task[None]:
        if self.storage == "kafka":
            return super().commit_async(offsets, terms)
        if self.storage == "zookeeper":
            return self._old.commit_async(offsets, terms)
        return self._kept(start_task(self._commit_twice(offsets, terms)))

    async def _commit_twice(self, offsets: ToCommit, terms: Terms) -> None:
        """Commits the same offsets to both storages. Raises the first error; the other commit may have succeeded."""
        if self._both is None:
            self._both = asyncio.Lock()
        waits = self._both.locked()
        async with self._both:
            if waits and self.coordinator.silent_s > terms.patience_s:  # the call before this one has tried
                raise CommitFailed(f"group {self.group!r}: not committed: {SILENT}", retriable=True)
            over: set[TopicPartition] = set()
            while chosen := offsets(over) if callable(offsets) else offsets:
                each_alone = terms._replace(stored=None)
                each = super().commit_async(chosen, each_alone), self._old.commit_async(chosen, each_alone)
                for result in await asyncio.gather(*each, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
                if terms.stored is not None:
                    terms.stored(chosen)
                if not callable(offsets):
                    break
                over |= chosen.keys()

    def pending(self, partitions: Partitions | None) -> set[asyncio.Future[None]]:
        both = self._tasks if self.storage == "both" else ()  # a commit to both is in no queue before its turn
        return {*both, *self._old.pending(partitions), *super().pending(partitions)}

    async def settled(self, partitions: Partitions) -> None:
        await super().settled(partitions)
        await self._old.settled(partitions)

    async def close(self) -> None:
        await self._old.close()
        await super().close()

    async def carry_over(self, partitions: Iterable[TopicPartition], refusals: Refusals | None = None) -> int:
        """Copies offsets from ZooKeeper to Kafka, where they replace existing ones. Returns their number.

        Raises NoOffsetsError or CommitFailed. Then some may have been copied, and the call may be repeated.
        """
        found = await self.current(await self._old.fetch(partitions))
        copies = {p: OffsetAndMetadata(o.offset, "carried over from ZooKeeper") for p, o in found.items()}
        await super().commit(copies, Terms(refusals))
        return len(found)


async def fetch_old_offsets(
    client: KafkaClient, group: str, partitions: Iterable[TopicPartition], coordinator: Coordinator | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets that a group has in ZooKeeper; none if the brokers have no ZooKeeper (Kafka 4, KRaft).

    OffsetCommit v0 writes to ZooKeeper on every broker version that supports it. So clients that know only v0, such as
    kiel, have their offsets there even on 2.x. OffsetFetch v0 reads them through any broker up to Kafka 3.

    Raises NoOffsetsError if no broker responds. If that counted as "no offset", all records would be read again.
    """
    if client.api_version(fetch_request(group, (), in_zookeeper=True)) is None:
        return {}
    try:
        check_group(group)
    except GroupNameError:
        return {}  # no znode can have such a name, and brokers respond with UNKNOWN_SERVER_ERROR
    offsets = GroupOffsets(
        client, group, timeout_s=client.request_timeout_s, coordinator=coordinator, in_zookeeper=True
    )
    return await offsets.fetch(partitions)
