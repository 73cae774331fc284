"""Finds the broker that coordinates a group, and sends requests to it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from allocator.core.client import protocol
from allocator.core.client.client import KafkaClient
from allocator.core.client.configs import describe_configs
from allocator.core.client.errors import ErrorCode, for_code
from allocator.core.client.offset_commit import OffsetCommit
from allocator.core.errors import AllocatorError, BrokerError
from allocator.core.telemetry.measures import Measure, Measures

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

# seconds for one request. Higher: a hung broker is replaced later; lower: a slow broker gets the request twice
PATIENCE_S = 10.0

METADATA_BYTES = 4096  # Kafka's default limit of a commit's metadata
SHORTEST_RETENTION_S = 24 * 3600.0  # Kafka's default up to 1.1; from 2.0 on it is seven days

HEARTBEATS = {protocol.HEARTBEAT, 68}  # 68: ConsumerGroupHeartbeat (KIP-848)
MEASURED: dict[int, Callable[[Measures], Measure]] = {
    protocol.JOIN_GROUP: lambda measures: measures.join,
    protocol.SYNC_GROUP: lambda measures: measures.sync,
    **dict.fromkeys(HEARTBEATS, lambda measures: measures.heartbeat),
    OffsetCommit.API_KEY: lambda measures: measures.commit,
}


class Coordinator:
    """The broker that coordinates `group`. `for_transactions`: `group` is a transactional id.

    The first request finds the coordinator. After it moved or failed, the next request finds it again. Before 0.8.2
    there are no coordinators: any broker writes offsets to ZooKeeper, and `send` uses the least busy broker.
    """

    def __init__(
        self, client: KafkaClient, group: str, retry_backoff_s: float, *, for_transactions: bool = False
    ) -> None:
        self._client = client
        self._group = group
        self._key_type = int(for_transactions)
        self._what = f"{'transaction' if for_transactions else 'group'} {group!r}"
        self._retry_backoff_s = retry_backoff_s
        self.node: int | None = None
        """Node id; None while it is unknown, and always before 0.8.2."""
        self._finding: asyncio.Lock | None = None
        self.failure: BrokerError | None = None
        """The error of the last lookup; None if it succeeded."""
        # (start of the first, end of the last) of the last requests, while none of them had a response
        self._silent: tuple[float, float] | None = None

    async def send(
        self, request: Any, deadline: float, patience_s: float | None = None, *, lookup_s: float = math.inf
    ) -> Any:
        """Sends `request` and returns the response. Waits at most `patience_s` after sending, and `lookup_s` before,
        until the coordinator is found.

        Raises `BrokerError`. After an error, the next request finds the coordinator again.
        """
        asked = time.monotonic()
        try:
            response = await self._send(request, deadline, patience_s, min(deadline, asked + lookup_s))
        except BrokerError as error:
            if error.retriable:
                self._silent = asked if self._silent is None else self._silent[0], time.monotonic()
            raise
        self._silent = None
        return response

    @property
    def silent_s(self) -> float:
        """For how long requests have had no response. 0 if none was sent lately, since the coordinator may be back."""
        if self._silent is None or time.monotonic() - self._silent[1] > PATIENCE_S:
            return 0.0
        return self._silent[1] - self._silent[0]

    async def _send(self, request: Any, deadline: float, patience_s: float | None, find_until: float) -> Any:
        node = await self.find(find_until)
        measures = self._client.measures
        started = time.monotonic()
        if request.API_KEY in HEARTBEATS:
            measures.last_heartbeat = started
        try:
            if node is None:
                response = await self._client.send_any(request, self._timeout(deadline))
            else:
                response = await self._client.send(node, request, self._timeout(deadline, patience_s))
        except BrokerError:
            self.forget(node)
            raise
        if request.API_KEY in MEASURED:
            MEASURED[request.API_KEY](measures).add(time.monotonic() - started)
        return response

    @property
    def patience_s(self) -> float:
        """Seconds that a response may take."""
        return min(self._client.request_timeout_s, PATIENCE_S)

    async def probe(self, deadline: float) -> None:
        """Sends a request to which every version of Kafka responds at once. Raises `BrokerError`."""
        await self.send(self._find_request(), deadline)

    def forget(self, node: int | None = None) -> None:
        """Makes the next request find the coordinator again.

        If `node` is given, forgets the coordinator only if it is this node: another task may have found a new one.
        """
        if node is None or node == self.node:
            self.node = None

    def _timeout(self, deadline: float, patience_s: float | None = None) -> float:
        if patience_s is None:
            patience_s = self.patience_s
        return max(0.1, min(patience_s, deadline - time.monotonic()))

    async def retention_s(self) -> float | None:
        """Returns the seconds after which Kafka deletes an offset that was not committed again.

        They count from the last commit if Kafka knows no members of the group, and before 2.1 (KIP-211) in all groups.
        Returns `SHORTEST_RETENTION_S` if the setting cannot be read: before 0.11, or without the right DESCRIBE_CONFIGS
        on the cluster. Returns None if a temporary failure prevents reading it.
        """
        return await self._setting(
            "offsets.retention.minutes", lambda text: float(text) * 60, SHORTEST_RETENTION_S, None
        )

    async def metadata_bytes(self) -> int:
        """Returns the limit of a commit's metadata in bytes: the coordinator's setting, or else Kafka's default."""
        return await self._setting("offset.metadata.max.bytes", int, METADATA_BYTES, METADATA_BYTES)

    async def _setting(self, name: str, read: Callable[[str], T], never: T, not_now: U) -> T | U:
        """Reads a setting of the coordinator. Returns `never` if the read cannot succeed, `not_now` if a retry may
        succeed."""
        node = self.node
        if self._client.api_version(protocol.DescribeConfigsRequest) is None:
            return never
        if node is None:
            return not_now
        try:
            found = await describe_configs(self._client, "broker", [str(node)], [name], node=node, timeout_s=PATIENCE_S)
            return read(found[str(node)][name])
        except (AllocatorError, KeyError, ValueError) as error:
            log.debug("%s: cannot read %s of the coordinator: %s", self._group, name, error)
            return not_now if getattr(error, "retriable", False) else never

    async def find(self, deadline: float) -> int | None:
        """Returns the node id, after a lookup if it is unknown; None before 0.8.2.

        Raises `BrokerError` if the lookup is refused or the deadline passes.
        """
        if self.node is not None:
            return self.node
        if self._client.api_version(protocol.FindCoordinatorRequest) is None:
            return None
        if self._finding is None:
            self._finding = asyncio.Lock()
        async with self._finding:
            while self.node is None:
                try:
                    self.node = await self._find_once(deadline)
                except BrokerError as exc:
                    self.failure = exc
                    if not exc.retriable or time.monotonic() >= deadline:
                        raise
                    log.debug("%s: no coordinator yet: %s", self._what, exc)
                    await asyncio.sleep(self._retry_backoff_s)
            return self.node

    async def _find_once(self, deadline: float) -> int:
        response = await self._client.send_any(self._find_request(), self._timeout(deadline))
        if response.error_code:
            error = for_code(response.error_code, f"{self._what}: cannot find its coordinator")
            # 0.8.2 sends this code while it creates its offsets topic
            error.retriable = error.retriable or response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            raise error
        self.failure = None
        log.info("%s: coordinator is broker %s", self._what, response.node_id)
        self._client.note_broker(response.node_id, response.host, response.port)
        return int(response.node_id)

    def _find_request(self) -> Any:
        # v0 has no `key_type`, and finds groups only. From v4 on, one request can name many groups
        return protocol.FindCoordinatorRequest(key=self._group, key_type=self._key_type, max_version=3)
