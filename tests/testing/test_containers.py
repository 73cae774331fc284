"""The containers backend with a fake engine: its requests, and missing containers.

With an engine: `pytest --allocator-backend=containers tests/testing`.
"""

from __future__ import annotations

import pytest

from allocator.testing import NoContainerEngine
from allocator.testing import containers as module
from allocator.testing.containers import ContainerCluster

STARTED: list[StandIn] = []


class StandIn:
    """`testcontainers.core.container.DockerContainer` and the engine's container in one: it only remembers."""

    def __init__(self, image: str) -> None:
        self.image, self.asked, self.running, self.removed, self.paused = image, {}, False, False, False
        self.command, self.volumes, self.environment = [], [], {}
        self.attrs = {"State": {"Running": False, "Pid": 0, "ExitCode": 0}}

    def with_command(self, command):
        self.command = command
        return self

    def with_volume_mapping(self, *volume):
        self.volumes.append(volume)
        return self

    def with_env(self, name, value):
        self.environment[name] = value
        return self

    def with_kwargs(self, **asked):
        self.asked = asked
        return self

    def start(self):
        STARTED.append(self)
        self.attrs = {"State": {"Running": True, "Pid": 4711, "ExitCode": 0}}

    def get_wrapped_container(self):
        assert not self.removed, "the engine knows no removed container"
        return self

    def reload(self):
        pass

    def pause(self):
        self.paused = True

    def unpause(self):
        self.paused = False

    def logs(self, tail="all"):
        lines = [b"line %d" % number for number in range(100)] + [b"shut down completed"]
        return b"\n".join(lines if tail == "all" else lines[-tail:]) + b"\n"

    def stop(self, timeout=0, force=False):
        assert not self.paused, "the engine stops no paused container"
        self.attrs = {"State": {"Running": False, "Pid": 0, "ExitCode": 143}}
        self.removed = force


@pytest.fixture
def engine(monkeypatch):
    STARTED.clear()
    monkeypatch.setattr("testcontainers.core.container.DockerContainer", StandIn)
    monkeypatch.setattr(module, "_engine", lambda: lambda image: False)
    monkeypatch.setattr(module, "zookeeper_mode", lambda port: "standalone")


@pytest.fixture
def node(engine, tmp_path):
    with ContainerCluster(None, directory=tmp_path) as cluster:
        yield cluster.zookeepers[0]


def test_a_cluster_starts_its_servers_in_containers(node, tmp_path):
    (started,) = STARTED
    assert started.image == "zookeeper:3.8.4"
    assert started.command == ["zkServer.sh", "start-foreground", str(tmp_path / "zookeeper-1" / "zoo.cfg")]
    assert started.volumes == [(str(node.directory), str(node.directory), "rw")]
    assert started.asked["network_mode"] == "host"
    assert node.pid == 4711


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_log_outlives_the_container(node, end):
    assert node.log_tail(2).splitlines()[1:] == ["line 99", "shut down completed"]
    getattr(node, end)()
    assert not node.alive
    assert STARTED[0].removed
    assert node.log_tail(2).splitlines()[1:] == ["line 99", "shut down completed"]
    node.start()
    assert node.alive
    assert len(STARTED) == 2


def test_a_paused_node_is_resumed_before_it_is_stopped(node):
    node.pause()
    assert node.alive
    node.stop()
    assert STARTED[0].removed


def test_a_version_without_an_image_is_refused_before_anything_is_written(engine, tmp_path):
    with pytest.raises(NoContainerEngine, match=r"no image allocator/kafka:0\.9\.0\.1.*docker/standins/build\.sh 0\.9"):
        ContainerCluster("0.9.0.1", directory=tmp_path).start()
    assert not list(tmp_path.iterdir())
