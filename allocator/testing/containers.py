"""Clusters that run each server in a container, for machines with a Docker engine but no Java.

The images contain only the programs. Settings, ports and data are those of `LocalCluster`, mounted at the same path.
The containers use the host's network, because a broker before 0.9 has only one address for clients and other brokers.
This requires a Docker engine on Linux. The reaper of testcontainers removes the containers when the test process ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from . import layout
from .cluster import LocalCluster
from .errors import ClusterError, NoContainerEngine
from .node import Node
from .probe import zookeeper_mode
from .versions import Release

_FIRST_PUBLISHED = (3, 7)
_BIN = "/opt/kafka/bin"


class ContainerCluster(LocalCluster):
    """`LocalCluster` in containers, with the same arguments and methods; `jvm_options` go to KAFKA_OPTS and JVMFLAGS.

    The Apache project publishes images of 3.7 and newer. For older versions the engine must have an image
    `allocator/kafka:VERSION`, which docker/standins/build.sh builds.
    Raises NoContainerEngine if no engine responds, or if it has no image of the version.
    """

    def _find_programs(self) -> None:
        has_image = _engine()
        if self.release is None or self.release.number >= _FIRST_PUBLISHED:
            return
        if not has_image(_image(self.release)):
            raise NoContainerEngine(
                f"the engine has no image {_image(self.release)}, and Kafka's project publishes none before 3.7; build "
                f"it with docker/standins/build.sh {self.release.version}, or use the local backend"
            )

    def _zookeeper_node(self, number: int, port: int, place: Path, settings: Mapping[str, object]) -> Node:
        return ContainerNode(
            "ZooKeeper",
            number,
            port,
            place,
            ["zkServer.sh", "start-foreground", str(place / "zoo.cfg")],
            prepare=layout.zookeeper_files(place, number, settings),
            ready=partial(zookeeper_mode, port),
            image=f"zookeeper:{self.zookeeper_version}",
            environment={
                "JVMFLAGS": " ".join([f"-Xmx{self._zookeeper_heap}", *self._jvm_options]),
                "ZOO_LOG_DIR": str(place),
            },
        )

    def _broker_node(
        self, release: Release, number: int, port: int, place: Path, settings: Mapping[str, object]
    ) -> Node:
        file = place / "server.properties"
        start = f"exec {_BIN}/kafka-server-start.sh {file}"
        if release.kraft:
            prepare = layout.kraft_files(place, settings, None)
            format_data = f"{_BIN}/kafka-storage.sh format --ignore-formatted -t {layout.CLUSTER_ID} -c {file}"
            start = f"{format_data} && {start}"
        else:
            prepare = layout.kafka_files(place, number, settings, self._zookeeper)
        return ContainerNode(
            "Kafka broker",
            number,
            port,
            place,
            ["sh", "-c", start],
            prepare=prepare,
            ready=partial(self._broker_ready, number, port),
            image=_image(release),
            environment={
                "KAFKA_HEAP_OPTS": f"-Xmx{self._heap}",
                "KAFKA_OPTS": " ".join(self._jvm_options),
                "LOG_DIR": str(place),
            },
        )


class ContainerNode(Node):
    """A server in a container. `pid` is its pid on the host."""

    def __init__(self, *place: Any, image: str, environment: Mapping[str, str], **work: Any) -> None:
        super().__init__(*place, **work)
        self._image = image
        self._environment = dict(environment)
        self._container: Any = None

    @property
    def pid(self) -> int | None:
        state = self._state()
        return int(state["Pid"]) if state.get("Running") else None

    def launch(self) -> None:
        from testcontainers.core.container import DockerContainer

        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        container = DockerContainer(self._image).with_command(list(self._command))
        container = container.with_volume_mapping(str(self.directory), str(self.directory), "rw")
        for name, value in self._environment.items():
            container = container.with_env(name, value)
        # as this user, so that the test can remove the files; without the entry point, which overwrites settings
        container = container.with_kwargs(network_mode="host", user=f"{os.getuid()}:{os.getgid()}", entrypoint=[])
        container.start()
        self._container = container

    def wait_process(self, timeout_s: float) -> tuple[bool, int | None]:
        time.sleep(timeout_s)  # pause: each check is a request to the engine
        state = self._state()
        return bool(state.get("Running")), state.get("ExitCode")

    def stop(self, timeout_s: float = 30.0) -> None:
        self.resume()
        if self._container is not None:
            self._container.get_wrapped_container().stop(timeout=int(timeout_s))
        self.close()

    def pause(self) -> None:
        if not self.alive:
            raise ClusterError(f"{self.kind} {self.id} does not run; start() it first")
        self._container.get_wrapped_container().pause()
        self.paused = True

    def resume(self) -> None:
        if self.paused and self._container is not None:
            self._container.get_wrapped_container().unpause()
        self.paused = False

    def log_tail(self, lines: int = 40) -> str:
        if self._container is None:
            return super().log_tail(lines)
        text = self._container.get_wrapped_container().logs(tail=lines).decode(errors="replace")
        return f"--- {self.kind} {self.id}: {self._image}\n{text}"

    def close(self) -> None:
        self.resume()  # the engine cannot kill a paused container
        container, self._container = self._container, None
        if container is None:
            return
        # the engine deletes the log with the container
        with open(self.directory / "output.log", "ab") as log:
            log.write(container.get_wrapped_container().logs())
        container.stop(force=True)

    def _state(self) -> dict[str, Any]:
        if self._container is None:
            return {}
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        state: dict[str, Any] = wrapped.attrs["State"]
        return state


def _image(release: Release) -> str:
    return f"{'apache' if release.number >= _FIRST_PUBLISHED else 'allocator'}/kafka:{release.version}"


def _engine() -> Callable[[str], bool]:
    """Returns a function that checks whether the engine has an image. Raises NoContainerEngine."""
    try:
        from testcontainers.core.docker_client import DockerClient, docker
    except ImportError as error:
        raise NoContainerEngine(f"the containers backend needs `pip install testcontainers` ({error})") from error
    try:
        client = DockerClient().client
        client.ping()
    except docker.errors.DockerException as error:
        raise NoContainerEngine(
            f"no Docker engine responds ({error}); start one, or omit --allocator-backend=containers"
        ) from error
    return lambda name: bool(client.images.list(name))
