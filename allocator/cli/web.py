"""`allocator web`: the status page of the groups of one root."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from allocator.cli.options import GROUP, Seconds, with_clusters
from allocator.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from allocator import Consumer
    from allocator.cli.read import Access
    from allocator.daemon.config import Config
    from allocator.daemon.process import Beside, Runner
    from allocator.web.guard import Guard, Login
    from allocator.web.history_file import HistoryFile
    from allocator.web.records import RecordsPage

__all__ = ["beside", "need_the_extra", "web"]

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
@click.option(
    "--history",
    help="SQLite file of the history, or `none` (default: one for each ensemble and root in ~/.local/state/allocator).",
)
@click.option(
    "--history-mb",
    default=256,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Megabytes of history; the oldest entries make room.",
)
@click.option(
    "--user-header", help="Header in which a proxy names the user that it logged in, such as X-Forwarded-User."
)
@click.option("--groups-header", help="Header in which the proxy names the groups of the user, with commas.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    help="IP address of the proxy; may be repeated (default: this machine). Others may not name users.",
)
@click.option("--operator", "operators", multiple=True, help="User or @group that may change groups; may be repeated.")
@click.option(
    "--viewer", "viewers", multiple=True, help="User or @group that may read; may be repeated (default: all users)."
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="PEM file with the certificate chain: serves https.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM file with the key (default: in --tls-cert).")
@click.option(
    "--records",
    "records_access",
    type=click.Choice(["operators", "viewers", "nobody"]),
    help="Users that may look at records (default: as in [records] of --config, else operators).",
)
@click.option(
    "--mask", "masks", multiple=True, help="Show a field of records as ***, such as value.card.number; may be repeated."
)
@click.option(
    "--record-format",
    "formats",
    multiple=True,
    help="Format of records, TOPIC:value=FORMAT or TOPIC:key=FORMAT, such as orders:value=avro:FILE; may be repeated.",
)
@click.option(
    "--kafka-group",
    "kafka_groups",
    multiple=True,
    metavar="GROUP",
    type=GROUP,
    help="Also show this group of Kafka's own protocols; may be repeated (default: that of --config, if it is one).",
)
@click.option("--registry", envvar="ALLOCATOR_RECORDS_REGISTRY", help="URL of a schema registry, for records.")
@with_clusters
def web(
    access: Access,
    as_json: bool,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    token_file: Optional[str],
    interval: float,
    history: Optional[str],
    history_mb: int,
    user_header: Optional[str],
    groups_header: Optional[str],
    proxies: tuple[str, ...],
    operators: tuple[str, ...],
    viewers: tuple[str, ...],
    tls_cert: Optional[str],
    tls_key: Optional[str],
    records_access: Optional[str],
    masks: tuple[str, ...],
    formats: tuple[str, ...],
    kafka_groups: tuple[str, ...],
    registry: Optional[str],
) -> None:
    """Show the groups in a browser: who owns what, what each rebalance moved and why, lag, problems.

    Prometheus finds metrics at /metrics, a load balancer /health/live and /health/ready, a program the API that
    /api/openapi.json describes. Without a token (from the file, or ALLOCATOR_WEB_TOKEN) and without operators nothing
    can be changed.

    Exit codes: 0 stopped by a signal; 1 the address is taken; 2 wrong usage or settings.
    """
    from allocator.daemon import process as logs
    from allocator.web.guard import Guard

    need_the_extra()
    guard = Guard.make(hosts, _token(token_file), _login(user_header, groups_header, proxies, operators, viewers))
    tls = _tls(tls_cert, tls_key)
    records = _records(access, records_access, masks, registry, formats)
    groups = _kafka_groups(access, kafka_groups)
    logs.configure("warning", "text")  # the log needs times, to show when a user changed something
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # unreachable servers are reported once
    archive = _archive(history, history_mb * 1_000_000, access)
    try:
        asyncio.run(_serve(access, groups, guard, host, port, interval, as_json, archive, tls, records))
    finally:
        if archive is not None:
            archive.close()


def _kafka_groups(access: Access, named: Collection[str]) -> Collection[str]:
    """The groups of Kafka's own protocols that the page shows. Raises ConfigError if it would show no group at all, and
    without brokers for them."""
    if not named and access.settings is not None and access.settings.group.membership == "kafka":
        named = [access.settings.group.name]
    if not all(named):
        raise ConfigError("--kafka-group: name a group")
    if named:
        access.need_brokers()
    elif access.zookeeper is None:
        raise ConfigError(
            "where is ZooKeeper? Give --zookeeper or --config, set ALLOCATOR_ZOOKEEPER_HOSTS, or name groups of "
            "Kafka's own protocols with --kafka-group"
        )
    return named


async def _serve(
    access: Access,
    kafka_groups: Collection[str],
    guard: Any,
    host: str,
    port: int,
    interval_s: float,
    as_json: bool,
    archive: Optional[HistoryFile],
    tls: Optional[ssl.SSLContext],
    records: Optional[RecordsPage],
) -> None:
    from prometheus_client import CollectorRegistry

    from allocator.cli.page_work import dead_letters, page_work
    from allocator.core.tasks import TaskGroup
    from allocator.web.actions import Place, actions
    from allocator.web.history import POINTS
    from allocator.web.history_file import keep
    from allocator.web.metrics import GroupCollector
    from allocator.web.server import Health, Site, serve
    from allocator.web.watch import Watcher

    past = None if archive is None else partial(archive.do, partial(archive.past, kept_points=POINTS))
    watcher = Watcher(access, interval_s=interval_s, past=past, kafka_groups=kafka_groups)
    if archive is not None:
        watcher.log.recall(await archive.do(archive.events))

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
        actions=actions(Place(lambda: watcher.zk, access.root, watcher.in_kafka), page_work(access)),
        letters=dead_letters(access, None if records is None else records.viewer),
        archive=archive,
        tls=tls,
        records=records,
    )
    beside = {} if archive is None else {"history": keep(watcher, archive)}
    async with serve(site, host, port) as bound:
        name = f"[{host}]" if ":" in host else host
        url, changes = f"{'http' if tls is None else 'https'}://{name}:{bound}/", _changes(guard)
        click.echo(json.dumps({"url": url, "changes": changes}) if as_json else f"{url} ({changes})")
        await TaskGroup().run(stop.wait(), watcher=watcher.run(), **beside)


def _records(
    access: Access,
    users: Optional[str],
    masks: Collection[str],
    registry: Optional[str],
    formats: Collection[str],
) -> Optional[RecordsPage]:
    """How the page shows records, from [records] of the settings file and the options; None: it shows none."""
    from allocator.cli.records import make_viewer
    from allocator.viewer import Reader
    from allocator.web.records import RecordsPage

    section = None if access.settings is None else access.settings.records
    allowed: Any = users or ("operators" if section is None else section.access)
    if access.brokers is None or allowed == "nobody":
        return None
    reader = Reader(access.brokers, security=access.security, timeout_s=access.timeout_s)
    return RecordsPage(make_viewer(reader, section, masks, registry, formats), allowed)


def _changes(guard: Guard) -> str:
    if guard.read_only:
        return "read-only"
    return "changes need the token" if guard.login is None else "changes need an operator"


def _archive(history: Optional[str], max_bytes: int, access: Access) -> Optional[HistoryFile]:
    from allocator.web.history_file import HistoryFile

    if history == "none":
        return None
    if history is not None:
        return HistoryFile(Path(history), max_bytes)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    key = hashlib.sha256(f"{access.zookeeper or access.brokers}\n{access.root}".encode()).hexdigest()[:12]
    try:
        return HistoryFile(Path(state).expanduser() / "allocator" / f"history-{key}.sqlite", max_bytes)
    except (ConfigError, RuntimeError) as error:
        click.echo(f"the history ends with this process: {error}", err=True)
        return None


def _login(
    user_header: Optional[str],
    groups_header: Optional[str],
    proxies: Collection[str],
    operators: Collection[str],
    viewers: Collection[str],
) -> Optional[Login]:
    from allocator.web.guard import Login

    if user_header is None:
        if groups_header or proxies or operators or viewers:
            raise ConfigError("--groups-header, --proxy, --operator and --viewer need --user-header")
        return None
    trusted = frozenset(proxies) or frozenset({"127.0.0.1", "::1"})
    return Login(user_header, groups_header, trusted, frozenset(operators), frozenset(viewers))


def _tls(cert: Optional[str], key: Optional[str]) -> Optional[ssl.SSLContext]:
    if cert is None:
        if key is not None:
            raise ConfigError("--tls-key needs --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def encrypted() -> str:
        raise ConfigError(
            f"the key {key or cert} is encrypted, and a server cannot ask for its password: decrypt it with "
            "`openssl pkey -in KEY -out NEW`, readable by this user alone"
        )

    try:
        context.load_cert_chain(cert, key, encrypted)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate {cert} or its key {key or 'in it'} cannot be used: {error}") from error
    return context


def beside(settings: Config) -> Beside:
    """The server of `[web]`, to run beside a daemon.

    Raises ConfigError for invalid settings, MissingExtra without `zk-partition-allocator[web]`.
    """
    need_the_extra()
    from allocator.cli.page_work import dead_letters, page_work
    from allocator.cli.read import Access
    from allocator.web.actions import Place, actions
    from allocator.web.daemon import beside_daemon
    from allocator.web.guard import Guard
    from allocator.web.watch import Watcher

    web, zookeeper = settings.web, settings.zookeeper
    guard = Guard.make(web.allow_hosts or (), web.token)

    @contextlib.asynccontextmanager
    async def running(config: Config, consumers: Sequence[Consumer], daemon: Runner) -> AsyncIterator[None]:
        watcher, allowed, letters = None, {}, None
        name, over_zookeeper = config.group.name, config.group.membership == "zookeeper"
        if config.group.membership in ("kafka", "zookeeper") and (zookeeper.hosts is not None or not over_zookeeper):
            brokers, security = ",".join(config.kafka.brokers), config.kafka.security() or None
            hosts = zookeeper.hosts if over_zookeeper else None
            access = Access(hosts, zookeeper.root, zookeeper.options() or None, brokers, security)
            watcher = Watcher(access, only=name, kafka_groups=() if over_zookeeper else [name])
            place = Place(lambda: watcher.zk, access.root, watcher.in_kafka)
            allowed, letters = actions(place, page_work(access)), dead_letters(access)
        async with beside_daemon(consumers, daemon, guard, web.host, web.port or 0, watcher, allowed, letters) as port:
            log.info("http://%s:%d/ has metrics, health and the status page", web.host, port)
            yield

    return running


def need_the_extra() -> None:
    """Raises MissingExtra without `zk-partition-allocator[web]`."""
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
