"""`allocator web`: the status page of the groups of one root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from allocator.cli.group import Seconds, with_clusters
from allocator.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from allocator.cli.read import Access
    from allocator.consumer.consumer import Consumer
    from allocator.daemon.config import Config
    from allocator.daemon.process import Beside, Runner
    from allocator.web.actions import Reset

__all__ = ["beside", "resetting", "web"]

log = logging.getLogger(__name__)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port",
    default=8180,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Listen on this port; 0 picks a free one.",
)
@click.option(
    "--allow-host", "hosts", multiple=True, help="Host name under which browsers may call this server; may be repeated."
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="File with the token that allows changes (default: none, read-only).",
)
@click.option(
    "--interval",
    default=5.0,
    show_default=True,
    type=Seconds(0.2, 3600),
    help="Seconds between polls of Kafka.",
)
@with_clusters
def web(
    access: Any,
    default_group: Optional[str],
    as_json: bool,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    token_file: Optional[str],
    interval: float,
) -> None:
    """Show the groups in a browser: who owns what, what each rebalance moved and why, lag, problems.

    Prometheus finds metrics at /metrics, a load balancer /health/live and /health/ready, a program the API that
    /api/openapi.json describes. Without a token (from the file, or ALLOCATOR_WEB_TOKEN) nothing can be changed.

    Exit codes: 0 stopped by a signal; 1 the address is taken; 2 wrong usage or settings.
    """
    from allocator.daemon import process as logs
    from allocator.web.guard import Guard

    _need_the_extra()
    guard = Guard.make(hosts, _token(token_file))
    logs.configure("warning", "text")  # who changed something is of use with the time alone
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # what does not answer is said once
    asyncio.run(_serve(access, guard, host, port, interval, as_json))


async def _serve(access: Any, guard: Any, host: str, port: int, interval_s: float, as_json: bool) -> None:
    from prometheus_client import CollectorRegistry

    from allocator.tasks import TaskGroup
    from allocator.web.actions import actions
    from allocator.web.metrics import GroupCollector
    from allocator.web.server import Health, Site, serve
    from allocator.web.watch import Watcher

    watcher = Watcher(access, interval_s=interval_s)

    def not_ready() -> list[str]:
        wrong = [watcher.problems[cluster] for cluster in watcher.clusters if cluster in watcher.problems]
        return wrong or ([] if watcher.ready else ["the groups have not been read yet"])

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    registry = CollectorRegistry()
    registry.register(GroupCollector(watcher))
    site = Site(
        guard,
        registry,
        Health(ready=not_ready),
        watcher,
        actions=actions(lambda: watcher.zk, access.root, resetting(access)),
    )
    async with serve(site, host, port) as bound:
        name = f"[{host}]" if ":" in host else host
        url, changes = f"http://{name}:{bound}/", "changes need the token" if guard.token else "read-only"
        click.echo(json.dumps({"url": url, "changes": changes}) if as_json else f"{url} ({changes})")
        await TaskGroup().run(stop.wait(), watcher=watcher.run())


def beside(settings: Config) -> Beside:
    """The server of `[web]`, to run beside a daemon.

    Raises ConfigError for settings that it cannot have, MissingExtra without `zk-partition-allocator[web]`.
    """
    _need_the_extra()
    from allocator.cli.read import Access
    from allocator.web.actions import actions
    from allocator.web.daemon import beside_daemon
    from allocator.web.guard import Guard
    from allocator.web.watch import Watcher

    web, zookeeper = settings.web, settings.zookeeper
    guard = Guard.make(web.allow_hosts or (), web.token)

    @contextlib.asynccontextmanager
    async def running(config: Config, consumers: Sequence[Consumer], daemon: Runner) -> AsyncIterator[None]:
        watcher, allowed = None, {}
        if config.group.membership == "zookeeper" and zookeeper.hosts is not None:
            brokers, security = ",".join(config.kafka.brokers), config.kafka.security() or None
            access = Access(zookeeper.hosts, zookeeper.root, zookeeper.options() or None, brokers, security)
            watcher = Watcher(access, only=config.group.name)
            allowed = actions(lambda: watcher.zk, access.root, resetting(access))
        async with beside_daemon(consumers, daemon, guard, web.host, web.port or 0, watcher, allowed) as port:
            log.info("http://%s:%d/ has metrics, health and the status page", web.host, port)
            yield

    return running


def resetting(access: Access) -> Reset:
    """What the page does to reset offsets; refuses while the group has members."""
    from allocator.cli.read import execute_reset, plan_reset
    from allocator.cli.report import parse_target

    async def reset(group: str, to: str, topics: Collection[str], execute: bool) -> dict[str, Any]:
        work = execute_reset if execute else plan_reset
        return (await work(access, group, parse_target(to), topics)).to_json(executed=execute)

    return reset


def _need_the_extra() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "the page and the metrics need prometheus-client: pip install 'zk-partition-allocator[web]'"
        ) from error


def _token(path: Optional[str]) -> Optional[str]:
    if path is None:
        return os.environ.get("ALLOCATOR_WEB_TOKEN") or None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
