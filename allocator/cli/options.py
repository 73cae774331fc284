"""Options and parameter types of several commands."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from allocator.errors import AllocatorError, ConfigError

Callback = Callable[..., Any]

ERROR = 1
DAY_S = 86_400.0
COMPLETE_S = 1.0  # timeout in seconds. Higher: a slow ensemble can respond; lower: the shell pauses shorter
NOTHING_CHANGED = "nothing was changed; add --execute to do it"


class Seconds(click.FloatRange):
    """Seconds, by default at most a day. Rejects nan, which passes a range check."""

    name = "seconds"

    def __init__(self, least: float = 0.1, most: float = DAY_S) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number", param, ctx)
        return seconds


class GroupType(click.types.StringParamType):
    """The name of a group. The shell completes it if ZooKeeper responds within a second."""

    name = "group"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from allocator.cli.access import Access
        from allocator.operate import list_groups

        given = ctx.params
        several = given.get("zookeepers") or (None,)  # commands with several ensembles have this parameter
        zookeeper = given.get("zookeeper") or several[0] or os.environ.get("ALLOCATOR_ZOOKEEPER_HOSTS")
        root = given.get("root") or os.environ.get("ALLOCATOR_ZOOKEEPER_ROOT")
        logging.disable()  # a shell would show log lines in the middle of the command line

        async def names() -> list[str]:
            access = Access.of(given.get("config"), zookeeper, root, timeout_s=COMPLETE_S)
            async with access.ensemble() as zk:
                return await list_groups(zk, access.root)

        try:
            return [CompletionItem(name) for name in asyncio.run(names()) if name.startswith(incomplete)]
        except (AllocatorError, OSError):
            return []


GROUP = GroupType()


def config_option(gives: str) -> Callback:
    return click.option(
        "-c", "--config", type=click.Path(dir_okay=False), help=f"Settings file of `allocator run`: {gives}."
    )


zookeeper_option = click.option(
    "--zookeeper", envvar="ALLOCATOR_ZOOKEEPER_HOSTS", help="ZooKeeper ensemble: host:port,host:port/chroot."
)
root_option = click.option(
    "--root", envvar="ALLOCATOR_ZOOKEEPER_ROOT", help="Znode that holds the groups (default /allocator)."
)
brokers_option = click.option("--brokers", envvar="ALLOCATOR_KAFKA_BROKERS", help="Kafka brokers: host:port,host:port.")
timeout_option = click.option("--timeout", default=10.0, type=Seconds(), help="Seconds to wait for each response.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
execute_option = click.option("--execute", is_flag=True, help="Make the change. Without this option, only show it.")


def repeated(*names: str, text: str, **options: Any) -> Callable[[Callback], Callback]:
    """Returns an option that may be repeated."""
    return click.option(*names, multiple=True, help=f"{text}; may be repeated.", **options)


mask_option = repeated("--mask", "masks", text="Show this field as ***, such as value.card.number")


def decorated(command: Callback, *decorators: Callback) -> Callback:
    """Applies decorators to a command, as if they were written above it in this order."""
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def with_clusters(command: Callback) -> Callback:
    """Adds the connection options. The command gets `access` and `as_json`."""
    return _connected(command, "gives the options below", zookeeper_option, root_option)


def with_brokers(gives: str) -> Callable[[Callback], Callback]:
    """Adds the connection options without ZooKeeper. The command gets `as_json`, and `access` with brokers.

    `gives` completes the help of --config: what the command reads from the file.
    """
    return lambda command: _connected(command, gives)


def _connected(command: Callback, gives: str, *zookeeper_options: Callback) -> Callback:
    @functools.wraps(command)
    def with_access(
        config: str | None,
        brokers: str | None,
        timeout: float,
        zookeeper: str | None = None,
        root: str | None = None,
        **given: Any,
    ) -> None:
        from allocator.cli.access import Access

        access = Access.of(config, zookeeper, root, brokers, timeout)
        if not zookeeper_options:
            access.need_brokers()
        elif access.zookeeper is None and access.brokers is None:
            raise ConfigError(
                "no cluster was given: give --zookeeper, --brokers or --config, or set ALLOCATOR_ZOOKEEPER_HOSTS"
            )
        command(access=access, **given)

    return decorated(with_access, config_option(gives), *zookeeper_options, brokers_option, timeout_option, json_option)
