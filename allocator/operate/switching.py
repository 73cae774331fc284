"""Consumers that follow the cluster choice of their group: they leave one cluster and join on another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from allocator.core.aio import ClosesOnce, start_task, wait_for_event, within
from allocator.core.consumer import MembershipConfig, MembershipOptions, join_again_if, until_lease
from allocator.core.fetch import Batch
from allocator.core.settings import DEFAULT, names_arguments
from allocator.core.subscription import check_listener
from allocator.errors import AllocatorError, Closed, ConfigError
from allocator.handlers import Consumer
from allocator.protocols.zookeeper import (
    ClusterChoice,
    EnsembleOptions,
    ZooKeeperClient,
    ZooKeeperError,
    choice_path,
    read_choice,
    retrying,
)
from allocator.types import (
    MembershipName,
    Offset,
    OffsetAndMetadata,
    PartitionKey,
    PartitionLike,
    Record,
    TopicPartition,
)

log = logging.getLogger(__name__)

# seconds between reads without an event, because a lost session loses its watch. Higher: may notice a switch later;
# lower: more reads
LOOK_S = 5.0


class ChoiceWatcher:
    """Follows the cluster choice in one znode, with a session of its own.

    While ZooKeeper does not respond, or the session is lost, `current` keeps the last choice that was read. Members
    have their own sessions. A member that loses its session reads the choice again before it joins (`still`).
    """

    def __init__(self, zk: ZooKeeperClient, path: str) -> None:
        self.current = ClusterChoice()  # valid after `start`
        self.changed: asyncio.Event
        self._zk = zk
        self._path = path
        self._task: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float | None = 15.0) -> None:
        """Connects and reads the choice. Raises ZooKeeperUnavailable or ConfigError."""
        self.changed, self._reread = asyncio.Event(), asyncio.Event()
        await self._zk.connect(timeout_s)
        self._zk.on_state(lambda _: self._reread.set())
        try:
            deadline = asyncio.get_running_loop().time() + (timeout_s or LOOK_S)
            self.current = await retrying(lambda: read_choice(self._zk, self._path, self._reread.set), deadline)
        except BaseException:
            await self._zk.close()
            raise
        self._task = start_task(self._follow(), f"watch of {self._path}")

    async def close(self) -> None:
        """Stops the watch and closes the session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._zk.close()

    def still(self, choice: ClusterChoice) -> Callable[[ZooKeeperClient], Awaitable[bool]]:
        """Returns a function that reads the choice with the given session, and returns whether it is unchanged.

        A member calls it before it joins again, because this watcher may have lost its session at the same time.
        """

        async def is_unchanged(zk: ZooKeeperClient) -> bool:
            try:
                return await read_choice(zk, self._path) == choice
            except ConfigError as error:
                log.error("%s; the member keeps %s", error, choice)
                return True

        return is_unchanged

    async def _follow(self) -> None:
        while True:
            # set a new watch only if the last one has fired
            watch = self._reread.set if await wait_for_event(self._reread, LOOK_S) else None
            self._reread.clear()
            try:
                found = await read_choice(self._zk, self._path, watch)
            except ZooKeeperError as error:
                log.debug("%s: retrying a failed read: %s", self._path, error)
                await asyncio.sleep(0.1)
                self._reread.set()
                continue
            except ConfigError as error:
                log.error("%s; the service keeps %s", error, self.current)
                continue
            except Exception:  # an internal error must not end the watch: the service would miss a switch
                log.exception("%s cannot be read; the service keeps %s", self._path, self.current)
                continue
            if found != self.current:
                log.info("%s: %s", self._path, found)
                self.current = found
                self.changed.set()


@names_arguments
class SwitchingConsumer:
    """A `Consumer` that follows the cluster choice of its group.

    Takes the arguments of `Consumer`. It reads `brokers` until the znode names other brokers. Group, membership and
    ZooKeeper stay the same. `zookeeper` holds the choice: an ensemble, or a `ZooKeeper` with its root and credentials.
    On other brokers the group continues at the offsets that are committed there. `securities` maps brokers, as the
    znode names them, to TLS and SASL settings that differ from `security`.

    Guarantee: after a change of the choice, the member leaves once all delivered records are done: the caller requests
    more, and with auto-commit the records are committed. Until then it delivers no record of the other cluster. A
    frozen group has no members, so its offsets can be moved. A member that loses its ZooKeeper session reads the choice
    again before it joins.
    """

    def __init__(
        self,
        *topics: str,
        brokers: str,
        group: str,
        zookeeper: str | MembershipOptions,
        membership: MembershipName | MembershipOptions = DEFAULT["membership"],
        security: Mapping[str, Any] | None = None,
        securities: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        # check it now: the consumer is created later, when its cluster is known
        check_listener(options.get("listener"))
        self.group = group
        self._default = brokers
        self._security = security
        self._securities = {} if securities is None else securities
        place: Any = zookeeper
        if not isinstance(place, EnsembleOptions):
            place = MembershipConfig.of("zookeeper", zookeeper=place, group=group).options
        joins: MembershipOptions = place
        if membership != place.name:
            joins = MembershipConfig.of(membership, zookeeper=place.zookeeper, group=group).options
        if isinstance(joins, EnsembleOptions):
            place = joins
        # one name on each cluster: operator commands name a member by its client id
        options["client_id"] = MembershipConfig.of(joins, client_id=options.get("client_id"), group=group).client_id
        self._make = partial(Consumer, *topics, group=group, membership=joins, **options)
        self._auto = options.get("auto_commit_interval_s", DEFAULT["auto_commit_interval_s"]) is not None
        self._session_timeout_s = place.session_timeout_s
        self._watcher = ChoiceWatcher(place.ensemble(), choice_path(place.root, group))
        self._consumer: Consumer | None = None
        self._last: Consumer | None = None  # stays set while it closes
        self._reads: ClusterChoice | None = None
        self._started = False
        self._closed = False
        self._closing = ClosesOnce()

    @property
    def brokers(self) -> str | None:
        """The brokers of the current cluster; None if the group is frozen or the consumer not started."""
        return None if self._reads is None else self._reads.brokers or self._default

    async def start(self) -> None:
        """Connects to ZooKeeper, and joins the group unless the group is frozen."""
        if self._closed:
            raise Closed(f"the consumer of group {self.group!r} is closed")
        self._started = True
        await self._watcher.start()
        try:
            await self._follow()
        except BaseException:
            await self._watcher.close()
            raise

    async def close(self, *, restart: bool = True) -> None:
        """Like `Consumer.close`."""
        self._closed = True
        if self._closing.begun and self._last is not None:
            await self._last.close()  # the task that reads may be the second caller
        await self._closing.run(partial(self._close, restart))

    async def _close(self, restart: bool) -> None:
        if not self._started:
            return
        self._watcher.changed.set()
        try:
            await self._leave(restart=restart)
        finally:
            await self._watcher.close()

    async def __aenter__(self) -> SwitchingConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> SwitchingConsumer:
        return self

    async def __anext__(self) -> Batch:
        try:
            batch = await self.getbatch()
        except Closed:
            raise StopAsyncIteration from None
        assert batch is not None
        return batch

    async def getbatch(self, timeout_s: float | None = None) -> Batch | None:
        """Like `Consumer.getbatch`. Also switches clusters, because the call marks delivered records as done."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            if self._closed:
                if self._last is not None:
                    # marks the delivered records as done, which `close` waits for; raises Closed
                    await self._last.getbatch(0)
                raise Closed(f"the consumer of group {self.group!r} is closed")
            await self._follow()
            left = None if end is None else max(0.0, end - loop.time())
            if self._consumer is None:
                if not await wait_for_event(self._watcher.changed, left):
                    return None
                continue
            # short waits, so that a switch does not wait for the next record
            batch = await self._consumer.getbatch(0.2 if left is None else min(0.2, left))
            if batch is not None:
                return batch
            if end is not None and loop.time() >= end:
                return None

    async def commit(self, offsets: Mapping[PartitionKey, Offset] | None = None) -> None:
        """Like `Consumer.commit`. Does nothing while the group is frozen."""
        if self._consumer is not None:
            await self._consumer.commit(offsets)

    async def committed(self, partition: PartitionLike) -> OffsetAndMetadata | None:
        """Like `Consumer.committed`; None while the group is frozen."""
        return None if self._consumer is None else await self._consumer.committed(partition)

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this member owns on the current cluster."""
        return frozenset() if self._consumer is None else self._consumer.assignment()

    def may_act(self, record: Record | Batch | None = None) -> bool:
        """Like `Consumer.may_act`; False while the group is frozen."""
        return self._consumer is not None and self._consumer.may_act(record)

    async def _follow(self) -> None:
        """Leaves and joins until the member reads the chosen cluster."""
        while self._watcher.changed.is_set() or self._reads is None:
            self._watcher.changed.clear()
            choice = self._watcher.current
            if choice == self._reads and self._consumer is not None:
                return
            await self._leave()
            if choice.frozen:
                log.debug("%s: frozen", self.group)
                return
            brokers = choice.brokers or self._default
            consumer = self._make(brokers=brokers, security=self._securities.get(brokers, self._security))
            join_again_if(consumer, self._watcher.still(choice))
            await consumer.start()
            if self._closed:  # `close` was called before this consumer existed
                await consumer.close()
                return
            self._last = consumer
            log.info("%s: the member reads %s", self.group, brokers)
            self._consumer, self._reads = consumer, choice

    async def _leave(self, *, restart: bool = True) -> None:
        consumer, self._consumer, self._reads = self._consumer, None, None
        if consumer is None:
            return
        try:
            if self._auto and not self._closed:
                if consumer.assignment():
                    # without a valid lease, the commit would be refused
                    with contextlib.suppress(asyncio.TimeoutError):
                        await within(until_lease(consumer), self._session_timeout_s)
                # the caller's request for more marked the batch as done; after `close` there is no such request
                await consumer.commit()
        except AllocatorError as error:
            log.warning("%s: records that were not committed are repeated on the other cluster: %s", self.group, error)
        finally:
            await consumer.close(restart=restart)
