"""Every command with arguments, for tests over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

__all__ = ["MEMBER", "NO_MEMBER", "WITHOUT", "leaves", "words", "write_settings"]

LETTERS: Final = ["{dead}", "{brokers}"]
SPARK: Final = ["{brokers}", "--topic", "{topic}", "--dry-run"]
GROUP: Final = ["{group}", "{servers}"]
# name of a command -> arguments, in an order in which each finds what it needs: while the group has a member
MEMBER: Final = {
    "group list": ["{servers}"],
    "group cordon": [*GROUP, "worker", "--why", "its disk fails"],
    "group pin": [*GROUP, "{topic}:0", "worker"],
    "group pause": [*GROUP, "{topic}:0-1"],
    "group skip": [*GROUP, "{topic}:0", "3"],
    "group commands": GROUP,
    "group describe": GROUP,
    "group plan": [*GROUP, "--add", "another"],
    "group uncordon": [*GROUP, "worker"],
    "group unpin": [*GROUP, "{topic}:0"],
    "group resume": [*GROUP, "{topic}:0-1"],
    "group evacuate": [*GROUP, "worker", "--dry-run"],
    "group freeze": GROUP,
    "group thaw": GROUP,
    "group budget": [*GROUP, "--at-once", "2"],
    "group canary": [*GROUP, "1"],
    "group promote": GROUP,
    "group quarantine": [*GROUP, "{topic}:1"],
    "group seek": [*GROUP, "{topic}:0", "--to", "latest"],
    "group swap": [*GROUP, "worker", "web2", "--dry-run"],
    "group adopt": GROUP,
    "group release": [*GROUP, "i-1"],
    "group offsets show": GROUP,
    "group offsets reset": [*GROUP, "--to", "earliest"],
    "group delete": GROUP,
    "doctor": [*GROUP, "--interval", "0"],
    "top": [*GROUP, "--once", "--interval", "0.2"],
}
# and afterwards
NO_MEMBER: Final = {
    "records": ["{topic}", "{brokers}", "--from", "earliest"],
    "topics copy": ["{address}", "{address}", "--topic", "{topic}", "--configs"],  # refused: it is one cluster
    "offsets copy": ["{group}", "b", "{servers}", "--execute", "--restore-file", "{tmp}/restore.json"],
    "offsets restore": ["{tmp}/restore.json"],
    "deadletters list": LETTERS,
    "deadletters show": [*LETTERS, "--letter", "0:0"],
    "deadletters redrive": LETTERS,
    "deadletters discard": LETTERS,
    "archive": ["{tmp}/archive", *SPARK],
    "audit": ["kafka://{address}/{topic}", "kafka://{address}/{dead}", "--dry-run"],
    "skew": ["{topic}", "{brokers}", "--dry-run"],
    "traffic record": ["{tmp}/recording.json", "{brokers}", "--topic", "{topic}"],
}
# these need no servers, or run until a signal
WITHOUT: Final = {"cluster fetch", "cluster up", "cutover", "mirror", "run", "web"}


CONFIG: Final = """
[kafka]
brokers = ["{address}"]
[zookeeper]
hosts = "{zookeeper}"
[group]
name = "{group}"
topics = ["{topic}"]
connect_timeout_s = 0.5
{more}
[handler]
target = "examples.handlers:show"
[log]
format = "text"
"""
PLAN: Final = """
[cutover]
groups = ["{group}"]
topics = ["{topic}"]
zookeeper = "{zookeeper}"
[old]
brokers = "{address}"
[new]
brokers = "127.0.0.1:2"
"""


def write_settings(directory: Path, address: str, *, more: str = "", **values: str) -> Path:
    """Writes orders.toml for the daemon and plan.toml for a cutover. Returns the first."""
    values = {"address": address, "zookeeper": address, "group": "billing", "topic": "orders", "more": more, **values}
    (directory / "plan.toml").write_text(PLAN.format(**values))
    (directory / "orders.toml").write_text(CONFIG.format(**values))
    return directory / "orders.toml"


def words(name: str, arguments: list[str], values: dict[str, str]) -> list[str]:
    """The command line of a command; `values` for the names in braces, `{servers}` and `{brokers}` being options."""
    where = {"{brokers}": ["--brokers", values["address"]]}
    where["{servers}"] = [*where["{brokers}"], "--zookeeper", values["zookeeper"]]
    return [*name.split(), *(word for each in arguments for word in where.get(each) or [each.format(**values)])]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is not a group of others."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))
