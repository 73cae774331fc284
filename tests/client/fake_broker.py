"""A broker with scripted responses, for errors that a real broker returns rarely, late or never."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

REQUESTS = {
    r.API_KEY: r
    for r in (
        ApiVersionsRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        SaslAuthenticateRequest,
        SaslHandshakeRequest,
        SyncGroupRequest,
    )
}
# API key -> the oldest and the newest version offered
MODERN = {
    1: (0, 12),
    2: (0, 7),
    3: (0, 12),
    8: (0, 8),
    9: (0, 7),
    10: (0, 3),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    17: (0, 1),
    18: (0, 3),
    36: (0, 2),
}

NO_VERSION = 0x7FFF
HANG_UP = object()
SILENT = object()

Handler = Callable[[Any], Any]


def find(group: str = "g") -> Any:
    """Returns a request that any broker responds to."""
    return FindCoordinatorRequest(key=group, max_version=3)


def sasl_handlers(
    mechanism: str, authenticate: Callable[[Any], Mapping[str, Any]] = lambda request: {}
) -> dict[int, Handler]:
    """Returns handlers for one mechanism. `authenticate` returns the fields that it sets in a response."""

    def shake(request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=[mechanism], version=request.API_VERSION)

    def respond(request: Any) -> Any:
        fields = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 0}
        return SaslAuthenticateResponse(version=request.API_VERSION, **{**fields, **authenticate(request)})

    return {17: shake, 36: respond}


class FakeBroker:
    """Listens on 127.0.0.1. `handlers` maps an API key to a function of the request that returns the response,
    an awaitable of it, HANG_UP or SILENT. ApiVersions, Metadata, FindCoordinator and ListGroups need none.

    `versions` None: a broker of 0.8, which hangs up on ApiVersions and ignores the version of ListOffsets.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        versions: Mapping[int, tuple[int, int]] | None = MODERN,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.handlers: dict[int, Handler] = {
            18: self._api_versions,
            3: self._metadata,
            10: self._find_coordinator,
            16: self._list_groups,
            **(handlers or {}),
        }
        self.versions = versions
        self.seen: list[Any] = []
        self.connections = 0
        self.port = port
        self.host = "127.0.0.1"  # the host in metadata
        self.tls = tls
        self.topics: dict[str, list[int]] = {}  # leaders of the partitions
        self.lists_itself = True
        self.delay_s = 0.0  # before each response, and before a connection is closed

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self._clients: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    data = await reader.readexactly(size)
                    key, version, correlation = struct.unpack_from(">hhi", data)
                    await asyncio.sleep(self.delay_s)
                    if version == NO_VERSION:
                        if self.versions is not None:
                            return
                        writer.write(struct.pack(">iii", 8, correlation, 0))
                        continue
                    request = REQUESTS[key].decode(data, version=version, header=True) if key in REQUESTS else None
                    if request is not None:
                        self.seen.append(request)
                    handler = self.handlers.get(key)
                    response = HANG_UP if handler is None else handler(request)
                    if asyncio.iscoroutine(response):
                        response = await response
                    if response is HANG_UP:
                        return
                    if response is SILENT:
                        continue
                    response.with_header(correlation_id=correlation)
                    writer.write(bytes(response.encode(header=True, framed=True)))
        finally:
            self._clients.discard(task)
            writer.close()

    def count(self, key: int) -> int:
        return sum(key == request.API_KEY for request in self.seen)

    def hold(self, key: int) -> asyncio.Event:
        """Returns an event. Responses with this key wait until it is set."""
        handler, go_on = self.handlers[key], asyncio.Event()

        async def late(request: Any) -> Any:
            await go_on.wait()
            return handler(request)

        self.handlers[key] = late
        return go_on

    @contextlib.contextmanager
    def responding(self, key: int, response: Any) -> Iterator[None]:
        """Responds with `response`, HANG_UP or SILENT to requests with this key during the block."""
        handler, self.handlers[key] = self.handlers[key], lambda _: response
        yield
        self.handlers[key] = handler

    def _api_versions(self, request: Any) -> Any:
        if self.versions is None:
            return HANG_UP
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=k, min_version=low, max_version=high)
            for k, (low, high) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0, version=request.API_VERSION)

    def _list_groups(self, request: Any) -> Any:
        # 0.8 lacks this request
        return HANG_UP if self.versions is None else ListGroupsResponse(error_code=0, groups=[], version=0)

    def _metadata(self, request: Any) -> Any:
        brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host=self.host, port=self.port, rack=None)]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=brokers if self.lists_itself else [],
            cluster_id=None,
            controller_id=1,
            topics=[self.topic_metadata(name) for name in self._requested(request)],
            version=request.API_VERSION,
        )

    def _requested(self, request: Any) -> list[str]:
        every = request.topics is None or (request.API_VERSION == 0 and not request.topics)
        return list(self.topics) if every else [t.name for t in request.topics]

    def topic_metadata(self, name: str) -> Any:
        leaders = self.topics.get(name)
        return MetadataResponse.MetadataResponseTopic(
            error_code=3 if leaders is None else 0,
            name=name,
            topic_id=None,
            is_internal=name.startswith("__"),
            partitions=[
                MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                    error_code=0,
                    partition_index=n,
                    leader_id=leader,
                    leader_epoch=0,
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                    offline_replicas=[],
                )
                for n, leader in enumerate(leaders or ())
            ],
        )

    def _find_coordinator(self, request: Any) -> Any:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=0,
            error_message=None,
            node_id=1,
            host=self.host,
            port=self.port,
            version=request.API_VERSION,
        )
