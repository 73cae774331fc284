"""The base class of clusters, for all backends."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ClusterError
from .node import Node
from .probe import Metadata, metadata
from .topics import KraftTopics, Topics, ZooKeeperTopics, spread, zookeeper_client
from .versions import Release
from .waiting import wait_until

if TYPE_CHECKING:
    from .producing import Produced

C = TypeVar("C", bound="Cluster")


class Cluster(ABC):
    """Brokers and ZooKeeper nodes. Use a cluster with `with` or `async with`.

    All methods block: from a coroutine use `await asyncio.to_thread(cluster.create_topic, ...)`.
    """

    start_timeout_s: float = 120.0

    def __init__(self, release: Release | None, brokers: int, zookeepers: int) -> None:
        if release is None:
            brokers = 0
        elif brokers < 1:
            raise ClusterError(f"{brokers} brokers are not enough; set at least 1, or kafka=None")
        if zookeepers < (0 if release is not None and release.kraft else 1):
            raise ClusterError(
                f"{zookeepers} ZooKeeper nodes are not enough; set at least 1 (only KRaft, 4.x, needs none)"
            )
        self.release = release
        self.brokers: list[Node] = []
        self.zookeepers: list[Node] = []
        self._count = (brokers, zookeepers)

    @abstractmethod
    def start(self) -> None:
        """Starts all servers at once, and waits until each responds and the brokers know each other."""

    @abstractmethod
    def stop(self) -> None:
        """Kills all servers and removes their data. May be called twice. For a clean shutdown, stop each node first."""

    # -- properties -----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__} kafka={self.version or None} {self.brokers + self.zookeepers}>"

    @property
    def version(self) -> str:
        """Kafka's version; empty without Kafka."""
        return self.release.version if self.release is not None else ""

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port` of all brokers, including those that are down."""
        return ",".join(node.address for node in self.brokers)

    @property
    def zookeeper(self) -> str:
        """`host:port,host:port` of all ZooKeeper nodes, without a chroot."""
        return ",".join(node.address for node in self.zookeepers)

    @property
    def _zookeeper(self) -> str:
        """Like `zookeeper`, but the addresses bypass the proxies."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.zookeepers)

    @property
    def nodes(self) -> list[Node]:
        return self.zookeepers + self.brokers

    # -- starting and stopping -----------------------------------------------------------------------------------

    def __enter__(self: C) -> C:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self: C) -> C:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # the thread continues after a cancellation, and would leave its servers running
            with contextlib.suppress(Exception):
                await starting
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def heal(self) -> None:
        """Starts stopped nodes, resumes paused nodes, ends the proxies' faults, and waits until all nodes are ready."""
        for node in self.nodes:
            if node.proxy is not None:
                node.proxy.heal()
        broken = [node for node in self.nodes if node.paused or not node.alive]
        if broken:
            for kind in (self.zookeepers, self.brokers):  # ZooKeeper first: a broker exits without it
                for node in kind:
                    node.start(self.start_timeout_s)
            self.wait_settled()

    def wait_settled(self, timeout_s: float = 60.0) -> None:
        """Waits until every running broker knows the others and the brokers have elected a controller."""
        if self.release is not None:
            wait_until(self._settled, timeout_s, lambda: f"the brokers of {self!r} to know each other")

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Creates a topic, and waits until every running broker knows a leader of each partition.

        Raises ClusterError, WaitTimeout.
        """
        replicas = spread(range(partitions), replication, self._running())
        self._topics().create(name, replicas, config or {})
        self._wait_leaders(name, partitions, timeout_s)

    def delete_topic(self, name: str, *, timeout_s: float = 30.0) -> None:
        """Deletes the topic and waits until no running broker lists it. With timeout_s=0, does not wait.

        Raises ClusterError with 0.8.1.1, which cannot delete topics.
        """
        if self.release is not None and self.release.number < (0, 8, 2):
            raise ClusterError(f"Kafka {self.version} cannot delete topics; use another topic instead")
        topics = self._topics()
        topics.delete(name)
        if timeout_s:
            # brokers drop the topic before its znode is deleted, and until then it cannot be created again
            wait_until(
                lambda: all(name not in known.topics for known in self.metadata()) and not topics.exists(name),
                timeout_s,
                f"the deletion of topic {name!r} at {self.bootstrap}",
            )

    def add_partitions(self, name: str, total: int, *, timeout_s: float = 30.0) -> None:
        """Adds partitions until the topic has `total`. Waits like `create_topic`."""
        states = next((known.topics[name] for known in self.metadata() if name in known.topics), None)
        if states is None:
            raise ClusterError(f"there is no topic {name!r} to add partitions to")
        if total <= len(states):
            raise ClusterError(f"topic {name!r} has {len(states)} partitions already; {total} adds none")
        replication = max(len(state.replicas) for state in states.values())
        self._topics().grow(name, spread(range(len(states), total), replication, self._running()))
        self._wait_leaders(name, total, timeout_s)

    def metadata(self) -> list[Metadata]:
        """Returns the metadata of each running, unpaused broker that responds within a few seconds."""
        views = (metadata(node.port) for node in self.brokers if node.alive and not node.paused)
        return [view for view in views if view is not None]

    def leader(self, topic: str, partition: int) -> Node | None:
        """Returns the current leader of the partition, or None."""
        for known in self.metadata():
            state = known.topics.get(topic, {}).get(partition)
            if state is not None and state.leader is not None:
                return next(node for node in self.brokers if node.id == state.leader)
        return None

    def produce(self, topic: str, records: Iterable[Produced], **options: Any) -> dict[int, int]:
        """Calls `allocator.testing.produce` for this cluster. Returns partition -> number of records."""
        from .producing import produce

        return produce(self.bootstrap, topic, records, **{"version": self.version or None, **options})

    # -- state ----------------------------------------------------------------------------------------------------

    def _broker_ready(self, number: int, port: int) -> bool:
        known = metadata(port)
        if known is None:
            return False
        # 0.8 and 0.9 list no brokers before the first topic, so read ZooKeeper
        return number in known.brokers or (self._lists_no_brokers() and number in self._registered())

    def _settled(self) -> bool:
        running = set(self._running())
        views = self.metadata()
        if len(views) < len(running):
            return False
        if all(running <= set(view.brokers) for view in views):
            return True
        return (
            self._lists_no_brokers()
            and not any(view.topics for view in views)
            and running <= self._registered(controller=True)
        )

    def _lists_no_brokers(self) -> bool:
        return self.release is not None and self.release.number < (0, 10)

    def _registered(self, controller: bool = False) -> set[int]:
        with contextlib.suppress(ClusterError), zookeeper_client(self._zookeeper, 5.0) as zk:
            if zk.exists("/brokers/ids") and (not controller or zk.exists("/controller")):
                return {int(name) for name in zk.get_children("/brokers/ids")}
        return set()

    def _running(self) -> list[int]:
        return [node.id for node in self.brokers if node.alive and not node.paused]

    def _topics(self) -> Topics:
        if self.release is None or not self.brokers:
            raise ClusterError("no topics without brokers: the cluster has none, or was not started")
        return KraftTopics(self.bootstrap) if self.release.kraft else ZooKeeperTopics(self._zookeeper)

    def _wait_leaders(self, name: str, partitions: int, timeout_s: float) -> None:
        def led() -> bool:
            views = self.metadata()
            states = [view.topics.get(name, {}) for view in views]
            return bool(views) and all(
                len(known) >= partitions and all(state.leader is not None for state in known.values())
                for known in states
            )

        wait_until(led, timeout_s, lambda: f"leaders of {partitions} partitions of {name!r} at {self.bootstrap}")
