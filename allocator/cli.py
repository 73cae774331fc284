"""The command `allocator`."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import click

from allocator.errors import AllocatorError

__all__ = ["main"]

# name -> where it is, and the one line of help; imported when used, so that `allocator run` loads no test servers
LAZY = {
    "cluster": ("allocator.testing.cli:cluster", "Real Kafka and ZooKeeper on this machine, for trying things out."),
    "group": ("allocator.cli_group:group", "Consumer groups: who is in them, who owns what, how far they got."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in LAZY:
            return super().get_command(ctx, name)
        module, _, attribute = LAZY[name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            if name != "cluster":
                raise
            raise click.ClickException(f"{error}; `pip install 'allocator[testing]'` adds what it needs") from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        lazy = {name: text for name, (_, text) in LAZY.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**own, **lazy}.items()))


@click.group(cls=_LazyGroup)
@click.version_option(package_name="allocator", prog_name="allocator")
def main() -> None:
    """Exclusive partition ownership for Kafka consumers through ZooKeeper."""


@main.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--check", is_flag=True, help="Only check the settings, the handler and the allocator functions.")
@click.option("--json", "as_json", is_flag=True, help="Print what --check finds as JSON.")
@click.pass_context
def run(ctx: click.Context, config: str, check: bool, as_json: bool) -> None:
    """Consume as CONFIG (TOML) says, until a signal or a failure.

    SIGTERM or SIGINT: finishes the records in hand, commits, leaves the group; a second one stops at once.

    \b
    Exit codes:
      0        stopped by a signal, everything drained and committed
      1        the clusters cannot be reached or refused, or the last commit failed
      2        wrong usage, settings, handler or allocator function
      3        a record could not be handled and there is no dead-letter topic
      128 + n  stopped at once by a second signal n
    """
    from allocator.consumer import run as process
    from allocator.consumer.config import load

    try:
        settings = load(config)
        if check:
            process.check(settings)
    except AllocatorError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": str(error)}, indent=2))
        else:
            click.echo(f"error: {error}", err=True)
        sys.exit(process.SETTINGS)
    if not check:
        sys.exit(process.run(settings))
    if as_json:
        click.echo(json.dumps({"ok": True, "settings": settings.shown()}, indent=2))
        return
    click.echo(_as_toml(settings.shown()))
    click.echo(f"\n{config} is fine", err=True)


def _as_toml(settings: dict[str, dict[str, Any]]) -> str:
    sections = []
    for name, values in settings.items():
        lines = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


if __name__ == "__main__":
    main()
