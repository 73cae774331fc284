"""The broker that coordinates a group: finding it, sending requests to it, finding it again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from allocator.core.client.client import KafkaClient
from allocator.core.client.configs import describe_configs
from allocator.core.client.errors import ErrorCode, for_code
from allocator.core.client.offset_commit import OffsetCommit
from allocator.core.errors import AllocatorError, BrokerError
from allocator.core.telemetry.measures import Measure, Measures

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

# seconds for one request. more: a hung broker is replaced later; less: a slow one gets the request twice
PATIENCE_S = 10.0

METADATA_BYTES = 4096  # Kafka's default
SHORTEST_RETENTION_S = 24 * 3600.0  # Kafka's default up to 1.1; from 2.0 on it is seven days

HEARTBEATS = {HeartbeatRequest.API_KEY, 68}  # 68: ConsumerGroupHeartbeat (KIP-848)
MEASURED: dict[int, Callable[[Measures], Measure]] = {
    JoinGroupRequest.API_KEY: lambda measures: measures.join,
    SyncGroupRequest.API_KEY: lambda measures: measures.sync,
    **dict.fromkeys(HEARTBEATS, lambda measures: measures.heartbeat),
    OffsetCommit.API_KEY: lambda measures: measures.commit,
}


class Coordinator:
    """The coordinator of `group`, or of the transactional id of that name: found when needed, forgotten when it moved
    or died.

    Before 0.8.2 there is none: any broker writes the offsets to ZooKeeper (`ask` sends to the least busy one).
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
        """Node id, if it is known."""
        self._finding: asyncio.Lock | None = None
        self.failure: BrokerError | None = None
        """Why the last lookup failed; None after a lookup that succeeded."""

    @property
    def measures(self) -> Measures:
        """Of the consumer that asks."""
        return self._client.measures

    async def ask(self, request: Any, deadline: float, patience_s: float | None = None) -> Any:
        """The coordinator's response to `request`, within `patience_s` of sending it.

        Raises `BrokerError`; then the next request looks the coordinator up again.
        """
        node = await self.find(deadline)
        measures = self._client.measures
        started = time.monotonic()
        if request.API_KEY in HEARTBEATS:
            measures.last_heartbeat = started
        try:
            if node is None:
                answer = await self._client.send_any(request, self._timeout(deadline))
            else:
                answer = await self._client.send(node, request, self._timeout(deadline, patience_s))
        except BrokerError:
            self.forget(node)
            raise
        if request.API_KEY in MEASURED:
            MEASURED[request.API_KEY](measures).add(time.monotonic() - started)
        return answer

    @property
    def patience_s(self) -> float:
        """How long a response may take."""
        return min(self._client.request_timeout_s, PATIENCE_S)

    async def probe(self, deadline: float) -> None:
        """Sends a request that a coordinator of any version answers at once. Raises `BrokerError`."""
        await self.ask(self._question(), deadline)

    async def settled(self, request_class: Any) -> None:
        """Returns once no request of this kind is under way, whichever task sent it."""
        await self._client.settled(request_class)

    def forget(self, node: int | None = None) -> None:
        """Find it again before the next request, unless another one than `node` was found in the meantime."""
        if node is None or node == self.node:
            self.node = None

    def _timeout(self, deadline: float, patience_s: float | None = None) -> float:
        if patience_s is None:
            patience_s = self.patience_s
        return max(0.1, min(patience_s, deadline - time.monotonic()))

    async def retention_s(self) -> float | None:
        """Seconds that the coordinator keeps a committed offset which is not committed again.

        It counts from the last commit where Kafka knows no members of the group, and before 2.1 (KIP-211) in every
        group. Returns `SHORTEST_RETENTION_S` where the coordinator will never tell it (before 0.11, or without the
        right to DESCRIBE_CONFIGS of the cluster), and None where it does not tell it now.
        """
        return await self._setting(
            "offsets.retention.minutes", lambda text: float(text) * 60, SHORTEST_RETENTION_S, None
        )

    async def metadata_bytes(self) -> int:
        """The largest metadata of a commit, in bytes; Kafka's default where the coordinator does not tell its limit."""
        return await self._setting("offset.metadata.max.bytes", int, METADATA_BYTES, METADATA_BYTES)

    async def _setting(self, name: str, read: Callable[[str], T], never: T, not_now: U) -> T | U:
        node = self.node
        if self._client.api_version(DescribeConfigsRequest) is None:
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
        """Node id, looked up if unknown; None before 0.8.2. Raises `BrokerError` when refused or time is up."""
        if self.node is not None:
            return self.node
        if self._client.api_version(FindCoordinatorRequest) is None:
            return None
        if self._finding is None:
            self._finding = asyncio.Lock()
        async with self._finding:
            while self.node is None:
                try:
                    self.node = await self._ask_once(deadline)
                except BrokerError as exc:
                    self.failure = exc
                    if not exc.retriable or time.monotonic() >= deadline:
                        raise
                    log.debug("%s: no coordinator yet: %s", self._what, exc)
                    await asyncio.sleep(self._retry_backoff_s)
            return self.node

    async def _ask_once(self, deadline: float) -> int:
        response = await self._client.send_any(self._question(), self._timeout(deadline))
        if response.error_code:
            error = for_code(response.error_code, f"{self._what}: cannot find its coordinator")
            # 0.8.2, while it creates its offsets topic
            error.retriable = error.retriable or response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            raise error
        self.failure = None
        log.info("%s: coordinator is broker %s", self._what, response.node_id)
        self._client.note_broker(response.node_id, response.host, response.port)
        return int(response.node_id)

    def _question(self) -> Any:
        # v0 has no `key_type`, and finds groups only. From v4 on, one request can name many groups
        return FindCoordinatorRequest(key=self._group, key_type=self._key_type, max_version=3)
