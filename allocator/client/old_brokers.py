"""Detects the version of a broker before 0.10, which does not answer ApiVersions.

If 0.8 does not know a request, it closes the connection; 0.9 does not respond. A broker that stops at that moment
behaves in the same way, and so does a proxy without a broker. So a refusal counts only between two responses: the
broker responded before and after it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from allocator.client.errors import describe

__all__ = ["SILENCE_S", "old_version"]

log = logging.getLogger(__name__)

# more: connecting to 0.9 takes longer; less: a slow newer broker is probed without need
SILENCE_S: Final = 0.5
GROUP: Final = "allocator-version-probe"


def _probes() -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Probes from the newest version down: the first probe that a broker answers shows its version."""
    return (
        ((0, 9), ListGroupsRequest[0]()),
        # makes 0.8.2 create its offsets topic, as the first consumer does
        ((0, 8, 2), FindCoordinatorRequest[0](GROUP)),
        ((0, 8, 1), OffsetFetchRequest[0](GROUP, [])),
    )


async def old_version(where: str, ask: Callable[[Any, float], Awaitable[Any]], timeout_s: float) -> tuple[int, ...]:
    """The version of a broker that did not answer ApiVersions: (0, 9), (0, 8, 2), (0, 8, 1) or (0, 8, 0).

    `where` is its address. `ask(request, timeout_s)` sends a request first thing on a new connection. Raises an error
    of kafka-python's if the version cannot be found: the broker is down, starting, or no Kafka broker.
    """
    closed = ""  # how the broker ended the last connection; only TLS shows this

    async def answers(request: Any) -> bool:
        nonlocal closed
        try:
            await ask(request, timeout_s)
        except kafka_errors.CorrelationIdError:
            return True  # 0.8.2 answers the first FindCoordinator with correlation id 0
        except kafka_errors.KafkaConnectionError as error:
            closed = describe(error) if "SSL" in str(error) else ""
            return False
        return True

    async def alive() -> None:
        # every broker before 4.0 answers this request; it is not sent to newer ones
        if not await answers(MetadataRequest[0]([])):
            raise kafka_errors.KafkaConnectionError(closed or "it closes connections")

    await alive()
    try:
        await ask(ApiVersionsRequest[0](), SILENCE_S)
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
