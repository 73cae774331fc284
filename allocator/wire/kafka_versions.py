"""Which version an old broker has.

From 0.10 on a broker answers ApiVersions. On a request that it does not know 0.8 closes the connection and 0.9 falls
silent. But a broker that dies at that moment does the same, and so does a proxy with nothing behind it. So a refusal
counts only between two answers: the broker answered before and after it.
"""

from __future__ import annotations

import logging
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from allocator.wire.kafka_errors import describe
from allocator.wire.kafka_manager import Manager
from allocator.wire.kafka_metadata import Broker

__all__ = ["SILENCE_S", "old_version"]

log = logging.getLogger(__name__)

# more: connecting to 0.9 takes longer; less: a slow newer broker is probed for nothing
SILENCE_S = 0.5

GROUP = "allocator-version-probe"


def _probes() -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Newest first: the first request that a broker answers tells its version."""
    return (
        ((0, 9), ListGroupsRequest[0]()),
        # makes 0.8.2 create its offsets topic, as the first consumer there does
        ((0, 8, 2), FindCoordinatorRequest[0](GROUP)),
        ((0, 8, 1), OffsetFetchRequest[0](GROUP, [])),
    )


async def old_version(manager: Manager, broker: Broker, timeout_s: float) -> tuple[int, ...]:
    """The version of `broker`, which did not answer ApiVersions: (0, 9), (0, 8, 2), (0, 8, 1) or (0, 8, 0).

    Raises an error of kafka-python's if it cannot be told: the broker is down, starting, or no Kafka broker.
    """
    where = f"{broker.host}:{broker.port}"

    closed = ""  # how the broker ended the last connection, where TLS tells

    async def answers(request: Any) -> bool:
        nonlocal closed
        try:
            await manager.ask_blindly(broker, request, timeout_s)
        except kafka_errors.CorrelationIdError:
            return True  # 0.8.2 answers the first FindCoordinator with correlation id 0
        except kafka_errors.KafkaConnectionError as error:
            closed = describe(error) if "SSL" in str(error) else ""
            return False
        return True

    async def alive() -> None:
        # every broker before 4.0 answers this, and newer ones do not get here
        if not await answers(MetadataRequest[0]([])):
            raise kafka_errors.KafkaConnectionError(closed or "it closes connections")

    await alive()
    try:
        await manager.ask_blindly(broker, ApiVersionsRequest[0](), SILENCE_S)
    except (kafka_errors.KafkaConnectionError, kafka_errors.RequestTimedOutError):
        pass
    else:
        raise kafka_errors.KafkaConnectionError(f"{where} closed the connection")
    version: tuple[int, ...] = (0, 8, 0)
    for candidate, request in _probes():
        await alive()
        if await answers(request):
            version = candidate
            break
    await alive()
    log.info("%s is Kafka %s", where, ".".join(map(str, version)))
    return version
