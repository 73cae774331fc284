"""The image of the daemon: its user, and SIGTERM drains, commits and leaves."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.admin import KafkaAdminClient

from allocator.testing import LocalCluster, wait_until
from tests.docker.docker_engine import docker, state
from tests.repo.repository import ROOT, committed

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("docker")]

PARTITIONS = 4
RECORDS = 400
GRACE_S = 40  # the compose files' stop_grace_period
SESSION_S = 30  # a crashed member stays in the group for this long
SLOW = """
import time

def handle(record):
    time.sleep(0.05)
    print(f"handled {record.partition} {record.offset}\\n", end="", flush=True)
"""


def test_the_image_runs_as_nobody_and_decodes_compiled(image: str) -> None:
    assert docker("run", "--rm", image, "--version").startswith("allocator, version ")
    code = "import os, allocator.core.fetch; print(os.getuid(), allocator.core.fetch.accelerated)"
    assert docker("run", "--rm", "--entrypoint", "python", image, "-c", code).split() == ["10001", "True"]


def test_any_user_can_run_it(image: str) -> None:
    assert docker("run", "--rm", "--user", "54321:54321", "--read-only", image, "--version").startswith("allocator, ")


def test_the_manifests_image_is_built_and_checked_as_its_header_says(image: str, tmp_path: Path) -> None:
    manifest = ROOT / "docker" / "kubernetes.yaml"
    header = manifest.read_text().partition("apiVersion:")[0]
    dockerfile = re.findall(r"^#   ((?:FROM|COPY) .+)$", header, re.MULTILINE)
    check = " ".join(re.findall(r"^# +(docker run .+)\\\n# +(.+)$", header, re.MULTILINE)[0])
    (config,) = [each["data"] for each in yaml.safe_load_all(manifest.read_text()) if each["kind"] == "ConfigMap"]
    (tmp_path / "config.toml").write_text(config["config.toml"])
    (tmp_path / "handlers.py").write_text("def handle(record):\n    pass\n")
    (tmp_path / "Dockerfile").write_text("\n".join(dockerfile).replace("FROM allocator", f"FROM {image}"))
    name = f"{image}-billing"
    docker("build", "--tag", name, str(tmp_path))
    try:
        step = check.replace("billing:1.0.0", name)
        assert name in step
        # the pod's own limits: no writable root, no capability
        step = step.replace("docker run", "docker run --read-only --cap-drop ALL")
        done = subprocess.run(["sh", "-c", step], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        (tmp_path / "config.toml").write_text(config["config.toml"].replace("handlers:handle", "handlers:hanlde"))
        done = subprocess.run(["sh", "-c", step], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert "hanlde" in done.stdout + done.stderr
    finally:
        docker("image", "rm", "--force", name)


class Daemon:
    """`allocator run` in a container, on the network of this machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def log(self) -> str:
        return docker("logs", self.name)

    def handled(self) -> set[tuple[int, int]]:
        return {(int(p), int(o)) for p, o in re.findall(r"^handled (\d+) (\d+)$", self.log(), re.MULTILINE)}


@pytest.fixture
def daemons(
    image: str, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> Iterator[Callable[[str], Daemon]]:
    """Starts members of one group; `.topic` is the topic that they read."""
    topic = topic_factory(PARTITIONS)
    (tmp_path / "slow.py").write_text(SLOW)
    tmp_path.chmod(0o755)
    started: list[str] = []

    def start(membership: str) -> Daemon:
        name = f"{group}-{len(started)}"
        started.append(name)
        settings = {
            "KAFKA_BROKERS": kafka_cluster.bootstrap,
            "ZOOKEEPER_HOSTS": kafka_cluster.zookeeper,
            "ZOOKEEPER_SESSION_TIMEOUT_S": str(SESSION_S),
            "GROUP_SESSION_TIMEOUT_S": str(SESSION_S),
            "GROUP_NAME": group,
            "GROUP_TOPICS": topic,
            "GROUP_MEMBERSHIP": membership,
            "WEB_PORT": "0",
        }
        if membership == "kafka":
            del settings["ZOOKEEPER_HOSTS"]
        given = [word for key, value in settings.items() for word in ("--env", f"ALLOCATOR_{key}={value}")]
        mounts = ["--volume", f"{tmp_path}/slow.py:/app/slow.py:ro"]
        mounts += ["--volume", f"{ROOT}/docker/config.toml:/etc/allocator/config.toml:ro"]
        given += ["--env", "ALLOCATOR_HANDLER_TARGET=slow:handle"]
        docker("run", "--detach", "--network=host", "--name", name, *mounts, *given, image)
        return Daemon(name)

    start.topic = topic  # type: ignore[attr-defined]
    yield start
    for name in started:
        docker("rm", "--force", name)


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
def test_a_stopped_container_drains_commits_and_leaves(
    daemons: Callable[[str], Daemon], kafka_cluster: LocalCluster, group: str, membership: str
) -> None:
    topic: str = daemons.topic  # type: ignore[attr-defined]
    kafka_cluster.produce(topic, [b"%d" % number for number in range(RECORDS)])
    first = daemons(membership)
    wait_until(lambda: len(first.handled()) >= 20, 120, first.log)
    assert len(members(kafka_cluster, group, membership)) == 1
    before = time.monotonic()
    docker("stop", "--time", str(GRACE_S), first.name)
    took_s = time.monotonic() - before
    assert state(first.name)["ExitCode"] == 0, first.log()
    assert took_s < GRACE_S
    done = first.handled()
    assert 20 <= len(done) < RECORDS, "it was stopped too late"
    # each record that was handled is committed, and no other
    assert asyncio.run(committed(kafka_cluster, group, topic, PARTITIONS)) == {
        partition: 1 + max(offset for of, offset in done if of == partition) for partition in {of for of, _ in done}
    }
    # it has left: a killed member stays until its session ends
    assert members(kafka_cluster, group, membership) == []
    second = daemons(membership)
    wait_until(lambda: len(done | second.handled()) == RECORDS, 120, second.log)
    assert not done & second.handled(), "a record was handled twice"


def members(cluster: LocalCluster, group: str, membership: str) -> list[Any]:
    """The members of the group in ZooKeeper or at Kafka's coordinator."""
    if membership == "kafka":
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            of_kafka: list[Any] = admin.describe_groups([group])[group]["members"]
            return of_kafka
        finally:
            admin.close()
    command = [sys.executable, "-m", "allocator.cli", "group", "describe", group, "--json"]
    command += ["--zookeeper", cluster.zookeeper]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[Any] = json.loads(done.stdout)["members"]
    return found
