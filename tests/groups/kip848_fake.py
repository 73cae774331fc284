"""A scripted coordinator of the KIP-848 protocol with one real member, and a participant that records its calls."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import fake_broker
from fake_broker import HANG_UP, MODERN, SILENT, FakeBroker
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from run_group import RunGroup

from allocator.core.client.client import KafkaClient
from allocator.protocols.kip848.group import Kip848Group
from allocator.protocols.kip848.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    IdPartition,
    IdPartitions,
)
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.testing import wait_until_async

HEARTBEAT, CONFIGS = 68, 32
fake_broker.REQUESTS[HEARTBEAT] = ConsumerGroupHeartbeatRequest
fake_broker.REQUESTS[CONFIGS] = DescribeConfigsRequest

FAST = {"retry_backoff_s": 0.001, "failure_pause_s": 0.02}


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def ids(*numbers: int, topic: str = "t") -> IdPartitions:
    return frozenset(IdPartition(topic_id(topic), n) for n in numbers)


class Kip848Broker(FakeBroker):
    """`given` is what the member is to have; it hears of it as from a real one: when joining, when it says everything,
    and when it changed. `codes` are those of the next answers, HANG_UP and SILENT among them; `lost` answers are
    worked out and never sent. `session_s` None: nobody may ask for it."""

    def __init__(self, newest: int = 1) -> None:
        versions = {**MODERN, 8: (2, 9), 9: (1, 9), HEARTBEAT: (0, newest), CONFIGS: (1, 4)}
        super().__init__({HEARTBEAT: self.heartbeat, CONFIGS: self.configs}, versions=versions)
        self.topics = {"t": [1] * 4}
        self.ids: dict[str, uuid.UUID] = {}
        self.given = ids(0, 1, 2)
        self.told: IdPartitions | None = None
        self.epoch = 0
        self.interval_s = 0.02
        self.session_s: float | None = 30.0
        self.codes: list[Any] = []
        self.lost = 0
        self.when_lost: Callable[[], None] = lambda: None
        self.repeats = True  # the assignment, for a full heartbeat

    @property
    def beats(self) -> list[Any]:
        return [request for request in self.seen if request.API_KEY == HEARTBEAT]

    def topic_metadata(self, name: str) -> Any:
        answer = super().topic_metadata(name)
        answer.topic_id = self.ids.get(name, topic_id(name))
        return answer

    def configs(self, request: Any) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        configs = []
        if self.session_s is not None:
            configs = [
                result.DescribeConfigsResourceResult(
                    name="consumer.session.timeout.ms",
                    value=str(int(self.session_s * 1000)),
                    read_only=False,
                    config_source=5,
                    is_sensitive=False,
                    synonyms=[],
                    config_type=3,
                    documentation=None,
                )
            ]
        answer = result(
            error_code=0 if configs else 30, error_message="", resource_type=32, resource_name="g", configs=configs
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=[answer], version=request.API_VERSION)

    async def heartbeat(self, request: Any) -> Any:
        code = self.codes.pop(0) if self.codes else 0
        if code in (HANG_UP, SILENT):
            return code
        assignment = None
        if request.member_epoch < 0:
            self.told = None
        elif code == 0:
            joins, full = request.member_epoch == 0, request.rebalance_timeout_ms != -1
            if joins:
                self.epoch += 1
            if joins or self.given != self.told or (full and self.repeats):
                assignment = self.given
                self.told = self.given
            if self.lost:
                self.lost -= 1
                self.when_lost()
                return HANG_UP
        return self.answer(request, code, assignment)

    def answer(self, request: Any, code: int, assignment: IdPartitions | None) -> Any:
        response = ConsumerGroupHeartbeatResponse
        given = None
        if assignment is not None:
            by_topic: dict[uuid.UUID, list[int]] = {}
            for each in assignment:
                by_topic.setdefault(each.topic_id, []).append(each.partition)
            given = response.Assignment(
                topic_partitions=[
                    response.Assignment.TopicPartitions(topic_id=topic, partitions=parts)
                    for topic, parts in by_topic.items()
                ]
            )
        return response(
            throttle_time_ms=0,
            error_code=code,
            error_message="because" if code else None,
            member_id=request.member_id,
            member_epoch=0 if code else max(self.epoch, 0) if request.member_epoch >= 0 else request.member_epoch,
            heartbeat_interval_ms=int(self.interval_s * 1000),
            assignment=given,
            version=request.API_VERSION,
        )


def owned(request: Any) -> IdPartitions | None:
    """What a heartbeat says of it; None: nothing."""
    if request.topic_partitions is None:
        return None
    return frozenset(IdPartition(t.topic_id, n) for t in request.topic_partitions for n in t.partitions)


class Recorder:
    """Records its calls; `block` names the call that waits for `go`, `unnamed` partitions that it cannot start yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.proofs: list[bool] = []
        self.errors: list[BaseException] = []
        self.subscription = frozenset({"t"})
        self.held: IdPartitions = frozenset()
        self.unnamed: IdPartitions = frozenset()
        self.block = ""
        self.go = asyncio.Event()

    def topics(self) -> frozenset[str]:
        return self.subscription

    async def take(self, given: IdPartitions) -> bool:
        new = given - self.held - self.unnamed
        if new:
            self.held |= new
            self.calls.append(("take", new))
            await self._wait("take")
        return not given & self.unnamed

    async def release(self, taken: IdPartitions) -> None:
        self.calls.append(("release", taken))
        await self._wait("release")
        self.held -= taken

    async def lost(self, why: str) -> None:
        self.calls.append(("lost", self.held))
        self.held = frozenset()

    def acknowledged(self, started: float, session_timeout_s: float, *, revoking: bool) -> None:
        self.proofs.append(revoking)

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)

    async def _wait(self, call: str) -> None:
        if call == self.block:
            await self.go.wait()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Member(RunGroup):
    """A member of the KIP-848 protocol."""

    recorder: Recorder
    group: Kip848Group

    def __init__(self, broker: Kip848Broker, *, wait: bool = True, **settings: Any) -> None:
        self.broker = broker
        recorder, client = Recorder(), KafkaClient(broker.address)
        group = Kip848Group(client, "g", recorder, Kip848Settings(**{**FAST, **settings}))
        super().__init__(client, recorder, group, wait)

    async def beaten(self, times: int = 2) -> None:
        """Waits for this many more heartbeats."""
        goal = len(self.broker.beats) + times
        await wait_until_async(lambda: len(self.broker.beats) >= goal, 30, "heartbeats", interval_s=0.002)

    async def until(self, condition: Any, what: str) -> None:
        await wait_until_async(condition, 30, lambda: f"{what}: {self.recorder.calls}", interval_s=0.002)
