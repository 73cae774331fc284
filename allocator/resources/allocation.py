"""`Allocation`: one member of a group that shares named resources. Each resource has one owner at a time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any, Union

from allocator import RebalanceListener, ZooKeeper
from allocator.assignors import Assignor, built_in, resolve
from allocator.core.aio import ClosesOnce, call_user, warn_unclosed
from allocator.core.consumer import MembershipConfig
from allocator.core.settings import ANY_TOPIC, DEFAULT, names_arguments
from allocator.core.text import shown
from allocator.errors import AllocatorError, Closed, ConfigError, ResourceLost
from allocator.protocols.zookeeper import OF_RESOURCES, Paths, Store, ZooKeeperMembership, ZooKeeperSettings
from allocator.resources.assignor import OverNames
from allocator.resources.sources import NameSource, ResourceNames
from allocator.resources.task_holds import TaskHolds
from allocator.types import Partitions, TopicPartition

ROOT = "/allocator-resources"
"""The default root. It differs from that of consumers, so a consumer and an allocation may have the same group name."""
PREFERRED = "sticky"

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
        self._uses = TaskHolds(group, _Callbacks(on_assigned, on_revoked, on_lost or on_revoked))
        self._membership = ZooKeeperMembership(
            Store(zk, Paths(options.root, group)),
            self._uses,
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
            features=(OF_RESOURCES,),
        )
        self._closing = ClosesOnce()
        self._started = False

    async def start(self) -> None:
        """Joins the group. Raises ZooKeeperUnavailable after `connect_timeout_s` seconds."""
        if self._closing.begun:
            raise Closed("this allocation is closed; create another one")
        self._uses.start()
        await self._membership.join()
        self._started = True

    async def close(self, *, restart: bool = True) -> None:
        """Waits for the holders of each resource, releases all resources and leaves the group.

        May be called twice: each call returns when the allocation is closed. Do not call it inside a `hold`, because it
        waits for the end of the hold. A call that is cancelled, as by `asyncio.wait_for`, waits no longer: other
        members may hold the resources at once, and `may_act()` is False in the holds of this one. With `restart=False`,
        the resources move at once, although `restart_grace_s` reserves them.
        """
        await self._closing.run(partial(self._close, restart))

    async def _close(self, restart: bool) -> None:
        if not restart:
            self._membership.leave_for_good()
        self._uses.close()
        await self._membership.leave()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._closing.begun:  # `_started` is missing if `__init__` raised
            warn_unclosed(self, f"of group {self.group!r}")

    async def __aenter__(self) -> Allocation:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def held(self) -> frozenset[str]:
        """The resources that this member owns now, including those that it will release."""
        return _names(self._uses.tenures.owned)

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
        return self._uses.tenures.is_assigned(TopicPartition(name, 0)) and self._membership.may_act()

    def hold(self, name: str) -> Hold:
        """Returns a context manager that waits until this member owns the resource, and keeps it until the block ends.

        Several tasks of one member may hold the same resource at the same time. The context manager raises IllegalState
        before `start`, and for a hold that is entered already; Closed if the allocation is closed while it waits; and
        ResourceLost at the end of the block if the ownership ended with the session.
        """
        return Hold(self, self._uses, name)


class Hold:
    """One task's use of one resource. `Allocation.hold` creates it."""

    def __init__(self, allocation: Allocation, uses: TaskHolds, name: str) -> None:
        self.name = name
        self.lost = False
        """Whether the ownership has ended, so that another member may own the resource."""
        self._allocation = allocation
        self._uses = uses
        self._partition = TopicPartition(name, 0)

    def may_act(self) -> bool:
        """Returns whether the task may work on the resource at this instant."""
        return not self.lost and self._allocation.may_act(self.name)

    @property
    def wanted(self) -> bool:
        """Whether the resource waits for the end of this hold to move, or is lost."""
        return self.lost or not self._uses.is_ready(self._partition)

    async def until_wanted(self) -> None:
        """Waits until `wanted` is True."""
        await self._uses.until(lambda: self.wanted)

    async def __aenter__(self) -> Hold:
        while True:
            await self._uses.take(self._partition, self)
            if self._allocation.may_act(self.name):
                return self
            # not while the lease lapses, or a loop of holds would run without a pause
            self._uses.put_back(self._partition, self)
            await self._uses.until(lambda: self._allocation.may_act(self.name) or self.wanted)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._uses.put_back(self._partition, self)
        if self.lost and kind is None:
            raise ResourceLost(
                f"resource {self.name!r} was lost while it was held: the session ended, or close() was cancelled"
            )


class _Callbacks(RebalanceListener):
    """Passes names to the functions of the user."""

    def __init__(self, assigned: OnResources | None, revoked: OnResources | None, lost: OnResources | None) -> None:
        self._assigned, self._revoked, self._lost = assigned, revoked, lost

    def on_partitions_assigned(self, partitions: Partitions) -> object:
        return self._assigned and self._assigned(_names(partitions))

    def on_partitions_revoked(self, partitions: Partitions) -> object:
        return self._revoked and self._revoked(_names(partitions))

    def on_partitions_lost(self, partitions: Partitions) -> object:
        return self._lost and self._lost(_names(partitions))


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
            loads = await call_user(load, [topic for topic, _ in partitions])
        except Exception as error:
            raise AllocatorError(f"load raised {type(error).__name__}: {error}") from error
        if not isinstance(loads, Mapping):
            raise AllocatorError(f"load returned {shown(loads)}, not a mapping of names to numbers")
        for name, amount in loads.items():
            if not isinstance(amount, Real) or not math.isfinite(amount):
                raise AllocatorError(f"load returned {shown(amount)} for {shown(name)}, not a number")
        return {TopicPartition(name, 0): amount for name, amount in loads.items()}

    return of_partitions
