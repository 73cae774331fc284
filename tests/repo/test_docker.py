"""The text of the images, the compose files and the manifest. tests/docker builds and runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocator.daemon.config import load
from tests.repo.repository import ROOT

DOCKER = ROOT / "docker"
COMPOSE = {name: yaml.safe_load((DOCKER / name).read_text()) for name in ("old.yaml", "new.yaml", "compose.yaml")}
SERVICES: dict[str, dict[str, Any]] = {
    name: service for file in COMPOSE.values() for name, service in file["services"].items()
}
DOCKERFILES = sorted(DOCKER.rglob("Dockerfile"))


def test_ports_are_published_on_this_machine_only() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), port


@pytest.mark.parametrize("name", ["daemon", "daemon-old"])
def test_the_daemons_settings_are_good(name: str) -> None:
    settings = load(DOCKER / "config.toml", SERVICES[name]["environment"])
    assert settings.kafka.brokers == (SERVICES[name]["environment"]["ALLOCATOR_KAFKA_BROKERS"],)
    assert settings.group.name == SERVICES[name]["environment"]["ALLOCATOR_GROUP_NAME"]
    assert settings.group.membership == ("kafka" if name == "daemon" else "zookeeper")
    module = settings.handler.target.split(":")[0].replace(".", "/")
    assert (ROOT / f"{module}.py").is_file()
    grace = float(SERVICES[name]["stop_grace_period"].rstrip("s"))
    assert grace > settings.handler.drain_timeout_s, "the engine would kill it while it drains"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_hadolint_finds_nothing(path: Path) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("no hadolint for this machine")
    done = subprocess.run([linter, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# -- Kubernetes ----------------------------------------------------------------------------------------------------

MANIFEST: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text())
}


@pytest.mark.parametrize("kind", MANIFEST)
def test_the_manifest_is_valid(kind: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(MANIFEST[kind], validator.latest_version(), strict=True)


def test_the_pod_finds_its_settings_its_page_and_the_time_to_drain(tmp_path: Path) -> None:
    pod = MANIFEST["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    file = tmp_path / "config.toml"
    file.write_text(MANIFEST["ConfigMap"]["data"]["config.toml"])
    image = re.findall(r"\b(ALLOCATOR_\w+)=(\S+)", (DOCKER / "Dockerfile").read_text().rpartition("FROM ")[2])
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    settings = load(file, {**dict(image), **given})
    assert pod["terminationGracePeriodSeconds"] > settings.handler.drain_timeout_s
    (port,) = container["ports"]
    assert settings.web.port == port["containerPort"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
    user = re.search(r"^USER (\d+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == int(user[1])


def test_the_secret_holds_settings_that_are_secret_and_the_daemon_reads_them(tmp_path: Path) -> None:
    secret = MANIFEST["Secret"]
    (container,) = MANIFEST["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    file = tmp_path / "config.toml"
    text = MANIFEST["ConfigMap"]["data"]["config.toml"]
    file.write_text(text)
    load(file, secret["stringData"])  # with its empty passwords, which are not used
    file.write_text(
        text.replace(
            "[kafka]\n",
            '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_plain_username = "billing"\n',
        ).replace("[zookeeper]\n", '[zookeeper]\ndigest_username = "billing"\n')
    )
    settings = load(file, dict.fromkeys(secret["stringData"], "from the secret"))
    assert settings.kafka.sasl_plain_password == settings.zookeeper.digest_password == "from the secret"


def test_the_health_check_of_the_image_uses_the_port_of_the_variable() -> None:
    code = re.findall(r'CMD \["python", "-c", "(.+)"\]', (DOCKER / "Dockerfile").read_text())[0]
    requested = []

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = {**os.environ, "ALLOCATOR_WEB_PORT": str(server.server_port)}
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)
        thread.join(30)
    assert requested == ["/health/live"]
