"""`Allocation`: one member of a group that shares named resources. Each resource has one owner at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Union

from allocator import ZooKeeper
from allocator.assignors import Assignor, resolve
from allocator.core.aio import ClosesOnce, warn_unclosed
from allocator.core.assignors import built_in
from allocator.core.consumer import MembershipConfig
from allocator.core.membership import AssignmentListener, ZooKeeperMembership, ZooKeeperSettings
from allocator.core.settings import DEFAULT, names_arguments
from allocator.core.subscription import ANY_TOPIC
from allocator.core.znodes import Paths
from allocator.errors import AllocatorError, Closed, ConfigError, IllegalState, ResourceLost
from allocator.resources.assignor import OverNames
from allocator.resources.sources import NameSource, ResourceNames
from allocator.types import Partitions, TopicPartition

log = logging.getLogger(__name__)

ROOT = "/allocator-resources"
"""The default root. It differs from that of consumers, so a consumer and an allocation may have the same group name."""
PREFERRED = "sticky"
PATIENCE_S = 10.0  # seconds between two log lines about resources that wait for their holders

OnResources = Callable[[frozenset[str]], object]
"""A function that gets the names of resources; it may be a coroutine."""
ResourceLoad = Callable[[Collection[str]], Union[Mapping[str, float], Awaitable[Mapping[str, float]]]]
"""A function that returns name -> load, all in one unit. It may omit names, and may be a coroutine."""


@names_arguments
class Allocation:
    """One member of a group that assigns named resources to its members. It needs ZooKeeper, and no Kafka.

    async with Allocation(["eu", "us"], group="reports", zookeeper="zk:2181") as allocation:
        async with allocation.hold("eu") as hold:
            while hold.may_act() and not hold.wanted:
                ...

    Guarantee: at any instant at most one member may act on a resource (`may_act`), under the same conditions as for the
    partitions of a `Consumer` with membership "zookeeper" (docs/guarantees.md). A resource that moves is drained first:
    its next owner starts after `on_revoked` has returned and all holds of the resource have ended.

    `resources`: a list of names; a function that returns the names, plain or a coroutine, which the leader calls at
    each change of the group and every `refresh_s` seconds; or `ChildrenOf(path)`. `on_assigned`, `on_revoked` and
    `on_lost` get a frozenset of names, and may be coroutines. Without `on_lost`, `on_revoked` is called instead.
    `assignor`: the name of a built-in assignor, by default `sticky`; or your own assignor, which sees each resource as
    a topic with the partition 0. `load` returns the load of names, for assignors that want it. The other arguments are
    settings of `Consumer`. The constructor does no I/O.
    """

    def __init__(
        self,
        resources: ResourceNames,
        *,
        group: str,
        zookeeper: str,
        on_assigned: OnResources | None = None,
        on_revoked: OnResources | None = None,
        on_lost: OnResources | None = None,
        assignor: str | Assignor | None = DEFAULT["assignor"],
        load: ResourceLoad | None = None,
        refresh_s: float = 10.0,
        client_id: str | None = DEFAULT["client_id"],
        weight: float = DEFAULT["weight"],
        rack: str | None = DEFAULT["rack"],
        instance_id: str | None = DEFAULT["instance_id"],
        restart_grace_s: float = DEFAULT["restart_grace_s"],
        session_timeout_s: float = DEFAULT["session_timeout_s"],
        connect_timeout_s: float = DEFAULT["connect_timeout_s"],
        root: str | None = None,
        zookeeper_options: Mapping[str, Any] | None = DEFAULT["zookeeper_options"],
    ) -> None:
        options = ZooKeeper(
            zookeeper,
            root=ROOT if root is None else root,
            session_timeout_s=session_timeout_s,
            zookeeper_options=zookeeper_options,
            instance_id=instance_id,
            restart_grace_s=restart_grace_s,
        )
        config = MembershipConfig.of(
            options,
            group=group,
            client_id=client_id,
            pattern=ANY_TOPIC,
            weight=weight,
            rack=rack,
            connect_timeout_s=connect_timeout_s,
        )
        config.check()
        if not refresh_s > 0:
            raise ConfigError(f"refresh_s = {refresh_s!r}: must be a number of seconds above 0")
        self.group = group
        self.client_id = config.client_id
        function = assignor_of(PREFERRED if assignor is None else assignor)
        zk = options.ensemble()
        self._holdings = _Holdings(group, on_assigned, on_revoked, on_lost or on_revoked)
        self._membership = ZooKeeperMembership(
            zk,
            Paths(options.root, group),
            self._holdings,
            NameSource(resources, zk),
            {function.name: function},
            ZooKeeperSettings(
                name=self.client_id,
                pattern=ANY_TOPIC,
                weight=weight,
                rack=rack,
                connect_timeout_s=connect_timeout_s,
                topic_poll_s=refresh_s,
                **options.place(),
            ),
            load=None if load is None else _load_of(load),
        )
        self._closing = ClosesOnce()
        self._started = False

    async def start(self) -> None:
        """Joins the group. Raises ZooKeeperUnavailable after `connect_timeout_s` seconds."""
        self._holdings.start()
        await self._membership.join()
        self._started = True

    async def close(self, *, restart: bool = True) -> None:
        """Waits for the holders of each resource, releases all resources and leaves the group.

        May be called twice: each call returns when the allocation is closed. Do not call it inside a `hold`, because it
        waits for the end of the hold. With `restart=False`, the resources move at once, although `restart_grace_s`
        reserves them.
        """
        await self._closing.run(partial(self._close, restart))

    async def _close(self, restart: bool) -> None:
        if not restart:
            self._membership.leave_for_good()
        self._holdings.close()
        await self._membership.leave()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._closing.begun:  # `_started` is missing if `__init__` raised
            warn_unclosed(self, self.group)

    async def __aenter__(self) -> Allocation:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def held(self) -> frozenset[str]:
        """The resources that this member owns now, including those that it will release."""
        return _names(self._holdings.tenures.owned)

    @property
    def member_id(self) -> str:
        """The member's id in the group; empty before it joined."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """Number of the assignment that this member follows."""
        return self._membership.generation

    def may_act(self, name: str) -> bool:
        """Returns whether this member may work on the resource at this instant. Call it before each step with an
        effect."""
        return self._holdings.tenures.is_assigned(TopicPartition(name, 0)) and self._membership.may_act()

    def hold(self, name: str) -> Hold:
        """Returns a context manager that waits until this member owns the resource, and keeps it until the block ends.

        Several tasks of one member may hold the same resource at the same time. The context manager raises IllegalState
        before `start`, Closed if the allocation is closed while it waits, and ResourceLost at the end of the block if
        the ownership ended with the session.
        """
        return Hold(self, self._holdings, name)


class Hold:
    """One task's use of one resource. `Allocation.hold` creates it."""

    def __init__(self, allocation: Allocation, holdings: _Holdings, name: str) -> None:
        self.name = name
        self.lost = False
        """Whether the ownership has ended, so that another member may own the resource."""
        self._allocation = allocation
        self._holdings = holdings

    def may_act(self) -> bool:
        """Returns whether the task may work on the resource at this instant."""
        return not self.lost and self._allocation.may_act(self.name)

    @property
    def wanted(self) -> bool:
        """Whether the resource waits for the end of this hold to move, or is lost."""
        return self.lost or self.name not in self._holdings.ready

    async def until_wanted(self) -> None:
        """Waits until `wanted` is True."""
        while not self.wanted:
            await self._holdings.news()

    async def __aenter__(self) -> Hold:
        await self._holdings.take(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._holdings.put_back(self)
        if self.lost and kind is None:
            raise ResourceLost(f"resource {self.name!r} was lost while it was held: the session ended")


class _Holdings(AssignmentListener):
    """The `AssignmentListener` of an allocation. It tracks the tasks that hold resources."""

    def __init__(self, group: str, on_assigned: Any, on_revoked: Any, on_lost: Any) -> None:
        self._group = group
        self.ready: set[str] = set()
        """The owned resources that tasks may take: `on_assigned` has returned, and they need not move."""
        self._holds: defaultdict[str, set[Hold]] = defaultdict(set)
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._error: BaseException | None = None
        self._closed = False
        self._next_news: asyncio.Event | None = None  # None before the start

    def start(self) -> None:
        self._next_news = asyncio.Event()

    def close(self) -> None:
        self._closed = True
        self._tell()

    # -- holding -------------------------------------------------------------------------------------------------

    async def news(self) -> None:
        """Waits for the next change of any kind."""
        if self._next_news is None:
            raise IllegalState(
                f"the allocation of group {self._group!r} is not started; await start() first, or use async with"
            )
        await self._next_news.wait()

    def _tell(self) -> None:
        if self._next_news is not None:
            self._next_news.set()
            self._next_news = asyncio.Event()

    async def take(self, hold: Hold) -> None:
        while hold.name not in self.ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._closed:
                raise Closed(f"the allocation of group {self._group!r} is closed")
            await self.news()
        hold.lost = False
        self._holds[hold.name].add(hold)

    def put_back(self, hold: Hold) -> None:
        self._holds[hold.name].discard(hold)
        if not self._holds[hold.name]:
            del self._holds[hold.name]
            self._tell()

    # -- called by the membership --------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        names = _names(partitions)
        self._error = None  # forgets an earlier error, because the member takes part again
        await self._call(self._on_assigned, names)
        # some resources may have been revoked in the meantime
        self.ready |= names & _names(self.tenures.held)
        self._tell()

    async def revoked(self, partitions: Partitions) -> None:
        names = _names(partitions)
        self.ready -= names
        self._tell()
        await asyncio.gather(self._call(self._on_revoked, names), self._unheld(names))

    async def lost(self, partitions: Partitions) -> None:
        names = _names(partitions)
        self.ready -= names
        for name in names & self._holds.keys():
            for hold in self._holds[name]:
                hold.lost = True
        self._tell()
        await self._call(self._on_lost, names)

    def suspended(self, why: str) -> None:
        """Does nothing: `may_act` returns False while the lease is not valid."""

    def resumed(self) -> None:
        """Forgets an earlier error. `may_act` returns True again."""
        self._error = None

    def failed(self, error: BaseException) -> None:
        log.error("%s: %s", self._group, error)
        self._error = error
        self._tell()

    async def _unheld(self, names: frozenset[str]) -> None:
        while names & self._holds.keys():
            news = asyncio.ensure_future(self.news())
            try:
                done, _ = await asyncio.wait({news}, timeout=PATIENCE_S)
            finally:
                news.cancel()
            if not done:
                log.warning("%s: %d resources wait for their holders", self._group, len(names & self._holds.keys()))

    async def _call(self, callback: Any, names: frozenset[str]) -> None:
        if callback is None or not names:
            return
        try:
            with ClosesOnce.callback():
                result = callback(names)
                if inspect.isawaitable(result):
                    await result
        except Exception:
            log.exception("%s: a callback failed for %d resources", self._group, len(names))


def assignor_of(given: str | Assignor) -> Assignor:
    """Returns the assignor for resources. A built-in assignor sees all resources as one topic. Raises
    AllocatorError."""
    found = resolve(given)
    return OverNames(found) if built_in(found.name) is found else found


def _names(partitions: Iterable[TopicPartition]) -> frozenset[str]:
    return frozenset(topic for topic, _ in partitions)


def _load_of(load: ResourceLoad) -> Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, float]]]:
    async def of_partitions(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, float]:
        try:
            found = load([topic for topic, _ in partitions])
            loads = await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise AllocatorError(f"load raised {type(error).__name__}: {error}") from error
        return {TopicPartition(name, 0): amount for name, amount in loads.items()}

    return of_partitions
