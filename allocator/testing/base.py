"""What a cluster can do, wherever its servers run."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ClusterError
from .node import Node
from .probe import Metadata, metadata
from .topics import KraftTopics, Topics, ZooKeeperTopics, spread, zookeeper_client
from .versions import Release
from .waiting import wait_until

if TYPE_CHECKING:
    from .producing import Produced

__all__ = ["Cluster"]

C = TypeVar("C", bound="Cluster")


class Cluster(ABC):
    """Some brokers and ZooKeeper nodes; a context manager for `with` and for `async with`.

    Everything blocks: from a coroutine use `await asyncio.to_thread(cluster.create_topic, ...)`.
    """

    start_timeout_s: float = 120.0

    def __init__(self, release: Release | None, brokers: int, zookeepers: int) -> None:
        if release is None:
            brokers = 0
        elif brokers < 1:
            raise ClusterError(f"{brokers} brokers make no cluster; ask for at least 1, or for kafka=None")
        if zookeepers < (0 if release is not None and release.kraft else 1):
            raise ClusterError(f"{zookeepers} ZooKeeper nodes: only KRaft (4.x) does without; ask for at least 1")
        self.release = release
        self.brokers: list[Node] = []
        self.zookeepers: list[Node] = []
        self._count = (brokers, zookeepers)

    @abstractmethod
    def start(self) -> None:
        """Start all servers at once and return when each answers and the brokers know one another."""

    @abstractmethod
    def stop(self) -> None:
        """Kill all servers and remove their data. Twice is safe. For an orderly end stop each node before."""

    # -- what it is ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__} kafka={self.version or None} {self.brokers + self.zookeepers}>"

    @property
    def version(self) -> str:
        """Kafka's version; empty when there is no Kafka."""
        return self.release.version if self.release is not None else ""

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port` of all brokers, also of those that are down."""
        return ",".join(node.address for node in self.brokers)

    @property
    def zookeeper(self) -> str:
        """`host:port,host:port` of all ZooKeeper nodes, without a chroot."""
        return ",".join(node.address for node in self.zookeepers)

    @property
    def _zookeeper(self) -> str:
        """The same past the proxies, for the brokers and for us."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.zookeepers)

    @property
    def nodes(self) -> list[Node]:
        return self.zookeepers + self.brokers

    # -- starting and stopping -----------------------------------------------------------------------------------

    def __enter__(self: C) -> C:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self: C) -> C:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # the thread goes on whatever happens here; what it starts must not be left behind
            with contextlib.suppress(Exception):
                await starting
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def heal(self) -> None:
        """Start what is down, resume what is paused, end all faults of proxies, and wait until the cluster is whole."""
        for node in self.nodes:
            if node.proxy is not None:
                node.proxy.heal()
        broken = [node for node in self.nodes if node.paused or not node.alive]
        if broken:
            for kind in (self.zookeepers, self.brokers):  # a broker gives up when it finds no ZooKeeper
                for node in kind:
                    node.start(self.start_timeout_s)
            self.wait_settled()

    def wait_settled(self, timeout_s: float = 60.0) -> None:
        """Wait until every running broker knows every other one, and a controller is elected."""
        if self.release is not None:
            wait_until(self._settled, timeout_s, lambda: f"the brokers of {self!r} to know one another")

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
        """Returns when every running broker knows a leader for each partition. Raises ClusterError, WaitTimeout."""
        replicas = spread(range(partitions), replication, self._running())
        self._topics().create(name, replicas, config or {})
        self._wait_leaders(name, partitions, timeout_s)

    def delete_topic(self, name: str, *, timeout_s: float = 30.0) -> None:
        """Returns when no running broker lists the topic; with timeout_s=0 as soon as it was asked for.

        0.8.1.1 cannot delete topics: ClusterError.
        """
        if self.release is not None and self.release.number < (0, 8, 2):
            raise ClusterError(f"Kafka {self.version} cannot delete topics; use another topic instead")
        topics = self._topics()
        topics.delete(name)
        if timeout_s:
            # the brokers forget it before its znode goes, and until then it cannot be created again
            wait_until(
                lambda: all(name not in known.topics for known in self.metadata()) and not topics.exists(name),
                timeout_s,
                f"topic {name!r} to be gone from {self.bootstrap}",
            )

    def add_partitions(self, name: str, total: int, *, timeout_s: float = 30.0) -> None:
        """Let the topic have `total` partitions; returns as `create_topic` does."""
        states = next((known.topics[name] for known in self.metadata() if name in known.topics), None)
        if states is None:
            raise ClusterError(f"there is no topic {name!r} to add partitions to")
        if total <= len(states):
            raise ClusterError(f"topic {name!r} has {len(states)} partitions already; {total} adds none")
        replication = max(len(state.replicas) for state in states.values())
        self._topics().grow(name, spread(range(len(states), total), replication, self._running()))
        self._wait_leaders(name, total, timeout_s)

    def metadata(self) -> list[Metadata]:
        """What each broker says that runs and answers within some seconds; paused ones are left out."""
        answers = (metadata(node.port) for node in self.brokers if node.alive and not node.paused)
        return [answer for answer in answers if answer is not None]

    def leader(self, topic: str, partition: int) -> Node | None:
        """The node that leads the partition now, or None."""
        for known in self.metadata():
            state = known.topics.get(topic, {}).get(partition)
            if state is not None and state.leader is not None:
                return next(node for node in self.brokers if node.id == state.leader)
        return None

    def produce(self, topic: str, records: Iterable[Produced], **options: Any) -> dict[int, int]:
        """`allocator.testing.produce` to this cluster, with its options; returns the records by partition."""
        from .producing import produce

        return produce(self.bootstrap, topic, records, **{"version": self.version or None, **options})

    # -- how it is -----------------------------------------------------------------------------------------------

    def _broker_ready(self, number: int, port: int) -> bool:
        known = metadata(port)
        if known is None:
            return False
        # 0.8 and 0.9 list no broker before the first topic: there ZooKeeper is asked
        return number in known.brokers or (self._shy() and number in self._registered())

    def _settled(self) -> bool:
        running = set(self._running())
        views = self.metadata()
        if len(views) < len(running):
            return False
        if all(running <= set(view.brokers) for view in views):
            return True
        return self._shy() and not any(view.topics for view in views) and running <= self._registered(controller=True)

    def _shy(self) -> bool:
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
