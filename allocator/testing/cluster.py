"""Real ZooKeeper and Kafka on this machine, for as long as a `with` block."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from .errors import ClusterError, ServerStartFailed
from .jars import class_path
from .java import Java, find_java
from .node import Node
from .ports import PortLease
from .probe import Metadata, metadata, zookeeper_mode
from .settings import broker_settings, kraft_settings, log4j_settings, properties, zookeeper_settings
from .topics import KraftTopics, Topics, ZooKeeperTopics, spread, zookeeper_client
from .versions import ZOOKEEPER, Release, kafka_release
from .waiting import wait_until

if TYPE_CHECKING:
    from .produce import Produced

__all__ = ["LocalCluster"]

C = TypeVar("C", bound="LocalCluster")
_CLUSTER_ID = "allocator-testing-0000"  # KRaft wants 16 bytes in base64, the same on all nodes
_QUICK_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)


class LocalCluster:
    """Some brokers and ZooKeeper nodes on 127.0.0.1; a context manager for `with` and for `async with`.

    kafka: a version of `allocator.testing.versions.KAFKA`, or None for ZooKeeper alone. brokers, zookeepers: how
    many; KRaft versions (4.x) do without ZooKeeper, theirs is a separate one for the allocator and may be 0.
    broker_config: settings of server.properties; `{port}`, `{port2}` (one more free port of that broker), `{id}`
    and `{directory}` in a value are filled in. zookeeper_config: likewise for zoo.cfg. directory: where data and
    logs go, kept afterwards; by default a temporary one that is removed. heap, zookeeper_heap: -Xmx of each
    process. jvm_options: further options of all of them. tick_ms: ZooKeeper's tick; sessions may be as short as
    two. start_timeout_s: seconds until all servers must answer.

    Guarantee: after `stop`, or when this process ends in any way, SIGKILL included, no server is left running.
    Everything blocks: from a coroutine use `await asyncio.to_thread(cluster.create_topic, ...)`.
    Raises UnknownVersion, JavaNotFound, JarsUnavailable, ServerStartFailed, ClusterError.
    """

    def __init__(
        self,
        kafka: str | None = "3.9.1",
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        broker_config: Mapping[str, object] | None = None,
        zookeeper_config: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
        heap: str = "384m",
        zookeeper_heap: str = "128m",
        jvm_options: Sequence[str] = (),
        tick_ms: int = 500,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.release: Release | None = None if kafka is None else kafka_release(kafka)
        if self.release is None:
            brokers = 0
        elif brokers < 1:
            raise ClusterError(f"{brokers} brokers make no cluster; ask for at least 1, or for kafka=None")
        if zookeepers < (1 if self.release is None or not self.release.kraft else 0):
            raise ClusterError(f"{zookeepers} ZooKeeper nodes: Kafka {kafka or 'None'} needs at least 1")
        self.brokers: list[Node] = []
        self.zookeepers: list[Node] = []
        self._count = (brokers, zookeepers)
        self._broker_config = dict(broker_config or {})
        self._zookeeper_config = dict(zookeeper_config or {})
        self._keep = None if directory is None else Path(directory).absolute()
        self._heap, self._zookeeper_heap = heap, zookeeper_heap
        self._jvm_options = tuple(jvm_options)
        self._tick_ms = tick_ms
        self._start_timeout_s = start_timeout_s
        self._ports = PortLease()
        self._directory: Path | None = None

    # -- what it is ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<LocalCluster kafka={self.version or None} {self.brokers + self.zookeepers}>"

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
    def directory(self) -> Path:
        """Where the servers' settings, logs and data are while the cluster runs."""
        if self._directory is None:
            raise ClusterError("the cluster was not started")
        return self._directory

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

    def start(self) -> None:
        """Start all servers at once and return when each answers and the brokers know one another."""
        if self._directory is not None:
            raise ClusterError("the cluster was started already; stop() it first")
        java = find_java(max([11] + ([self.release.oldest_java] if self.release is not None else [])))
        if self._keep is None:
            self._directory = Path(tempfile.mkdtemp(prefix="allocator-cluster-"))
        else:
            self._directory = self._keep
        try:
            self._lay_out(java, self._directory)
            self._all(Node.launch)
            self._all(lambda node: node.wait_ready(self._start_timeout_s))
            self.wait_settled()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all servers and remove their data. Twice is safe. For an orderly end stop each node before."""
        for node in self.nodes:
            node.close()
        self._ports.release()
        if self._directory is not None and self._keep is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None
        self.brokers, self.zookeepers = [], []

    def heal(self) -> None:
        """Start what is down and resume what is paused, and wait until the cluster is whole again."""
        broken = [node for node in self.nodes if node.paused or not node.alive]
        if broken:
            for kind in (self.zookeepers, self.brokers):  # a broker gives up when it finds no ZooKeeper
                for node in kind:
                    node.start(self._start_timeout_s)
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
        self._topics().delete(name)
        if timeout_s:
            wait_until(
                lambda: all(name not in known.topics for known in self.metadata()),
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

    def produce(self, topic: str, records: Iterable[Produced], *, compression: str | None = None) -> dict[int, int]:
        """`allocator.testing.produce` to this cluster; returns the number of records by partition."""
        from .produce import produce

        return produce(self.bootstrap, topic, records, version=self.version, compression=compression)

    # -- how it is laid out --------------------------------------------------------------------------------------

    def _lay_out(self, java: Java, directory: Path) -> None:
        brokers, zookeepers = self._count
        remove = directory if self._keep is None else None
        if zookeepers:
            jars = class_path(ZOOKEEPER, java)
            ports = {number: self._ports.take() for number in range(1, zookeepers + 1)}
            quorum = {number: (self._ports.take(), self._ports.take()) for number in ports}
            for number, port in ports.items():
                place = directory / f"zookeeper-{number}"
                self.zookeepers.append(
                    Node(
                        "ZooKeeper",
                        number,
                        port,
                        place,
                        self._command(java, jars, place, self._zookeeper_heap, "zookeeper"),
                        prepare=self._zookeeper_files(number, port, place, quorum),
                        ready=lambda port=port: zookeeper_mode(port) is not None,
                        remove=remove,
                    )
                )
        if self.release is not None:
            jars = class_path(self.release.jars, java)
            listen = {number: (self._ports.take(), self._ports.take(), self._ports.take()) for number in range(brokers)}
            for number, (port, second, controller) in listen.items():
                place = directory / f"kafka-{number}"
                voters = [(n, listen[n][2]) for n in range(3 if brokers >= 3 else 1)]
                settings = broker_settings(self.release, number, place, port, brokers, self.zookeeper)
                if self.release.kraft:
                    settings.update(kraft_settings(number, port, controller, voters))
                settings.update(
                    {
                        key: _filled(value, port=port, port2=second, id=number, directory=place)
                        for key, value in self._broker_config.items()
                    }
                )
                self.brokers.append(
                    Node(
                        "Kafka broker",
                        number,
                        port,
                        place,
                        self._command(java, jars, place, self._heap, "kafka"),
                        prepare=self._broker_files(self.release, number, place, settings, java, jars),
                        ready=lambda number=number, port=port: self._broker_ready(number, port),
                        remove=remove,
                    )
                )

    def _command(self, java: Java, jars: str, place: Path, heap: str, kind: str) -> Callable[[], list[str]]:
        main = {
            "zookeeper": ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(place / "zoo.cfg")],
            "kafka": ["kafka.Kafka", str(place / "server.properties")],
        }
        logging = f"-Dlog4j.configuration=file:{place / 'log4j.properties'}"
        options = [f"-Xmx{heap}", *_QUICK_JVM, logging, *self._jvm_options]
        return lambda: [java.executable, *options, "-cp", jars, *main[kind]]

    def _zookeeper_files(
        self, number: int, port: int, place: Path, quorum: Mapping[int, tuple[int, int]]
    ) -> Callable[[], None]:
        def write() -> None:
            settings = zookeeper_settings(number, place, port, quorum, self._tick_ms)
            settings.update(
                {
                    key: _filled(value, port=port, id=number, directory=place)
                    for key, value in self._zookeeper_config.items()
                }
            )
            (place / "data").mkdir(exist_ok=True)
            (place / "data" / "myid").write_text(f"{number}\n")
            (place / "zoo.cfg").write_text(properties(settings))
            (place / "log4j.properties").write_text(log4j_settings(place / "server.log"))

        return write

    def _broker_files(
        self, release: Release, number: int, place: Path, settings: Mapping[str, object], java: Java, jars: str
    ) -> Callable[[], None]:
        def write() -> None:
            again = (place / "server.properties").exists()
            (place / "data").mkdir(exist_ok=True)
            (place / "server.properties").write_text(properties(settings))
            (place / "log4j.properties").write_text(log4j_settings(place / "server.log"))
            if release.kraft:
                if not (place / "data" / "meta.properties").exists():
                    self._format(place, java, jars)
            elif again:
                self._forget(number)

        return write

    def _format(self, place: Path, java: Java, jars: str) -> None:
        """KRaft's data directories are made by a tool of their version."""
        command = [java.executable, "-Xmx128m", *_QUICK_JVM, "-cp", jars, "kafka.tools.StorageTool"]
        command += ["format", "-t", _CLUSTER_ID, "-c", str(place / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self._start_timeout_s)
        if done.returncode:
            raise ServerStartFailed(f"formatting {place / 'data'} failed:\n{done.stdout}{done.stderr}")

    def _forget(self, number: int) -> None:
        """Remove what a killed broker left in ZooKeeper until its session ends: it would refuse itself a place."""
        from kazoo.exceptions import NoNodeError

        with contextlib.suppress(ClusterError), zookeeper_client(self.zookeeper, 5.0) as zk:
            with contextlib.suppress(NoNodeError):
                zk.delete(f"/brokers/ids/{number}")
            with contextlib.suppress(NoNodeError, ValueError):
                data, stat = zk.get("/controller")
                if json.loads(data).get("brokerid") == number:
                    zk.delete("/controller", version=stat.version)

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
        with contextlib.suppress(ClusterError), zookeeper_client(self.zookeeper, 5.0) as zk:
            if zk.exists("/brokers/ids") and (not controller or zk.exists("/controller")):
                return {int(name) for name in zk.get_children("/brokers/ids")}
        return set()

    def _running(self) -> list[int]:
        return [node.id for node in self.brokers if node.alive and not node.paused]

    def _topics(self) -> Topics:
        if self.release is None or not self.brokers:
            raise ClusterError("no topics without brokers: the cluster has none, or was not started")
        return KraftTopics(self.bootstrap) if self.release.kraft else ZooKeeperTopics(self.zookeeper)

    def _wait_leaders(self, name: str, partitions: int, timeout_s: float) -> None:
        def led() -> bool:
            views = self.metadata()
            states = [view.topics.get(name, {}) for view in views]
            return bool(views) and all(
                len(known) >= partitions and all(state.leader is not None for state in known.values())
                for known in states
            )

        wait_until(led, timeout_s, lambda: f"leaders of {partitions} partitions of {name!r} at {self.bootstrap}")

    def _all(self, work: Callable[[Node], None]) -> None:
        """Do it to all nodes at once; the first failure is raised after all have ended."""
        with ThreadPoolExecutor(max_workers=max(1, len(self.nodes)), thread_name_prefix="cluster") as pool:
            for future in [pool.submit(work, node) for node in self.nodes]:
                future.result()


def _filled(value: object, **known: object) -> str:
    text = str(value)
    for key, replacement in known.items():
        text = text.replace("{" + key + "}", str(replacement))
    return text
