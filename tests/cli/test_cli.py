"""The command line itself."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

from allocator.cli import main


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"allocator, version {metadata.version('allocator')}\n"


def test_help_lists_every_command_and_loads_none_of_the_heavy_ones() -> None:
    code = (
        "import sys\nfrom allocator.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert not {'allocator.testing', 'kafka', 'kazoo', 'rich', 'tornado'} & set(sys.modules), 'loaded too much'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name in ("cluster", "group", "run"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("command", [["run"], ["group"], ["group", "offsets"], ["group", "offsets", "reset"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_exit_codes_are_documented() -> None:
    assert "no dead-letter topic" in CliRunner().invoke(main, ["run", "--help"]).output
    assert "Exit codes: 0" in CliRunner().invoke(main, ["group", "--help"]).output


def test_cluster_is_there_too() -> None:
    assert "--kafka" in CliRunner().invoke(main, ["cluster", "up", "--help"]).output


def test_a_command_that_is_none_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["rum"]).exit_code == 2


def test_a_group_without_zookeeper_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["group", "list"], env={"ALLOCATOR_ZOOKEEPER_HOSTS": ""})
    assert result.exit_code == 2
    assert "where is ZooKeeper?" in result.output


def test_a_missing_file_of_settings_is_named() -> None:
    result = CliRunner().invoke(main, ["run", "/no/such/file.toml"])
    assert result.exit_code == 2
    assert "/no/such/file.toml: cannot be read" in result.output
