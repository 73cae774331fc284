"""A scripted coordinator of the KIP-848 protocol with one member."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from allocator.protocols.kip848.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    IdPartition,
    IdPartitions,
)
from tests.client import fake_broker
from tests.client.fake_broker import HANG_UP, MODERN, SILENT, FakeBroker

HEARTBEAT, CONFIGS = 68, 32
fake_broker.REQUESTS[HEARTBEAT] = ConsumerGroupHeartbeatRequest
fake_broker.REQUESTS[CONFIGS] = DescribeConfigsRequest

FAST = {"retry_backoff_s": 0.001, "failure_pause_s": 0.02}


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def ids(*numbers: int, topic: str = "t") -> IdPartitions:
    return frozenset(IdPartition(topic_id(topic), n) for n in numbers)


class Kip848Broker(FakeBroker):
    """`target` is the member's assignment. As from a real broker, the member gets it when it joins, when it reports
    everything, and when the target changed. `codes` are those of the next responses, HANG_UP and SILENT among them;
    the next `lost` responses are computed and never sent. `session_s` None: no client may read it."""

    def __init__(self, newest: int = 1) -> None:
        versions = {**MODERN, 8: (2, 9), 9: (1, 9), HEARTBEAT: (0, newest), CONFIGS: (1, 4)}
        super().__init__({HEARTBEAT: self.heartbeat, CONFIGS: self.configs}, versions=versions)
        self.topics = {"t": [1] * 4}
        self.ids: dict[str, uuid.UUID] = {}
        self.target = ids(0, 1, 2)
        self.sent: IdPartitions | None = None
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
        metadata = super().topic_metadata(name)
        metadata.topic_id = self.ids.get(name, topic_id(name))
        return metadata

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
        resource = result(
            error_code=0 if configs else 30, error_message="", resource_type=32, resource_name="g", configs=configs
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=[resource], version=request.API_VERSION)

    async def heartbeat(self, request: Any) -> Any:
        code = self.codes.pop(0) if self.codes else 0
        if code in (HANG_UP, SILENT):
            return code
        assignment = None
        if request.member_epoch < 0:
            self.sent = None
        elif code == 0:
            joins, full = request.member_epoch == 0, request.rebalance_timeout_ms != -1
            if joins:
                self.epoch += 1
            if joins or self.target != self.sent or (full and self.repeats):
                assignment = self.target
                self.sent = self.target
            if self.lost:
                self.lost -= 1
                self.when_lost()
                return HANG_UP
        return self.response(request, code, assignment)

    def response(self, request: Any, code: int, assignment: IdPartitions | None) -> Any:
        response = ConsumerGroupHeartbeatResponse
        assigned = None
        if assignment is not None:
            by_topic: dict[uuid.UUID, list[int]] = {}
            for each in assignment:
                by_topic.setdefault(each.topic_id, []).append(each.partition)
            assigned = response.Assignment(
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
            assignment=assigned,
            version=request.API_VERSION,
        )


def owned(request: Any) -> IdPartitions | None:
    """The partitions that a heartbeat lists as owned, or None."""
    if request.topic_partitions is None:
        return None
    return frozenset(IdPartition(t.topic_id, n) for t in request.topic_partitions for n in t.partitions)
