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
from repository import PACKAGE, ROOT

from allocator.daemon.config import load
from allocator.testing.versions import KAFKA, USUAL_ZOOKEEPER

DOCKER = ROOT / "docker"
COMPOSE = {name: yaml.safe_load((DOCKER / name).read_text()) for name in ("old.yaml", "new.yaml", "compose.yaml")}
SERVICES: dict[str, dict[str, Any]] = {
    name: service for file in COMPOSE.values() for name, service in file["services"].items()
}
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


def test_builders_without_buildkit_get_the_same_files() -> None:
    def kept(path: Path) -> set[str]:
        return {line for line in path.read_text().splitlines() if line.startswith("!")}

    assert kept(ROOT / ".dockerignore") == set().union(
        *(kept(path.with_name("Dockerfile.dockerignore")) for path in DOCKERFILES)
    )


def test_no_health_check_starts_a_java_machine() -> None:
    for name, service in SERVICES.items():
        check = str(service.get("healthcheck", {}).get("test", ""))
        assert "/opt/kafka/bin" not in check, name
        assert "zkServer.sh" not in check, name


def test_each_compose_file_stands_by_itself_and_the_last_one_has_all() -> None:
    assert COMPOSE["compose.yaml"]["include"] == ["old.yaml", "new.yaml"]
    assert sum(len(file["services"]) for file in COMPOSE.values()) == len(SERVICES), "a name stands in two files"
    for file in ("old.yaml", "new.yaml"):
        services = COMPOSE[file]["services"]
        for name, service in services.items():
            assert set(service.get("depends_on", {})) <= set(services), (file, name)
        words = str(services)
        assert ("zookeeper:2181" in words) == (file == "old.yaml"), "the new cluster has no ZooKeeper"


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
    assert settings.group.membership == ("kafka" if name == "daemon" else "zookeeper")
    module = settings.handler.target.split(":")[0].replace(".", "/")
    assert (ROOT / f"{module}.py").is_file()
    grace = float(SERVICES[name]["stop_grace_period"].rstrip("s"))
    assert grace > settings.handler.drain_timeout_s, "the engine would kill it while it drains"


def test_the_mirror_is_told_what_it_takes() -> None:
    from allocator.cli.commands import main

    command, *arguments = SERVICES["mirror"]["command"]
    context = main.make_context("allocator", [command, *arguments], resilient_parsing=True)
    inner = main.get_command(context, command)
    assert inner is not None
    inner.make_context(command, list(arguments))  # raises if an argument is wrong


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_the_linter_has_nothing_to_say(path: Path) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("no hadolint for this machine")
    done = subprocess.run([linter, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# -- stand-ins -----------------------------------------------------------------------------------------------------

STANDINS = DOCKER / "standins" / "build.sh"


def test_there_is_a_stand_in_for_each_image_that_is_asked_for() -> None:
    script = STANDINS.read_text()
    made = set(re.findall(r"^(?:PYTHON|JAVA)=(\S+)$", script, re.MULTILINE))
    made |= set(re.findall(r"\bzookeeper:[\d.]+", script))
    made |= {f"apache/kafka:{version}" for version in re.findall(r"\d+\.\d+\.\d+(?= \| |\) name=apache)", script)}
    wanted = {service["image"] for service in SERVICES.values() if "image" in service}
    wanted.add(f"zookeeper:{USUAL_ZOOKEEPER}")
    for path in DOCKERFILES:
        text = path.read_text().replace("${PYTHON}", "3.13")
        wanted |= set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    assert "ARG PYTHON=3.13" in (DOCKER / "Dockerfile").read_text()
    assert wanted <= made


@pytest.mark.parametrize(("word", "code", "says"), [("--help", 0, "debootstrap"), ("kafak", 2, "kafak is none of")])
def test_the_stand_ins_explain_themselves_and_refuse_what_they_do_not_know(word: str, code: int, says: str) -> None:
    done = subprocess.run(["sh", STANDINS, word], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert says in done.stdout + done.stderr


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


def test_no_service_of_the_namespace_can_change_a_setting() -> None:
    pod = MANIFEST["Deployment"]["spec"]["template"]["spec"]
    # else a Service called allocator-web puts ALLOCATOR_WEB_PORT=tcp://... into each container
    assert pod["enableServiceLinks"] is False


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


def test_only_one_namespace_reaches_the_page_of_a_pod() -> None:
    policy, pod = MANIFEST["NetworkPolicy"]["spec"], MANIFEST["Deployment"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [pod["spec"]["containers"][0]["ports"][0]["name"]]
    assert all("namespaceSelector" in each for each in rule["from"])


def test_the_check_of_the_image_asks_at_the_port_of_the_variable() -> None:
    code = re.findall(r'CMD \["python", "-c", "(.+)"\]', (DOCKER / "Dockerfile").read_text())[0]
    asked = []

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = {**os.environ, "ALLOCATOR_WEB_PORT": str(server.server_port)}
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)
        thread.join(30)
    assert asked == ["/health/live"]


def test_what_asks_for_health_asks_where_it_is_answered() -> None:
    served = (PACKAGE / "web" / "server.py").read_text()
    asking = (DOCKER / "kubernetes.yaml").read_text() + (DOCKER / "Dockerfile").read_text()
    probes = set(re.findall(r"/health/\w+", asking))
    assert probes == {"/health/live", "/health/ready"}
    assert not [probe for probe in probes if f'"{probe}"' not in served]


def test_the_two_daemons_do_not_share_a_group() -> None:
    names = {SERVICES[name]["environment"]["ALLOCATOR_GROUP_NAME"] for name in ("daemon", "daemon-old")}
    assert len(names) == 2
