"""Workflows, hooks and pages for contributors: their commands and claims are correct."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
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


def pythons() -> list[str]:
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["project"]["classifiers"]
    )
    return [match[1] for match in found if match]


@pytest.mark.parametrize(("workflow", "name", "job"), JOBS, ids=[f"{each[0]}-{each[1]}" for each in JOBS])
def test_a_job_ends_may_only_read_and_runs_what_exists(workflow: str, name: str, job: dict[str, Any]) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    assert job["timeout-minutes"] <= 360, "the longest that a runner gives"
    for command in commands(job):
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in TARGETS, command
        elif words[0] != "python":
            assert (ROOT / words[0]).stat().st_mode & 0o111, command


def test_actions_and_tools_are_pinned_to_what_cannot_change() -> None:
    """A tag can be moved to other code; a commit cannot. The comment tells people, and updates, which version it is."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), f"{path.name}: {line}"
        for packages in re.findall(r"pip install (.+)", path.read_text()):
            assert all("==" in package for package in packages.split()), f"{path.name}: {packages}"


def test_each_change_is_tested_on_the_oldest_and_the_newest_python() -> None:
    (job,) = [job for workflow, name, job in JOBS if (workflow, name) == ("ci", "test")]
    assert job["strategy"]["matrix"]["python"] == [pythons()[0], pythons()[-1]]
    assert ".ci/run" in commands(job)


def test_wheels_are_built_for_both_machines_and_both_libraries() -> None:
    settings = PROJECT["tool"]["cibuildwheel"]
    assert settings["build"] == f"cp{pythons()[0].replace('.', '')}-*", "the oldest Python's serves all after it"
    assert not any("musl" in pattern for pattern in settings.get("skip", "").split())
    assert settings["environment"]["ALLOCATOR_REQUIRE_EXTENSION"] == "1"
    machines = WORKFLOWS["wheels"]["jobs"]["compiled"]["strategy"]["matrix"]["machine"]
    assert {machine.endswith("-arm") for machine in machines} == {True, False}


def test_hooks_run_the_tools_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [repo["repo"] for repo in config["repos"]] == ["local"], "no second set of versions"
    wanted = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    lint = {tuple(line.split()[2:4]) for line in wanted.splitlines() if "-m" in line}
    for hook in hooks:
        command = hook["entry"].split()
        assert command[:2] == [".venv/bin/python", "-m"]
        assert any(command[2] in line for line in lint), f"make lint does not run {command[2]}"
    assert {hook["entry"].split()[2] for hook in hooks} == {"ruff", "mypy"}


def test_decisions_are_numbered_listed_and_complete() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    index = (ROOT / "docs" / "adr" / "index.md").read_text()
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for number, page in enumerate(pages, start=1):
        title, *_ = page.read_text().splitlines()
        assert title.startswith(f"# {number}. ")
        assert f"| [{number}]({page.name}) | {title.partition('. ')[2]} |" in index
        headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
        assert headings == ["Context", "Decision", "What was tried", "Consequences"], page.name


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "README.md", "SECURITY.md"])
def test_scripts_that_pages_for_contributors_name_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"(?:python|bisect run \S+python) ((?:tests|bench|docker)/\S+\.py)", text)
    named += re.findall(r"pytest (tests/[^\s:]+\.py)", text)
    named += re.findall(r"`((?:tests|allocator|docs|bench|docker|examples)(?:/[\w.-]+)*)/?`", text)
    for name in named:
        assert (ROOT / name).exists() or name == "tests/fuzz/corpus", name


def test_the_map_of_the_code_names_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| to change |")[2].partition("\n\n")[0]
    files = re.findall(r"`([\w/]+\.(?:py|h))`", table)
    assert files
    for file in files:
        assert (ROOT / file).is_file() or (ROOT / "allocator" / file).is_file(), file
    for package in re.findall(r"`(\w+)/`", table):
        assert (ROOT / "allocator" / package).is_dir(), package


def test_the_changelog_has_the_sections_that_contributors_are_told_of() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert Path(ROOT / "CONTRIBUTING.md").read_text().count("Added, Changed, Deprecated, Removed, Fixed or Security")
