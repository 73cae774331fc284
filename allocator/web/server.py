"""The HTTP server: page, JSON API, live events, metrics, health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from tornado import iostream, netutil, web

from allocator.errors import AllocatorError, ConfigError
from allocator.foreign import shown
from allocator.tasks import wait_for_event, within
from allocator.web import snapshot
from allocator.web.actions import Action
from allocator.web.connections import Limits, Server
from allocator.web.guard import HEADERS, Guard
from allocator.web.openapi import describe_api
from allocator.web.watch import WatchedGroup, Watcher

__all__ = ["Health", "PortTaken", "Site", "serve"]

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PUSH_S = 0.2  # at most one push to a browser in so many seconds; more: later news; less: more work in a rebalance
ALIVE_S = 15.0  # a line on a silent stream, by which proxies and browsers know that it stands
READ_S = 5.0  # how long a request waits for the first look at the groups


class PortTaken(AllocatorError):
    """The address that the server is to listen on cannot be had; another one, or whoever has it has to go."""


class Refused(web.HTTPError):
    """An answer that is an error, with a text for people."""

    def __init__(self, status: int, message: str, retriable: bool = False) -> None:
        super().__init__(status)
        self.message = message
        self.retriable = retriable


def _nothing() -> list[str]:
    return []


@dataclass(frozen=True)
class Health:
    """Answers of the health endpoints: each returns what is wrong, nothing if all is well."""

    live: Callable[[], list[str]] = _nothing
    """Wrong here: restarting the process helps."""
    ready: Callable[[], list[str]] = _nothing
    """Wrong here: it does not do its work yet, or not at present."""


@dataclass(frozen=True)
class Site:
    """All that is served."""

    guard: Guard
    registry: CollectorRegistry
    health: Health = Health()
    watcher: Optional[Watcher] = None
    """None: no page, only metrics and health."""
    viewing: Callable[[], contextlib.AbstractAsyncContextManager[Any]] = contextlib.AsyncExitStack
    """Entered by whoever looks, for as long as he does."""
    actions: Mapping[str, Action] = field(default_factory=dict)
    """"rebalance", "pause" and so on -> what does it, given the group and what the body says."""
    limits: Limits = field(default_factory=Limits)

    @property
    def read_only(self) -> bool:
        """Whether every change is refused."""
        return self.guard.token is None or not self.actions


class PageHandler(web.RequestHandler):
    """Checks who asks before anything else, and answers errors as JSON."""

    site: Site

    def initialize(self, site: Site, what: str = "") -> None:
        self.site = site
        self.what = what

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    def prepare(self) -> None:
        if not self.knows_host():
            raise Refused(421, "this server is not called so; whoever started it can allow the name (--allow-host)")
        if not self.same_origin():
            raise Refused(403, "a page of another origin may not ask; a proxy with TLS has to set X-Forwarded-Proto")

    def knows_host(self) -> bool:
        return self.site.guard.knows_host(self.request.headers.get("Host"))

    def same_origin(self) -> bool:
        # no page of another origin can set this header: the browser would ask us first, and we do not answer that
        scheme = self.request.headers.get("X-Forwarded-Proto", "http").lower()
        headers = self.request.headers
        return self.site.guard.same_origin(headers.get("Origin"), headers.get("Host"), scheme)

    def finish(self, chunk: Any = None) -> Any:
        """As tornado's. A client that does not take the answer in time is hung up on."""
        sent = super().finish(chunk)
        timer = asyncio.get_running_loop().call_later(self.site.limits.stalled_s, self.hang_up)
        sent.add_done_callback(lambda _: timer.cancel())
        return sent

    def hang_up(self) -> None:
        self.request.connection.close()  # type: ignore[union-attr]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        message, retriable = self._reason, False
        if isinstance(error, Refused):
            message, retriable = error.message, error.retriable
        if status_code == 503:
            self.set_header("Retry-After", "5")
        self.answer({"error": {"message": message, "retriable": retriable}})

    def log_exception(self, kind: Any, value: Any, trace: Any) -> None:
        if not isinstance(value, web.HTTPError):  # those are the asker's
            super().log_exception(kind, value, trace)

    def answer(self, value: Any) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(snapshot.encode(value))

    def watcher(self) -> Watcher:
        if self.site.watcher is None:
            raise Refused(404, "this server shows no groups, only metrics and health")
        return self.site.watcher

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The groups are watched while the block lasts, and have been read when it begins, if they can be."""
        watcher = self.watcher()
        async with self.site.viewing():
            await watcher.until_ready(READ_S)
            yield

    def group(self, name: str) -> WatchedGroup:
        group = self.watcher().groups.get(name)
        if group is None or not group.seen:
            raise Refused(404, f"no group {shown(name)} is known here", retriable=not self.watcher().ready)
        return group


class Page(PageHandler):
    """The files of the page, from the package: no other file can be named."""

    def get(self) -> None:
        self.watcher()
        self.set_header("Content-Type", f"{TYPES[self.what.rsplit('.', 1)[1]]}; charset=utf-8")
        self.finish((STATIC / self.what).read_bytes())


class Overview(PageHandler):
    async def get(self) -> None:
        async with self.watching():
            self.answer(snapshot.overview(self.watcher(), self.site.read_only))


class Detail(PageHandler):
    async def get(self, name: str) -> None:
        async with self.watching():
            group = self.group(name)
        self.answer(
            {
                **snapshot.detail(group),
                "findings": snapshot.findings(group),
                "rebalances": snapshot.rebalances(group),
                "series": snapshot.series(group),
            }
        )


class Partitions(PageHandler):
    async def get(self, name: str) -> None:
        async with self.watching():
            report = self.group(name).report
        self.answer({"partitions": [report.partition_to_json(partition) for partition in report.partitions]})


class Offsets(PageHandler):
    async def get(self, name: str) -> None:
        async with self.watching():
            group = self.group(name)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(snapshot.encoded(group, "offsets"))


class OneRebalance(PageHandler):
    async def get(self, name: str, number: str) -> None:
        async with self.watching():
            found = snapshot.rebalance(self.group(name), int(number))
        if found is None:
            raise Refused(
                404, f"group {shown(name)} has no rebalance {number}; the list of its rebalances has their ids"
            )
        self.answer(found)


class Description(PageHandler):
    def get(self) -> None:
        self.answer(describe_api())


class Metrics(PageHandler):
    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.site.registry))


class HealthOf(PageHandler):
    def prepare(self) -> None:
        """Answers whoever asks: a load balancer calls us by any name. What is wrong is told as all else is."""

    def get(self) -> None:
        problems = getattr(self.site.health, self.what)()
        self.set_status(503 if problems else 200)
        told = problems if self.knows_host() and self.same_origin() else []
        self.answer({"ok": not problems, "problems": told})

    head = get
    """What some balancers and monitors ask instead; the status says it all."""


class Act(PageHandler):
    async def post(self, name: str, what: str) -> None:
        if self.site.guard.token is None:
            raise Refused(403, "this server is read-only: it was started without a token")
        if not self.site.guard.allows(self.request.headers.get("Authorization")):
            self.set_header("WWW-Authenticate", "Bearer")
            raise Refused(401, "the token is missing or wrong")
        action = self.site.actions.get(what)
        if action is None:
            raise Refused(404, f"{shown(what)} cannot be done here; there are {', '.join(sorted(self.site.actions))}")
        async with self.watching():
            self.group(name)
            await self._do(name, what, action)

    async def _do(self, name: str, what: str, action: Action) -> None:
        given = self._body()
        log.warning("%s of %s is asked for by %s: %s", what, shown(name), self.request.remote_ip, shown(given))
        try:
            self.answer(await action(name, given))
        except ConfigError as error:
            raise Refused(400, str(error)) from error
        except AllocatorError as error:
            raise Refused(409, str(error), retriable=error.retriable) from error

    def _body(self) -> dict[str, Any]:
        if not self.request.body:
            return {}
        if self.request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "the body has to be application/json")
        try:
            given = json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise Refused(400, "the body has to be an object")
        return given


class Events(PageHandler):
    """Server-sent events: what there is, and then what changes."""

    viewers = 0

    async def get(self) -> None:
        watcher = self.watcher()
        if Events.viewers >= self.site.limits.viewers:
            raise Refused(503, f"{self.site.limits.viewers} pages are open already", retriable=True)
        name = self.get_query_argument("group", None)
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        self.write("retry: 2000\n\n")
        self._event("clock", snapshot.encode({"now": round(time.time(), 3)}))
        self._news = watcher.subscribe()
        Events.viewers += 1
        try:
            async with self.site.viewing():
                await self._push(watcher, name)
        except iostream.StreamClosedError:
            pass  # whoever looked has gone
        except asyncio.TimeoutError:
            self.hang_up()  # whoever looked takes nothing any more
        finally:
            Events.viewers -= 1
            watcher.unsubscribe(self._news)

    def on_connection_close(self) -> None:
        self._gone = True
        if hasattr(self, "_news"):
            self._news.set()

    async def _push(self, watcher: Watcher, name: str | None) -> None:
        self._gone = False
        sent: dict[str, Any] = {}
        after = 0.0
        while not self._gone:
            if not await wait_for_event(self._news, ALIVE_S):
                self.write(": alive\n\n")
                await within(self.flush(), self.site.limits.stalled_s)
                continue
            self._news.clear()
            parts = {"overview": snapshot.encode(snapshot.overview(watcher, self.site.read_only))}
            group = watcher.groups.get(name) if name is not None else None
            if group is not None and group.seen:
                parts.update((part, snapshot.encoded(group, part)) for part in snapshot.PARTS)
                points = snapshot.series(group, after)
                if points:
                    self._event("series", snapshot.encode({"whole": after == 0.0, "points": points}))
                    after = group.series.points[-1].at
            elif name is not None and watcher.ready:
                parts["missing"] = snapshot.encode({"group": name})
            for part, text in parts.items():
                if sent.get(part) != text:
                    sent[part] = text
                    self._event(part, text)
            sent = {part: text for part, text in sent.items() if part in parts}
            await within(self.flush(), self.site.limits.stalled_s)
            await asyncio.sleep(PUSH_S)

    def _event(self, kind: str, text: str) -> None:
        self.write(f"event: {kind}\ndata: {text}\n\n")


def application(site: Site) -> web.Application:
    """The routes; each group's name is one segment of the path."""
    group = r"/api/groups/([^/]+)"
    routes: list[Any] = [
        ("/api/groups", Overview, {"site": site}),
        (group, Detail, {"site": site}),
        (f"{group}/partitions", Partitions, {"site": site}),
        (f"{group}/offsets", Offsets, {"site": site}),
        (rf"{group}/rebalances/([0-9]{{1,17}})", OneRebalance, {"site": site}),
        (f"{group}/(.+)", Act, {"site": site}),
        ("/api/events", Events, {"site": site}),
        ("/api/openapi.json", Description, {"site": site}),
        ("/metrics", Metrics, {"site": site}),
        ("/health/live", HealthOf, {"site": site, "what": "live"}),
        ("/health/ready", HealthOf, {"site": site, "what": "ready"}),
        ("/", Page, {"site": site, "what": "index.html"}),
    ]
    routes += [
        (f"/{path.name}", Page, {"site": site, "what": path.name})
        for path in sorted(STATIC.iterdir())
        if path.suffix[1:] in TYPES
    ]
    return web.Application(
        routes, default_handler_class=Nowhere, default_handler_args={"site": site}, log_function=_quiet
    )


class Nowhere(PageHandler):
    def prepare(self) -> None:
        super().prepare()
        raise Refused(404, "there is nothing here; /api/openapi.json lists what there is")


@contextlib.asynccontextmanager
async def serve(site: Site, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serves while the block lasts; gives the port, which the system chooses when it is 0. Raises PortTaken."""
    try:
        sockets = netutil.bind_sockets(port, host)
    except (OSError, socket.gaierror) as error:
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address") from error
    server = Server(application(site), site.limits)
    server.listen_on(sockets)
    try:
        yield sockets[0].getsockname()[1]
    finally:
        await server.close()


def _quiet(handler: web.RequestHandler) -> None:
    """No line for each request: an access log belongs to a proxy, and what changes something is logged by itself."""
