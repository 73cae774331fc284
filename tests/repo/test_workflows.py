"""The workflows of continuous integration: limits, pinned tools, versions."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any

import pytest
import yaml
from repository import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
JOBS = [(workflow, name, job) for workflow, body in WORKFLOWS.items() for name, job in body["jobs"].items()]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(("workflow", "name", "job"), JOBS, ids=[f"{each[0]}-{each[1]}" for each in JOBS])
def test_a_job_ends_may_only_read_and_runs_what_exists(workflow: str, name: str, job: dict[str, Any]) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    assert job["timeout-minutes"] <= 360, "the limit of a runner"
    for command in commands(job):
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in TARGETS, command
        elif words[0] != "python":
            assert (ROOT / words[0]).stat().st_mode & 0o111, command


def test_actions_and_tools_are_pinned() -> None:
    """A tag can be moved to other code; a commit cannot. The comment names the version."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), f"{path.name}: {line}"
        for packages in re.findall(r"pip install (.+)", path.read_text()):
            assert all("==" in package for package in packages.split()), f"{path.name}: {packages}"
