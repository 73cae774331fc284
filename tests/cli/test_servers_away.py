"""Every command with missing or wrong servers prints one line with a remedy, and exits with 1."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.migrate import mirror
from allocator.migrate import storage as places
from allocator.migrate.offsets import FORMAT
from tests.cli.every_command import MEMBER, NO_MEMBER, words, write_settings
from tests.constants import SetConstant

AWAY: Final = "127.0.0.1:1"
COMMANDS: Final = {
    **MEMBER,
    **NO_MEMBER,
    "cutover": ["{tmp}/plan.toml", "--until", "check"],
    "mirror": ["{address}", "127.0.0.1:2", "--topic", "a", "--zookeeper", "{zookeeper}", "--once"],
}


@pytest.fixture(autouse=True)
def hurry(set_constant: SetConstant) -> None:
    for module in (places, mirror):
        set_constant(module, CONNECT_S=0.3)


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts connections and never responds, like a server of another kind or behind a proxy."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def refused(name: str, tmp_path: Path, address: str) -> str:
    """The error line of a command with servers at `address`, after general checks."""
    write_settings(tmp_path, address)
    to = {"brokers": address, "group": "b", "storage": "kafka", "zookeepers": [address], "root": "/allocator"}
    (tmp_path / "restore.json").write_text(json.dumps({"format": FORMAT, "to": to, "before": []}))
    if name == "offsets copy":
        (tmp_path / "restore.json").unlink()
    there = set(tmp_path.iterdir())
    values = {"address": address, "zookeeper": address, "topic": "orders", "group": "billing", "dead": "orders.dead"}
    command = words(name, COMMANDS[name], {**values, "tmp": str(tmp_path)})
    alone = ("cutover", "mirror", "offsets copy", "offsets restore", "topics copy")
    patience = [] if name in alone else ["--timeout", "0.3"]
    result = CliRunner().invoke(main, [*command, *patience])
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert address in result.stderr
    assert set(tmp_path.iterdir()) == there  # nothing was written before the refusal
    return result.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_servers_that_are_away_are_named_in_one_line_with_a_remedy(name: str, tmp_path: Path) -> None:
    shown = refused(name, tmp_path, AWAY)
    assert "Connection refused" in shown
    assert "Check that it runs, and the address." in shown


@pytest.mark.parametrize(
    "name", ["cutover", "doctor", "group list", "mirror", "offsets copy", "records", "skew", "top"]
)
def test_a_server_of_another_kind_is_named_with_a_remedy(name: str, tmp_path: Path, silent: str) -> None:
    shown = refused(name, tmp_path, silent)
    assert "Check that this is a ZooKeeper port" in shown or "Check that this is the address of a Kafka broker" in shown


@pytest.mark.parametrize("name", ["doctor", "group list", "traffic record", "top"])
def test_a_host_name_that_does_not_resolve_is_reported(name: str, tmp_path: Path) -> None:
    shown = refused(name, tmp_path, "no-such-host.invalid:1")
    assert "not known" in shown or "does not resolve" in shown or "resolution" in shown


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
def test_a_daemon_whose_servers_are_away_logs_one_line(membership: str, tmp_path: Path) -> None:
    config = write_settings(tmp_path, AWAY, more=f'membership = "{membership}"')
    command = [sys.executable, "-m", "allocator.cli", "run", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    loud = [line for line in done.stderr.splitlines() if " info " not in line]
    assert len(loud) == 1, done.stderr
    assert f"{AWAY}" in loud[0]
    assert "Check that it runs, and the address." in loud[0]
