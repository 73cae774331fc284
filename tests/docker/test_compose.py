"""The compose files: runs the steps in the header of each."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
import yaml

from tests.docker.docker_engine import bases, docker, need_compose, need_images
from tests.repo.repository import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.xdist_group("docker")]

UP_S = 1800  # the first start builds images
STEP_S = 120
DOCKER = ROOT / "docker"
FILES = ("new.yaml", "old.yaml", "compose.yaml")


def steps(file: str) -> list[str]:
    """The commands of the header, continued lines joined."""
    header = (DOCKER / file).read_text().partition("\nname: ")[0]
    lines = re.findall(r"^#   (.+)$", header, re.MULTILINE)
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def images(file: str) -> list[str]:
    """All images that a compose file needs."""
    content = yaml.safe_load((DOCKER / file).read_text())
    named = [service["image"] for service in content["services"].values() if "image" in service]
    built = [service["build"]["dockerfile"] for service in content["services"].values() if "build" in service]
    others = [name for other in content.get("include", ()) for name in images(other)]
    return sorted({*named, *others, *bases(*(name.removeprefix("docker/") for name in built))})


class Project:
    """One run of a compose file, under a name of its own."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.name = f"allocator-test-{uuid4().hex[:8]}"
        self.environ = {**os.environ, "COMPOSE_PROJECT_NAME": self.name, "COMPOSE_MENU": "false"}

    def run(self, step: str, timeout_s: float = STEP_S) -> str:
        done = subprocess.run(
            step, shell=True, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-3000:]}{done.stderr[-3000:]}\n{self.logs()[-6000:]}"
        return done.stdout

    def shows(self, step: str, wanted: str, timeout_s: float = STEP_S) -> str:
        """Runs a step that follows a log until it prints a line with `wanted`; returns the line."""
        process = subprocess.Popen(
            ["timeout", str(timeout_s), "sh", "-c", f"exec {step}"],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            try:
                for line in process.stdout:
                    if wanted in line:
                        return line
            finally:
                process.terminate()
        raise AssertionError(f"{step} showed no {wanted!r}\n{self.logs()[-6000:]}")

    def logs(self) -> str:
        command = ["docker", "compose", "--file", f"docker/{self.file}", "logs", "--tail", "40"]
        return subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=60).stdout

    def containers(self) -> dict[str, tuple[str, int, int]]:
        """For each container: its service, number of restarts, and exit code."""
        mine = f"label=com.docker.compose.project={self.name}"
        names = docker("ps", "--all", "--quiet", "--filter", mine).split()
        form = '{{index .Config.Labels "com.docker.compose.service"}} {{.RestartCount}} {{.State.ExitCode}} {{.Name}}'
        rows = (docker("inspect", "--format", form, name).split() for name in names)
        return {name: (service, int(restarts), int(code)) for service, restarts, code, name in rows}


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    need_compose()
    need_images(images(request.param))
    found = Project(request.param)
    yield found
    command = f"docker compose -f docker/{found.file} down --volumes --timeout 20 --rmi local"
    subprocess.run(command, shell=True, cwd=ROOT, env=found.environ, capture_output=True, timeout=600)


@pytest.mark.parametrize("project", FILES, indirect=True)
def test_the_steps_of_the_header_work(project: Project) -> None:
    up, *between, down = steps(project.file)
    assert " up --build --detach" in up
    assert all(f"-f docker/{project.file} " in step for step in steps(project.file))
    assert down.endswith(" down --volumes")
    project.run(up, UP_S)
    for step in between:
        step, _, comment = step.partition("  #")
        if " logs --follow " in step:
            wanted = re.search(r"ends with (.+)$", comment)
            assert wanted is not None, "a step that follows a log names its last line"
            line = project.shows(step, wanted[1])
            assert line.rstrip().endswith(wanted[1])
        elif " group describe " in step:
            # daemons may still be joining; each reports its host name, which is the id of its container
            end = time.monotonic() + STEP_S
            while len(set(re.findall(r"\b[0-9a-f]{12}\b", project.run(step)))) < 3:
                assert time.monotonic() < end, project.run(step)
        else:
            project.run(step)
    restarted = {name: each for name, each in project.containers().items() if each[1]}
    assert not restarted, project.logs()
    before = time.monotonic()
    project.run(f"docker compose -f docker/{project.file} stop")
    stopped_s = time.monotonic() - before
    codes = {service: code for service, _, code in project.containers().values()}
    for daemon in {"daemon", "daemon-old", "mirror"} & set(codes):
        assert codes[daemon] == 0, project.logs()
    assert stopped_s < 120
    project.run(down)
    assert not project.containers()
