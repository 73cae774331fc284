"""A web server over real clusters in this process, and an HTTP client."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

import jsonschema
from prometheus_client import CollectorRegistry
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from allocator.cli.access import Access
from allocator.core.aio.tasks import BackgroundTasks
from allocator.testing.waiting import wait_until_async
from allocator.viewer import Reader, Viewer
from allocator.web.actions import GroupWork, actions
from allocator.web.dead_letters import LetterDesk
from allocator.web.guard import Guard
from allocator.web.metrics import GroupCollector
from allocator.web.openapi import describe
from allocator.web.server import Health, Site, operations, serve
from allocator.web.watch import Watcher
from tests.web.written_group import WrittenGroup, parts, written

TOKEN = "0123456789abcdef0123"
BEARER = f"Bearer {TOKEN}"
API = describe(operations())
PATIENCE_S = 60.0


def as_described(path: str, response: Any, method: str = "get", status: str = "200") -> None:
    """Fails unless a response has the schema that the API's description states."""
    content = API["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**content, "components": API["components"]}).validate(response)


class Served:
    """A running server. `url` is its address; `request` sends it HTTP requests."""

    def __init__(self, port: int, watcher: Watcher) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.watcher = watcher

    async def request(self, path: str, body: Any = None, *, method: str | None = None, **headers: str) -> HTTPResponse:
        """`headers` with underscores for dashes; a body makes it a POST of JSON."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            data = body if isinstance(body, (str, bytes)) else json.dumps(body)
            given.setdefault("Content-Type", "application/json")
        request = HTTPRequest(
            self.url + path, method or ("GET" if data is None else "POST"), given, data, allow_nonstandard_methods=True
        )
        return await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)

    async def json(self, path: str, body: Any = None, **headers: str) -> Any:
        return json.loads((await self.request(path, body, **headers)).body)

    async def settled(self, group: str, generation: int) -> None:
        """Waits until the server has seen that generation, and that no rebalance is open."""

        def known() -> bool:
            seen = self.watcher.groups.get(group)
            return seen is not None and seen.report.state.generation >= generation and seen.history.open is None

        await wait_until_async(known, PATIENCE_S, f"generation {generation} of {group}")


@contextlib.asynccontextmanager
async def served(
    zookeeper: str | None,
    brokers: str | None = None,
    token: str | None = TOKEN,
    kafka_groups: Collection[str] = (),
    **more: Any,
) -> AsyncIterator[Served]:
    """`more`: other arguments of `Access`."""
    access = Access(zookeeper, brokers=brokers, **more)
    watcher = Watcher(access, interval_s=0.3, kafka_groups=kafka_groups)
    registry = CollectorRegistry()
    registry.register(GroupCollector(watcher))

    def not_ready() -> list[str]:
        return [*watcher.problems.values()] or ([] if watcher.ready else ["not read yet"])

    site = Site(
        Guard.make(token=token),
        registry,
        Health(ready=not_ready),
        watcher,
        actions=actions(GroupWork(access)),
        letters=None if brokers is None else LetterDesk.of(access, Viewer(Reader(brokers))),
    )
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    async with serve(site) as port:
        tasks.start(watcher.run(), "watcher")
        try:
            yield Served(port, watcher)
        finally:
            await tasks.close()
    assert not failures


@contextlib.asynccontextmanager
async def one_group(
    zookeeper: str, partitions: int = 2, members: int = 1, token: str | None = TOKEN
) -> AsyncIterator[tuple[Served, WrittenGroup, list[str]]]:
    """A served group "g" and the ids of its members, which own equal runs of the partitions of topic t."""
    async with written(zookeeper) as group, served(zookeeper, token=token) as it:
        ids = await group.join(*range(members))
        each = partitions // members
        every = parts(t=partitions)
        await group.own({name: frozenset(every[at * each : (at + 1) * each]) for at, name in enumerate(ids)})
        await it.settled("g", 1)
        yield it, group, ids
