"""The images and the compose file, as far as they can be checked where no engine runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT

from allocator.consumer.config import load
from allocator.testing.versions import KAFKA

DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted(DOCKER.rglob("Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_images_are_built_in_stages_and_do_not_run_as_root(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    stages = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    assert len(stages) == 2
    final = lines[stages[-1] :]
    users = [line.split()[1] for line in final if line.startswith("USER ")]
    assert users
    assert users[-1].isdigit(), "a number: Kubernetes cannot tell whether a name is root"
    assert int(users[-1]) > 0
    assert not any("latest" in line for line in lines if line.startswith("FROM "))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_what_an_image_copies_exists_and_is_not_ignored(path: Path) -> None:
    kept = [
        line[1:] for line in path.with_name("Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    for line in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(source == name or source.startswith(f"{name}/") for name in kept), source


def test_services_have_pinned_images_or_a_dockerfile_and_know_what_they_wait_for() -> None:
    for name, service in SERVICES.items():
        if "build" in service:
            context = DOCKER / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file(), name
        else:
            assert re.fullmatch(r"[\w./-]+:[\d.]+", service["image"]), service["image"]
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, other
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], other
        for volume in service.get("volumes", []):
            assert (DOCKER / volume.split(":")[0]).exists(), volume


def test_both_ends_of_the_version_range_are_there_and_are_tested_versions() -> None:
    image, _, current = SERVICES["kafka"]["image"].partition(":")
    assert image == "apache/kafka"
    assert current in KAFKA
    old = re.search(r"allocator cluster fetch (\S+)", (DOCKER / "kafka-0.8" / "Dockerfile").read_text())
    assert old is not None
    assert old[1] in KAFKA
    assert old[1].startswith("0.8.")


def test_ports_are_published_on_this_machine_only() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), port


@pytest.mark.parametrize("name", ["daemon", "daemon-old"])
def test_the_daemons_settings_are_good(name: str) -> None:
    settings = load(DOCKER / "config.toml", SERVICES[name]["environment"])
    assert settings.kafka.brokers == (SERVICES[name]["environment"]["ALLOCATOR_KAFKA_BROKERS"],)
    assert settings.group.name == SERVICES[name]["environment"]["ALLOCATOR_GROUP_NAME"]
    module = settings.handler.target.split(":")[0].replace(".", "/")
    assert (ROOT / f"{module}.py").is_file()
    grace = float(SERVICES[name]["stop_grace_period"].rstrip("s"))
    assert grace > settings.handler.drain_timeout_s, "the engine would kill it while it drains"


def test_the_two_daemons_do_not_share_a_group() -> None:
    names = {SERVICES[name]["environment"]["ALLOCATOR_GROUP_NAME"] for name in ("daemon", "daemon-old")}
    assert len(names) == 2
