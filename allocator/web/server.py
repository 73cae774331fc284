"""The HTTP server: page, JSON API, live events, metrics and health checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Optional, TypeVar

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from tornado import iostream, netutil, web

from allocator.assignors import known_names
from allocator.commands import KINDS
from allocator.core.aio import wait_for_event, within
from allocator.core.settings import address_text
from allocator.core.text import parse_json, shown
from allocator.errors import AllocatorError, ConfigError, TopicNotFound
from allocator.web import responses, snapshot
from allocator.web.actions import POSTS as GROUP_POSTS
from allocator.web.actions import Action
from allocator.web.connections import Limits, Server
from allocator.web.dead_letters import POSTS as LETTER_POSTS
from allocator.web.dead_letters import LetterDesk
from allocator.web.events import Event, audit_detail
from allocator.web.guard import HEADERS, Guard, User
from allocator.web.history_file import HistoryFile
from allocator.web.openapi import CHANGE, NOT_WELL, Operation, Response, describe
from allocator.web.records import AT_ONCE, TEXT, RecordsPage
from allocator.web.requests import EventsQuery, RecordsQuery, Times, checked
from allocator.web.watch import WatchedGroup, Watcher, log_ends

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PUSH_S = (
    0.2  # minimum between two pushes to a browser. Higher: the page is updated later; lower: more CPU in a rebalance
)
ALIVE_S = 15.0  # between two lines of an idle stream; they keep proxies and browsers from closing it
AUDITED = ("command", "read")  # kinds of events in the audit log
GROUP = "/api/groups/{group}"
RECORDS = "/api/topics/{topic}/records"
LINES = "application/x-ndjson"
READING = (400, 401, 403, 404, 503)  # errors of a read of records
EVENTS = "Server-sent events: clock, overview, group, lag, loads, rebalances, findings, commands, events, series"
READ_S = 5.0  # longest wait for the first read of the groups


T = TypeVar("T", bound=Struct)


class PortTaken(AllocatorError):
    """The server cannot listen on its address. Choose another port, or stop the process that uses it."""


class Refused(web.HTTPError):
    """An error response with a readable message."""

    def __init__(self, status: int, message: str, retriable: bool = False) -> None:
        super().__init__(status)
        self.message = message
        self.retriable = retriable


@dataclass(frozen=True)
class Health:
    """The health checks. Each returns its problems, or an empty list."""

    live: Callable[[], list[str]] = list
    """Problems that a restart of the process would solve."""
    ready: Callable[[], list[str]] = list
    """Problems that keep the process from its work."""


@dataclass(frozen=True)
class Site:
    """The parts of a server."""

    guard: Guard
    registry: CollectorRegistry
    health: Health = Health()
    watcher: Optional[Watcher] = None
    """None: the server has only metrics and health checks."""
    viewing: Callable[[], contextlib.AbstractAsyncContextManager[Any]] = contextlib.AsyncExitStack
    """Context that the server enters for each open page."""
    actions: Mapping[str, Action] = field(default_factory=dict)
    """Name ("rebalance", "pause", ...) -> action."""
    limits: Limits = field(default_factory=Limits)
    letters: Optional[LetterDesk] = None
    """None: the page shows no dead letters."""
    archive: Optional[HistoryFile] = None
    """None: the page shows only the history in the watcher's memory."""
    tls: Optional[ssl.SSLContext] = None
    records: Optional[RecordsPage] = None
    """None: the page shows no records."""

    def read_only(self, user: User) -> bool:
        """Whether the page offers this user no changes. Without a login, the server checks the token of each change."""
        return self.guard.read_only or not self.actions or (self.guard.login is not None and not user.operates)


ROUTES: list[tuple[Operation, type[PageHandler], Any]] = []
H = TypeVar("H", bound="type[PageHandler]")
Show = Callable[..., Awaitable[Any]]


def route(path: str, summary: str, response: Response, *errors: int, what: Any = "", **more: Any) -> Callable[[H], H]:
    """Registers the decorated class as the handler of an `Operation`. `what` distinguishes operations of one class."""

    def add(handler: H) -> H:
        ROUTES.append((Operation(path, summary, response, errors, **more), handler, what))
        return handler

    return add


def shows(path: str, summary: str, response: Response, *errors: int, **more: Any) -> Callable[[Show], Show]:
    """Registers the decorated function for an `Operation`. It returns JSON; its arguments are the handler and the
    parameters of the path."""

    def add(show: Show) -> Show:
        route(path, summary, response, *errors, what=show, **more)(Json)
        return show

    return add


class PageHandler(web.RequestHandler):
    """Checks the sender before it handles a request, and sends errors as JSON."""

    site: Site
    user = User("", "viewer")

    def initialize(self, site: Site, what: Any = "") -> None:
        self.site = site
        self.what = what

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    def prepare(self) -> None:
        if not self.knows_host():
            raise Refused(
                421, "the Host header does not name this server; its operator can allow the name with --allow-host"
            )
        if not self.same_origin():
            raise Refused(
                403, "requests from pages of other origins are refused; a proxy with TLS must set X-Forwarded-Proto"
            )
        self.check_user()

    def check_user(self) -> None:
        """Raises Refused for a sender that may not read."""
        user = self.site.guard.user(self.request.headers, self.request.remote_ip or "")
        if user is None:
            raise Refused(401, "no user: log in at the proxy in front of this server")
        if not user.role:
            raise Refused(403, f"user {shown(user.name)} is neither a viewer nor an operator")
        self.user = user

    def check_operator(self) -> None:
        """Raises Refused for a sender that may not change anything."""
        guard = self.site.guard
        if guard.read_only:
            raise Refused(403, "this server is read-only: it was started without a token and without operators")
        if not self.user.operates:
            if guard.login is not None:
                raise Refused(403, f"user {shown(self.user.name)} is not an operator")
            self.set_header("WWW-Authenticate", "Bearer")
            raise Refused(401, "the token is missing or wrong")

    def knows_host(self) -> bool:
        return self.site.guard.knows_host(self.request.headers.get("Host"))

    def same_origin(self) -> bool:
        # a page of another origin cannot set this header: the browser would send a preflight request first, which this
        # server rejects
        scheme = self.request.headers.get("X-Forwarded-Proto", "https" if self.site.tls else "http").lower()
        headers = self.request.headers
        return self.site.guard.same_origin(headers.get("Origin"), headers.get("Host"), scheme)

    def finish(self, chunk: Any = None) -> Any:
        """Sends the response. Closes the connection of a client that does not read it in time."""
        sent = super().finish(chunk)
        timer = asyncio.get_running_loop().call_later(self.site.limits.stalled_s, self.hang_up)
        sent.add_done_callback(lambda _: timer.cancel())
        return sent

    def hang_up(self) -> None:
        self.request.connection.close()  # type: ignore[union-attr]

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        change = self.request.method == "POST"
        if isinstance(error, ConfigError) or (isinstance(error, TopicNotFound) and not change):
            status_code = 400
        elif isinstance(error, AllocatorError):
            status_code = 409 if change else 503
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        message, retriable = self._reason, False
        if isinstance(error, (Refused, AllocatorError)):
            message = error.message if isinstance(error, Refused) else str(error)
            retriable = error.retriable and status_code != 400
        if status_code == 503:
            self.set_header("Retry-After", "5")
        self.respond({"error": {"message": message, "retriable": retriable}})

    def log_exception(self, kind: Any, value: Any, trace: Any) -> None:
        if not isinstance(value, (web.HTTPError, AllocatorError)):  # errors of the client or of a cluster
            super().log_exception(kind, value, trace)

    def respond(self, value: Any) -> None:
        """Sends a value as JSON, and a string unchanged."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(value if isinstance(value, str) else snapshot.encode(value))

    def note(self, kind: str, text: str, group: Optional[str], request: Mapping[str, Any], outcome: str) -> None:
        """Adds an event with the request to the audit log."""
        who, address = self.user.name, self.request.remote_ip
        self.watcher().log.add(Event(time.time(), kind, text, group, who, address, audit_detail(request, outcome)))

    def query(self, kind: type[T]) -> T:
        """Returns the query of the URL, without empty arguments. Raises ConfigError."""
        given = {name: self.get_query_argument(name, strip=False) for name in self.request.query_arguments}
        return checked(kind, {name: value for name, value in given.items() if value}, strict=False)

    def watcher(self) -> Watcher:
        if self.site.watcher is None:
            raise Refused(404, "this server has only metrics and health checks")
        return self.site.watcher

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Keeps the watcher running during the block. First waits at most READ_S until it has read the groups."""
        watcher = self.watcher()
        async with self.site.viewing():
            await watcher.until_ready(READ_S)
            yield watcher

    async def group(self, name: str) -> WatchedGroup:
        async with self.watching() as watcher:
            group = watcher.groups.get(name)
            if group is None or not group.seen:
                what = "has neither members nor offsets in Kafka" if name in watcher.absent else "is not known"
                raise Refused(404, f"group {shown(name)} {what}", retriable=not watcher.ready)
            return group

    def letters(self) -> LetterDesk:
        """Returns the dead letters. Raises Refused for users other than operators, because letters contain records."""
        self.check_operator()
        if self.site.letters is None:
            raise Refused(404, "this server was started without brokers, so it shows no dead letters")
        return self.site.letters


class Page(PageHandler):
    """Serves the files of the page from the package."""

    def get(self) -> None:
        self.watcher()
        self.set_header("Content-Type", f"{TYPES[self.what.rsplit('.', 1)[1]]}; charset=utf-8")
        self.finish((STATIC / self.what).read_bytes())


class Json(PageHandler):
    """Sends the result of its route's function."""

    async def get(self, *names: str) -> None:
        self.respond(await self.what(self, *names))


@shows("/api/groups", "All groups", responses.OverviewJson, 404)
async def overview(page: PageHandler) -> Any:
    async with page.watching() as watcher:
        return snapshot.overview(watcher, page.site.read_only(page.user))


@shows("/api/topics", "The topics of the cluster, with the groups that read them", responses.TopicsJson, 404)
async def topics(page: PageHandler) -> Any:
    async with page.watching() as watcher:
        return snapshot.topics(watcher, await log_ends(watcher))


@shows("/api/brokers", "The brokers of the cluster", responses.BrokersJson, 404)
async def brokers(page: PageHandler) -> Any:
    async with page.watching() as watcher:
        return snapshot.brokers(watcher)


@shows(GROUP, "One group", responses.GroupJson, 404)
async def detail(page: PageHandler, name: str) -> Any:
    group = await page.group(name)
    return {
        **snapshot.detail(group),
        "loads": snapshot.loads(group),
        "findings": snapshot.findings(group),
        "rebalances": snapshot.rebalances(group),
        "series": snapshot.series(group),
        "commands": snapshot.commands(group),
    }


@shows(f"{GROUP}/partitions", "Offsets and owner of each partition", responses.PartitionsJson, 404)
async def partitions(page: PageHandler, name: str) -> Any:
    report = (await page.group(name)).report
    return {"partitions": [report.partition_to_json(partition) for partition in report.partitions]}


@shows(f"{GROUP}/offsets", "Offsets, lag and rates, as columns for each topic", responses.OffsetsJson, 404)
async def offsets(page: PageHandler, name: str) -> Any:
    return snapshot.encoded(await page.group(name), "offsets")


@shows(f"{GROUP}/rebalances/{{id}}", "One rebalance with all its moves", responses.RebalanceMovesJson, 404)
async def rebalance(page: PageHandler, name: str, number: str) -> Any:
    archive = page.site.archive
    found = snapshot.rebalance(await page.group(name), int(number))
    if found is None and archive is not None:
        found = await archive.read(archive.rebalance, name, int(number))
    if found is None:
        raise Refused(404, f"group {shown(name)} has no rebalance {number}; the group's rebalances list their ids")
    return found


@shows(f"{GROUP}/history", "Figures, rebalances and events of a period", responses.PastJson, 400, 404, query=Times)
async def past(page: PageHandler, name: str) -> Any:
    query = page.query(Times)
    until = time.time() if query.to is None else query.to
    since = until - 3600 if query.from_ is None else query.from_
    if since >= until:
        raise Refused(400, f"from={since:g} is not before to={until:g}")
    group, archive = await page.group(name), page.site.archive
    points = [each for each in snapshot.series(group) if since <= each["at"] <= until]
    rebalances: dict[int, Any] = {}
    if archive is not None:
        first = points[0]["at"] if points else until
        older = await archive.read(archive.points, name, since, first)
        points = [*(each for each in older if not points or each["at"] < first), *points]
        rebalances = {each["id"]: each for each in await archive.read(archive.rebalances, name, since, until)}
    rebalances.update((each["id"], each) for each in snapshot.rebalances(group) if since <= each["began"] <= until)
    return {
        "points": points,
        "rebalances": [rebalances[number] for number in sorted(rebalances, reverse=True)],
        "events": [each for each in snapshot.events(page.watcher(), name) if since <= each["at"] <= until],
    }


@shows(
    "/api/audit", "The audit log: changes, and reads of masked records; for operators", responses.ChangesJson, 403, 404
)
async def audit(page: PageHandler) -> Any:
    """Returns the audit log, newest first. Only for operators, because it shows names of users."""
    if not page.user.operates:
        raise Refused(403, "only operators may read the audit log")
    archive, live = page.site.archive, page.watcher().log.events
    kept = [] if archive is None else [await archive.read(archive.events, 0.0, 1000, kind) for kind in AUDITED]
    events = {(event.at, event.text): event for event in chain(*kept, live) if event.kind in AUDITED}
    return {"changes": [event.to_json() for _, event in sorted(events.items(), reverse=True)]}


@shows("/api/deadletters", "Topics that may have dead letters; for operators", responses.LetterTopicsJson, 401, 403)
async def letter_topics(page: PageHandler) -> Any:
    return {"topics": await page.letters().candidates()}


@shows("/api/openapi.json", "This description", None)
async def description(page: PageHandler) -> Any:
    return describe(operations())


@route(RECORDS, "Records, decoded and masked", responses.RecordsJson, *READING, query=RecordsQuery)
@route(
    f"{RECORDS}.jsonl",
    "Records as JSON lines, with complete keys and values",
    LINES,
    *READING,
    query=RecordsQuery,
    what="lines",
)
class Records(PageHandler):
    """Sends records of a topic, decoded and masked: as JSON, or as JSON lines if `what` is "lines"."""

    reading = 0

    async def get(self, topic: str) -> None:
        page = self.site.records
        if page is None:
            raise Refused(404, "this server shows no records; start it with --records operators or viewers")
        self._check_role(page)
        if Records.reading >= AT_ONCE:
            raise Refused(503, f"{AT_ONCE} reads of records are in progress", retriable=True)
        Records.reading += 1
        try:
            query = self.query(RecordsQuery)
            view = await page.viewer.view(query.of(topic), query.key_format, query.value_format)
        finally:
            Records.reading -= 1
        if page.viewer.masks:  # masks mark sensitive data
            request = {name: self.get_query_argument(name) for name in self.request.query_arguments}
            self.note("read", "records", None, {"topic": topic, **request}, f"{len(view.records)} records")
        if self.what == "lines":
            self.set_header("Content-Type", f"{LINES}; charset=utf-8")
            self.set_header("Content-Disposition", 'attachment; filename="records.jsonl"')
            self.finish("".join(view.lines()))
        else:
            self.respond(view.to_json(TEXT))

    def _check_role(self, page: RecordsPage) -> None:
        guard = self.site.guard
        if page.allows(self.user):
            return
        if guard.login is not None:
            raise Refused(403, f"user {shown(self.user.name)} is not an operator, and only operators may read records")
        if guard.token is None:
            raise Refused(
                403, "only operators may read records; start the server with a token, or with --records viewers"
            )
        self.set_header("WWW-Authenticate", "Bearer")
        raise Refused(401, "the token is missing or wrong; only operators may read records")


@route("/metrics", "Metrics for Prometheus", "text/plain")
class Metrics(PageHandler):
    def check_user(self) -> None:
        """Requires no login, because Prometheus cannot log in."""

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.site.registry))


@route(
    "/health/live", "Liveness: 503 if a restart of the process would help", responses.HealthJson, *NOT_WELL, what="live"
)
@route("/health/ready", "Readiness: 503 if it does not do its work", responses.HealthJson, *NOT_WELL, what="ready")
class HealthOf(PageHandler):
    def prepare(self) -> None:
        """Requires no login and no known host name, because load balancers use any name."""

    def get(self) -> None:
        problems = getattr(self.site.health, self.what)()
        self.set_status(503 if problems else 200)
        visible = problems if self.knows_host() and self.same_origin() else []
        self.respond({"ok": not problems, "problems": visible})

    head = get
    """Some load balancers and monitors send HEAD."""


class Change(PageHandler):
    """Base class of requests that only an operator may send."""

    async def do(self, what: str, about: str, group: str, act: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        """Calls `act` with the request body, sends the result, and adds the change to the audit log."""
        given = self._body()
        address = self.request.remote_ip
        log.warning("%s of %s requested by %s at %s: %s", what, shown(about), self.user.name, address, shown(given))
        try:
            done = await act(given)
        except AllocatorError as error:
            if not isinstance(error, ConfigError):
                self._note(group, what, given, f"refused: {error}")
            raise
        if done.get("executed", True):  # a preview changes nothing
            self._note(group, what, given, "done")
        self.respond(done)

    def _note(self, group: str, what: str, given: dict[str, Any], outcome: str) -> None:
        deployed = what == "note" and outcome == "done"
        kind, text = ("deployment", str(given.get("text", ""))) if deployed else ("command", what)
        self.note(kind, text, group, given, outcome)
        self.watcher().changed()

    def _body(self) -> dict[str, Any]:
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip()
        # a form of another page cannot send this content type; with a login by proxy, no other check stops the form
        if kind != "application/json" and (self.request.body or self.site.guard.login is not None):
            raise Refused(415, "the body must be application/json")
        try:
            given = parse_json(self.request.body or b"{}")
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise Refused(400, "the body must be an object")
        return given


class Act(Change):
    async def post(self, name: str, what: str) -> None:
        self.check_operator()
        action = self.site.actions.get(what)
        if action is None:
            raise Refused(404, f"{shown(what)} is not a known change; known: {', '.join(sorted(self.site.actions))}")
        async with self.watching():
            await self.group(name)
            await self.do(what, name, name, lambda given: action(name, given, self.user.name))


class LettersOfTopic(Change):
    """Lists, shows and settles the dead letters of one topic."""

    async def post(self, topic: str, what: str) -> None:
        letters = self.letters()
        if what not in LETTER_POSTS:
            raise Refused(404, f"{shown(what)} is not a known change; known: {', '.join(LETTER_POSTS)}")
        name = self.user.name
        await self.do(f"deadletters/{what}", topic, "", lambda given: letters.act(what, topic, given, name))
        if what == "show" and letters.viewer.masks:
            self.note("read", "dead letter", None, {"topic": topic}, "1 letter")


@route("/api/events", EVENTS, "text/event-stream", 404, 503, query=EventsQuery)
class Events(PageHandler):
    """Sends the whole state and then its changes as server-sent events."""

    viewers = 0

    async def get(self) -> None:
        watcher = self.watcher()
        if Events.viewers >= self.site.limits.viewers:
            raise Refused(503, f"{self.site.limits.viewers} pages are open already", retriable=True)
        name = self.get_query_argument("group", None)
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        self.write("retry: 2000\n\n")
        self._event("clock", snapshot.encode(self._hello()))
        self._news = watcher.subscribe()
        Events.viewers += 1
        try:
            async with self.site.viewing():
                await self._push(watcher, name)
        except iostream.StreamClosedError:
            pass  # the browser closed the stream
        except asyncio.TimeoutError:
            self.hang_up()  # the browser does not read the stream
        finally:
            Events.viewers -= 1
            watcher.unsubscribe(self._news)

    def _hello(self) -> dict[str, Any]:
        site = self.site
        letters = [] if site.letters is None else ["deadletters"]
        return {
            "now": round(time.time(), 3),
            "user": self.user.name,
            "role": self.user.role,
            "needs_token": site.guard.login is None,
            "actions": [] if site.read_only(self.user) else sorted([*site.actions, *letters]),
            "functions": known_names(),
            "commands": {name: kind.summary for name, kind in KINDS.items()},
            "history": site.archive is not None,
            "records": "no" if site.records is None else site.records.offer(self.user, site.guard),
            "masked": [] if site.records is None else site.records.viewer.masks.parts,
        }

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
            parts = {"overview": snapshot.encode(snapshot.overview(watcher, self.site.read_only(self.user)))}
            group = watcher.groups.get(name) if name is not None else None
            if group is not None and group.seen:
                parts.update((part, snapshot.encoded(group, part)) for part in snapshot.PARTS)
                parts["events"] = snapshot.encode(snapshot.events(watcher, group.name))
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


def operations() -> Iterator[Operation]:
    """Yields all operations of the API."""
    yield from (operation for operation, _, _ in ROUTES)
    for path, posts in ((GROUP, GROUP_POSTS), ("/api/deadletters/{topic}", LETTER_POSTS)):
        for name, post in posts.items():
            yield Operation(f"{path}/{name}", post.summary, post.response, CHANGE, body=post.body)


def application(site: Site) -> web.Application:
    """Returns the tornado application. The name of a group is one segment of the path."""
    files = [path.name for path in sorted(STATIC.iterdir()) if path.suffix[1:] in TYPES]
    routes = [
        *((_pattern(operation.path), handler, what) for operation, handler, what in ROUTES),
        (_pattern(GROUP) + "/(.+)", Act, ""),
        ("/api/deadletters/([^/]+)/([a-z]+)", LettersOfTopic, ""),
        ("/", Page, "index.html"),
        *((f"/{name}", Page, name) for name in files),
    ]
    return web.Application(
        [(pattern, handler, {"site": site, "what": what}) for pattern, handler, what in routes],
        default_handler_class=Nowhere,
        default_handler_args={"site": site},
        log_function=_quiet,
    )


def _pattern(path: str) -> str:
    """Returns the regular expression of a path with parameters."""
    return re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\.").replace("{id}", "([0-9]{1,17})"))


class Nowhere(PageHandler):
    def prepare(self) -> None:
        super().prepare()
        raise Refused(404, "this path does not exist; /api/openapi.json lists the paths")


@contextlib.asynccontextmanager
async def serve(site: Site, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serves during the block, and yields the port (0: the system chooses it). Raises PortTaken."""
    try:
        sockets = netutil.bind_sockets(port, host)
    except (OSError, socket.gaierror) as error:
        where = address_text(host, port)
        raise PortTaken(f"cannot listen on {where}: {error.strerror or error}; choose another address") from error
    server = Server(application(site), site.limits, site.tls)
    server.listen_on(sockets)
    try:
        yield sockets[0].getsockname()[1]
    finally:
        await server.close()


def _quiet(handler: web.RequestHandler) -> None:
    """Logs no requests: a proxy writes the access log, and `Change` logs changes."""
