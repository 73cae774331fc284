"""Runs `allocator web`: serves the page of all groups under one root until a signal."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import ssl
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Optional

from prometheus_client import CollectorRegistry

from allocator.core.aio import TaskGroup
from allocator.errors import ConfigError
from allocator.operate import Clusters
from allocator.viewer import Viewer
from allocator.web.actions import GroupWork, actions
from allocator.web.dead_letters import LetterDesk
from allocator.web.guard import Guard, Login
from allocator.web.history import POINTS
from allocator.web.history_file import HistoryFile, keep
from allocator.web.metrics import GroupCollector
from allocator.web.records import RecordsPage
from allocator.web.server import Health, Site, serve
from allocator.web.watch import Watcher


@dataclass(frozen=True)
class PageOptions:
    """Options of `allocator web` about the server, named as on the command line."""

    host: str
    port: int
    hosts: Collection[str]
    token_file: Optional[str]
    interval: float
    history: Optional[str]
    history_mb: int
    user_header: Optional[str]
    groups_header: Optional[str]
    proxies: Collection[str]
    operators: Collection[str]
    viewers: Collection[str]
    tls_cert: Optional[str]
    tls_key: Optional[str]


def run_page(
    access: Clusters,
    options: PageOptions,
    kafka_groups: Collection[str],
    viewer: Optional[Viewer],
    readers: Literal["operators", "viewers", "nobody"],
    tell: Callable[[str, str], None],
) -> None:
    """Serves the page until SIGTERM or SIGINT.

    Calls `tell` with the URL and a text about the access for changes. `viewer` reads records for users with the role
    `readers`, and dead letters for operators; None: there are no brokers. Raises ConfigError, PortTaken.
    """
    guard = Guard.make(options.hosts, _token(options.token_file), _login(options))
    tls = _tls(options.tls_cert, options.tls_key)
    records = letters = None
    if viewer is not None:
        records = None if readers == "nobody" else RecordsPage(viewer, readers)
        letters = LetterDesk.of(access, viewer, contents=readers != "nobody")
    archive = _archive(options.history, options.history_mb * 1_000_000, access)

    async def serving() -> None:
        past = None if archive is None else partial(archive.do, partial(archive.past, kept_points=POINTS))
        watcher = Watcher(access, interval_s=options.interval, past=past, kafka_groups=kafka_groups)
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
            actions=actions(GroupWork(access)),
            letters=letters,
            archive=archive,
            tls=tls,
            records=records,
        )
        async with serve(site, options.host, options.port) as bound:
            beside = {} if archive is None else {"history": keep(watcher, archive)}
            name = f"[{options.host}]" if ":" in options.host else options.host
            tell(f"{'http' if tls is None else 'https'}://{name}:{bound}/", _changes(guard))
            await TaskGroup().run(stop.wait(), watcher=watcher.run(), **beside)

    try:
        asyncio.run(serving())
    finally:
        if archive is not None:
            archive.close()


def _changes(guard: Guard) -> str:
    if guard.read_only:
        return "read-only"
    return "changes need the token" if guard.login is None else "changes need an operator"


def _archive(history: Optional[str], max_bytes: int, access: Clusters) -> Optional[HistoryFile]:
    if history == "none":
        return None
    if history is not None:
        return HistoryFile(Path(history), max_bytes)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    key = hashlib.sha256(f"{access.zookeeper or access.brokers}\n{access.root}".encode()).hexdigest()[:12]
    try:
        return HistoryFile(Path(state).expanduser() / "allocator" / f"history-{key}.sqlite", max_bytes)
    except (ConfigError, RuntimeError) as error:
        print(f"the history is kept in memory only: {error}", file=sys.stderr)
        return None


def _login(options: PageOptions) -> Optional[Login]:
    if options.user_header is None:
        if options.groups_header or options.proxies or options.operators or options.viewers:
            raise ConfigError("--groups-header, --proxy, --operator and --viewer need --user-header")
        return None
    trusted = frozenset(options.proxies) or frozenset({"127.0.0.1", "::1"})
    allowed = frozenset(options.operators), frozenset(options.viewers)
    return Login(options.user_header, options.groups_header, trusted, *allowed)


def _tls(cert: Optional[str], key: Optional[str]) -> Optional[ssl.SSLContext]:
    if cert is None:
        if key is not None:
            raise ConfigError("--tls-key needs --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def encrypted() -> str:
        raise ConfigError(
            f"the key {key or cert} is encrypted, and the server has no password for it; decrypt it with "
            "`openssl pkey -in KEY -out NEW`, and make NEW readable by this user alone"
        )

    try:
        context.load_cert_chain(cert, key, encrypted)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate {cert} or its key {key or 'in it'} cannot be used: {error}") from error
    return context


def _token(path: Optional[str]) -> Optional[str]:
    if path is None:
        return os.environ.get("ALLOCATOR_WEB_TOKEN") or None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
