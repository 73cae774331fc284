"""How commands show what they found, on a terminal and in a pipe."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

__all__ = ["console", "print_json"]


def console() -> Console:
    found = Console(highlight=False)
    # a pipe has no width; cut lines would be of no use to what reads them
    return found if found.is_terminal else Console(highlight=False, width=10_000)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
