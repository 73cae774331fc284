"""Real ZooKeeper and Kafka on this machine during a `with` block."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from . import classes, layout
from .base import Cluster
from .errors import ClusterError
from .jars import class_path
from .java import OLDEST, find_java
from .layout import advertised, broker_settings, kraft_settings, with_controller, zookeeper_settings
from .node import Node
from .ports import PortLease
from .probe import zookeeper_mode
from .proxy import FaultProxy
from .versions import USUAL_ZOOKEEPER, JarSet, Release, kafka_release, zookeeper_jars

# 3.4 registers JMX beans of log4j, which reload4j lacks
_NO_LOG4J_BEANS = "-Dzookeeper.jmx.log4j.disable=true"


class LocalCluster(Cluster):
    """Brokers and ZooKeeper nodes on 127.0.0.1, each a Java process.

    - kafka: a supported version, such as "3.9.1", or None for ZooKeeper alone.
    - brokers, zookeepers: numbers of nodes. KRaft versions (4.x) need no ZooKeeper nodes; only the allocator uses them.
    - zookeeper_version: a supported version, from "3.4.14" to "3.9.5".
    - broker_config: settings of server.properties. A value may contain `{port}`, `{id}`, `{directory}`, and `{port2}`
      to `{port4}`: further free ports of the node (`node.more_ports`), such as for listeners with TLS.
    - zookeeper_config: settings of zoo.cfg, with the same placeholders.
    - directory: directory for data and logs, which `stop` keeps; by default a temporary directory.
    - heap, zookeeper_heap: -Xmx of each process. jvm_options: further Java options of all processes.
    - tick_ms: ZooKeeper's tick in milliseconds; the shortest session timeout is two ticks.
    - proxied: each node gets a `FaultProxy`, `node.proxy`, to which `bootstrap`, `zookeeper` and the advertised
      addresses point. Brokers and ZooKeeper nodes connect to ZooKeeper directly. Not supported with KRaft.
    - kafka_port, zookeeper_port: port of the first node of each kind; the other nodes use the next ports. By default
      any free ports.

    Guarantee: no server runs after `stop`, or after this process has ended in any way, including SIGKILL.
    Raises UnknownVersion, JavaNotFound, JarsUnavailable, ServerStartFailed, ClusterError.
    """

    def __init__(
        self,
        kafka: str | None = "3.9.1",
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        zookeeper_version: str = USUAL_ZOOKEEPER,
        broker_config: Mapping[str, object] | None = None,
        zookeeper_config: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
        heap: str = "384m",
        zookeeper_heap: str = "128m",
        jvm_options: Sequence[str] = (),
        tick_ms: int = 500,
        proxied: bool = False,
        kafka_port: int | None = None,
        zookeeper_port: int | None = None,
    ) -> None:
        super().__init__(None if kafka is None else kafka_release(kafka), brokers, zookeepers)
        self.zookeeper_version = zookeeper_version
        self._zookeeper_jars = zookeeper_jars(zookeeper_version)
        self._broker_config = dict(broker_config or {})
        self._zookeeper_config = dict(zookeeper_config or {})
        self._keep = None if directory is None else Path(directory).absolute()
        self._heap, self._zookeeper_heap = heap, zookeeper_heap
        self._jvm_options = tuple(jvm_options)
        self._tick_ms = tick_ms
        self._proxied = proxied
        self._first_ports = zookeeper_port, kafka_port
        for what, first, count in (("zookeeper", zookeeper_port, zookeepers), ("kafka", kafka_port, brokers)):
            if first is not None and first + count - 1 > 65535:
                raise ClusterError(f"{what}_port = {first}: the {count} nodes would need ports above 65535")
        if proxied and self.release is not None and self.release.kraft:
            raise ClusterError(f"proxied=True needs brokers that use ZooKeeper; Kafka {self.version} is KRaft")
        self._ports = PortLease()
        self._directory: Path | None = None

    @property
    def directory(self) -> Path:
        """Directory with the settings, logs and data of the running cluster."""
        if self._directory is None:
            raise ClusterError("the cluster was not started")
        return self._directory

    def start(self) -> None:
        """Starts all servers at once, and waits until each responds and the brokers know each other."""
        if self._directory is not None:
            raise ClusterError("the cluster was started already; stop() it first")
        self._find_programs()
        self._directory = self._keep or Path(tempfile.mkdtemp(prefix="allocator-cluster-"))
        try:
            self._lay_out_zookeepers(self._directory)
            if self.release is not None:
                self._lay_out_brokers(self.release, self._directory)
            self._all(lambda node: node.launch())  # not Node.launch: subclasses override it
            self._all(lambda node: node.wait_ready(self.start_timeout_s))
            self.wait_settled()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kills all servers and removes their data. May be called twice. For a clean shutdown, stop each node first."""
        for node in self.nodes:
            node.close()
            if node.proxy is not None:
                node.proxy.stop()
        self._ports.release()
        if self._directory is not None and self._keep is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None
        self.brokers, self.zookeepers = [], []

    def _lay_out_zookeepers(self, directory: Path) -> None:
        _, count = self._count
        first, _ = self._first_ports
        ports = {n: self._ports.take(None if first is None else first + n - 1) for n in range(1, count + 1)}
        quorum = {number: (self._ports.take(), self._ports.take()) for number in ports}
        for number, port in ports.items():
            place = directory / f"zookeeper-{number}"
            settings = zookeeper_settings(place, port, quorum, self._tick_ms)
            more = self._more_ports()
            settings.update(
                layout.filled(self._zookeeper_config, port=port, id=number, directory=place, **_named(more))
            )
            node = self._zookeeper_node(number, port, place, settings)
            node.more_ports = more
            node.proxy = self._proxy(port)
            self.zookeepers.append(node)

    def _lay_out_brokers(self, release: Release, directory: Path) -> None:
        count, _ = self._count
        _, first = self._first_ports
        ports = {n: (self._ports.take(None if first is None else first + n), self._ports.take()) for n in range(count)}
        # three voters survive the loss of one; with fewer brokers only the first one votes, and it must keep running
        voters = [(number, ports[number][1]) for number in range(3 if count >= 3 else 1)]
        for number, (port, controller) in ports.items():
            place = directory / f"kafka-{number}"
            settings = broker_settings(release, number, place, port, count, self._zookeeper)
            if release.kraft:
                settings.update(kraft_settings(number, port, controller, voters))
            proxy = self._proxy(port)
            if proxy is not None:
                settings.update(advertised(release, proxy.port))
            more = self._more_ports()
            given = layout.filled(self._broker_config, port=port, id=number, directory=place, **_named(more))
            settings.update(with_controller(given, settings))
            node = self._broker_node(release, number, port, place, settings)
            node.proxy, node.more_ports = proxy, more
            self.brokers.append(node)

    def _more_ports(self) -> tuple[int, ...]:
        return tuple(self._ports.take() for _ in range(3))

    def _proxy(self, port: int) -> FaultProxy | None:
        if not self._proxied:
            return None
        proxy = FaultProxy(port, port=self._ports.take())
        proxy.start()
        return proxy

    # -- methods that another backend overrides --------------------------------------------------------------------

    def _find_programs(self) -> None:
        """Finds the programs that start the servers, before `start` writes a file. Raises an error if one is
        missing."""
        self._java = find_java(OLDEST if self.release is None else self.release.oldest_java)
        wanted = [self._zookeeper_jars] if self._count[1] else []
        if self.release is not None:
            wanted.append(self.release.jars)
        self._jars = {jars.name: class_path(jars) for jars in wanted}

    def _zookeeper_node(self, number: int, port: int, place: Path, settings: Mapping[str, object]) -> Node:
        jars = self._jars[self._zookeeper_jars.name]
        options = [_NO_LOG4J_BEANS, *self._options(self._zookeeper_jars)]
        return Node(
            "ZooKeeper",
            number,
            port,
            place,
            layout.command(self._java, jars, "zookeeper", place, self._zookeeper_heap, options),
            prepare=layout.zookeeper_files(place, number, settings),
            ready=partial(zookeeper_mode, port),
            remove=self._removed(),
        )

    def _broker_node(
        self, release: Release, number: int, port: int, place: Path, settings: Mapping[str, object]
    ) -> Node:
        jars = self._jars[release.jars.name]
        if release.kraft:
            archive = classes.using(self._java, release.jars)
            prepare = layout.kraft_files(place, settings, partial(layout.format_data, self._java, jars, archive))
        else:
            prepare = layout.kafka_files(place, number, settings, self._zookeeper)
        return Node(
            "Kafka broker",
            number,
            port,
            place,
            layout.command(self._java, jars, "kafka", place, self._heap, self._options(release.jars)),
            prepare=prepare,
            ready=partial(self._broker_ready, number, port),
            remove=self._removed(),
        )

    def _options(self, jars: JarSet) -> list[str]:
        return [*self._class_options(jars), *self._jvm_options]

    def _class_options(self, jars: JarSet) -> list[str]:
        options = classes.using(self._java, jars)
        if not options:
            classes.count_start(self._java, jars)
        return options

    def _removed(self) -> Path | None:
        """Returns the directory that the supervisor deletes after a crash of this process."""
        return self._directory if self._keep is None else None

    def _all(self, work: Callable[[Node], None]) -> None:
        """Runs `work` for all nodes concurrently. Raises the first failure without waiting for the other nodes."""
        with ThreadPoolExecutor(max_workers=max(1, len(self.nodes)), thread_name_prefix="cluster") as pool:
            futures = [pool.submit(work, node) for node in self.nodes]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                for node in self.nodes:
                    node.close()
                raise


def _named(ports: Sequence[int]) -> dict[str, int]:
    return {f"port{number}": port for number, port in enumerate(ports, 2)}
