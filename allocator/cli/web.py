"""`allocator web`: serves the status page of the groups of one root."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import click

from allocator.cli.access import Access
from allocator.cli.options import GROUP, Seconds, repeated, with_clusters
from allocator.errors import ConfigError

if TYPE_CHECKING:
    from allocator.daemon import Beside, Config


@click.command()
@click.option("--host", default="127.0.0.1", help="Listen on this address.")
@click.option("--port", default=8180, type=click.IntRange(0, 65535), help="Listen on this port; 0 picks a free one.")
@repeated("--allow-host", "hosts", text="Host name to accept in the Host header of requests")
@click.option("--token-file", type=click.Path(dir_okay=False), help="Token that allows changes (default: read-only).")
@click.option("--interval", default=5.0, type=Seconds(0.2, 3600), help="Seconds between polls of Kafka.")
@click.option(
    "--history",
    help="SQLite file of the history, or `none` (default: one for each ensemble and root in ~/.local/state/allocator).",
)
@click.option(
    "--history-mb",
    default=256,
    type=click.IntRange(1, 1_000_000),
    help="Maximum megabytes of history; the oldest entries are deleted first.",
)
@click.option("--user-header", help="Header in which a proxy passes the authenticated user, such as X-Forwarded-User.")
@click.option("--groups-header", help="Header in which a proxy passes the groups of the user, separated by commas.")
@repeated("--proxy", "proxies", text="IP address of a proxy whose headers are trusted (default: this machine)")
@repeated("--operator", "operators", text="User or @group with the right to change groups")
@repeated("--viewer", "viewers", text="User or @group with the right to read (default: all users)")
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="PEM certificate chain, to serve https.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM key (default: in --tls-cert).")
@click.option(
    "--records",
    "records_access",
    type=click.Choice(["operators", "viewers", "nobody"]),
    help="Users that may see records (default: from [records] of --config, or operators).",
)
@repeated("--mask", "masks", text="Show this field of records as ***, such as value.card.number")
@repeated("--record-format", "formats", text="Format of records, such as orders:value=avro:FILE or orders:key=text")
@repeated(
    "--kafka-group",
    "kafka_groups",
    metavar="GROUP",
    type=GROUP,
    text="Also show this group of Kafka's own protocols (default: a group in Kafka from --config)",
)
@click.option("--registry", envvar="ALLOCATOR_RECORDS_REGISTRY", help="URL of a schema registry for records.")
@with_clusters
def web(
    access: Access,
    as_json: bool,
    records_access: Optional[str],
    masks: tuple[str, ...],
    formats: tuple[str, ...],
    kafka_groups: tuple[str, ...],
    registry: Optional[str],
    **options: Any,
) -> None:
    """Show groups in a browser: owners, lag, findings, and what each rebalance moved and why.

    Serves metrics for Prometheus at /metrics, health checks at /health/live and /health/ready, and an API that
    /api/openapi.json describes. Changes need a token (--token-file or ALLOCATOR_WEB_TOKEN) or an --operator.

    Exit codes: 0 stopped by a signal; 1 the address is in use; 2 wrong usage or settings.
    """
    from allocator.cli.records import error_viewer, make_viewer
    from allocator.daemon import configure_logs
    from allocator.viewer import Masks
    from allocator.web import PageOptions, run_page

    def show(url: str, changes: str) -> None:
        click.echo(json.dumps({"url": url, "changes": changes}) if as_json else f"{url} ({changes})")

    section = None if access.settings is None else access.settings.records
    readers: Any = records_access or ("operators" if section is None else section.access)
    viewer = None
    if access.brokers is not None:
        hidden = readers == "nobody"
        viewer = error_viewer(access, Masks.everything()) if hidden else make_viewer(access, masks, registry, formats)
    groups = _kafka_groups(access, kafka_groups)
    access = replace(access, kafka_groups=access.kafka_groups.union(groups))
    configure_logs("warning", "text")  # the text format has times, so the log shows when a user changed something
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # the watcher reports an unreachable server
    run_page(access, PageOptions(**options), groups, viewer, readers, show)


def _kafka_groups(access: Access, named: Collection[str]) -> Collection[str]:
    """Returns the names of the groups to show that use Kafka's own protocols.

    Raises ConfigError if such groups are named without brokers, or if there is no group to show.
    """
    if not named and access.settings is not None and access.settings.group.membership == "kafka":
        named = [access.settings.group.name]
    if not all(named):
        raise ConfigError("--kafka-group: name a group")
    if named:
        access.need_brokers()
    elif access.zookeeper is None:
        raise ConfigError(
            "no ZooKeeper was given: give --zookeeper or --config, set ALLOCATOR_ZOOKEEPER_HOSTS, or name groups of "
            "Kafka's own protocols with --kafka-group"
        )
    return named


def beside(settings: Config) -> Beside:
    """Returns the server of the section `[web]`, to run beside a daemon.

    Raises ConfigError for invalid settings, and MissingExtra without `zk-partition-allocator[web]`.
    """
    from allocator.cli.records import error_viewer
    from allocator.viewer import Masks
    from allocator.web import beside as beside_daemon

    web, zookeeper, group, access, viewer = settings.web, settings.zookeeper, settings.group, None, None
    over_zookeeper = group.membership == "zookeeper"
    if group.membership == "kafka" or (over_zookeeper and zookeeper.hosts is not None):
        brokers, security = ",".join(settings.kafka.brokers), settings.kafka.security() or None
        hosts = zookeeper.hosts if over_zookeeper else None
        elsewhere = frozenset() if over_zookeeper else frozenset({group.name})
        access = Access(hosts, zookeeper.root, zookeeper.options() or None, brokers, security, kafka_groups=elsewhere)
        hidden = settings.records.access == "nobody"
        viewer = error_viewer(access, Masks.everything() if hidden else Masks(settings.records.masks or ()))
    return beside_daemon(web.allow_hosts or (), web.token, web.host, web.port or 0, group.name, access, viewer)
