"""A Docker engine for tests: commands, and the reason if there is none."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.repo.repository import ROOT

__all__ = ["bases", "docker", "need_compose", "need_engine", "need_images", "state"]

SECONDS = 120.0  # timeout of commands that only query


def docker(*arguments: str, timeout_s: float = SECONDS) -> str:
    """Runs a command and returns its output. Fails the test if the command fails."""
    done = subprocess.run(["docker", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def need_engine() -> None:
    """Skips the test if no engine responds."""
    if _no_engine():
        pytest.skip(_no_engine())


def need_compose() -> None:
    need_engine()
    found = _out("docker", "compose", "version", "--short")
    version = re.match(r"v?(\d+)\.(\d+)", found)
    if version is None:
        pytest.skip("docker compose is not installed")
    if (int(version[1]), int(version[2])) < (2, 20):
        pytest.skip(f"docker compose {found} is older than 2.20, which reads `include`")


def need_images(names: Sequence[str]) -> None:
    """Skips the test if an image is missing and cannot be pulled."""
    need_engine()
    missing = [name for name in names if not _has(name)]
    if missing:
        pytest.skip(
            f"{', '.join(missing)}: missing, and cannot be pulled; docker/standins/build.sh builds replacements"
        )


def bases(*dockerfiles: str) -> list[str]:
    """The images that Dockerfiles are based on, with the defaults of their arguments."""
    found: list[str] = []
    for file in dockerfiles:
        text = (ROOT / "docker" / file).read_text()
        defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
        for name, value in defaults.items():
            text = text.replace(f"${{{name}}}", value)
        found += re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    return sorted(set(found))


def state(container: str) -> dict[str, Any]:
    """The engine's `State` of a container: `Status`, `ExitCode`, `Health`."""
    found: dict[str, Any] = json.loads(docker("inspect", "--format", "{{json .State}}", container))
    return found


@functools.cache
def _no_engine() -> str:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return "docker is not installed"
    if done.returncode:
        return f"no Docker engine responds: {done.stderr.strip().splitlines()[-1:]}"
    return ""


@functools.cache
def _has(image: str) -> bool:
    return bool(_out("docker", "image", "inspect", "--format", "{{.Id}}", image) or _out("docker", "pull", "-q", image))


def _out(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.strip() if done.returncode == 0 else ""
