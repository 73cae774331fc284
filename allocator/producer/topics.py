"""Creates topics (CreateTopics, Kafka 0.10.1 on) and adds partitions (CreatePartitions, 1.0 on)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest

from allocator.core.client import ErrorCode, KafkaClient, for_code
from allocator.core.text import plain
from allocator.errors import BrokerError

log = logging.getLogger(__name__)

SHOWN = 300  # characters of a broker's message


async def create_topic(
    client: KafkaClient, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """Creates a topic if it does not exist, and waits for its leaders. It gets at most as many replicas as there are
    brokers. Raises BrokerError."""
    if replication > len(client.brokers):
        log.warning(
            "topic %r gets %d replicas, not %d: no more brokers are there", topic, len(client.brokers), replication
        )
    kinds = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            kinds(
                name=topic,
                num_partitions=partitions,
                replication_factor=min(replication, max(1, len(client.brokers))),
                assignments=[],
                configs=[kinds.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
            )
        ],
        timeout_ms=15_000,
        validate_only=False,
        max_version=7,
    )
    await _to_controller(client, request, f"topic {topic!r}", fine=(0, ErrorCode.TOPIC_ALREADY_EXISTS))
    await _await_leaders(client, topic, partitions)


async def add_partitions(client: KafkaClient, topic: str, partitions: int) -> None:
    """Grows a topic to `partitions` partitions in total, if it has fewer. Raises BrokerError."""
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[kind(name=topic, count=partitions, assignments=None)],
        timeout_ms=15_000,
        validate_only=False,
        max_version=3,
    )
    # INVALID_PARTITIONS: another process may have added the partitions first; `_await_leaders` verifies that
    await _to_controller(
        client, request, f"topic {topic!r} with {partitions} partitions", fine=(0, ErrorCode.INVALID_PARTITIONS)
    )
    await _await_leaders(client, topic, partitions)


async def _to_controller(client: KafkaClient, request: Any, what: str, fine: tuple[int, ...]) -> None:
    for attempt in range(10):
        await client.refresh()
        controller = client.metadata.controller
        if controller is not None and any(broker.node_id == controller for broker in client.brokers):
            response = await client.send(controller, request)
        else:
            response = await client.send_any(request)
        (result,) = response.topics if hasattr(response, "topics") else response.results
        if result.error_code in fine:
            return
        if result.error_code != ErrorCode.NOT_CONTROLLER or attempt == 9:
            raise result_error(result, what)
        await asyncio.sleep(client.retry_backoff_s)


def result_error(result: Any, what: str) -> BrokerError:
    """Returns the error for a part of a response that has a code and, from some version on, a message."""
    error, message = for_code(result.error_code, what), getattr(result, "error_message", None)
    text = f" ({plain(message[:SHOWN])})" if message else ""
    return BrokerError(f"{error}{text}", code=error.code, retriable=error.retriable)


async def _await_leaders(client: KafkaClient, topic: str, partitions: int) -> None:
    for _ in range(200):
        await client.refresh([topic])
        known = client.metadata.topics.get(topic)
        if known is not None and sum(each.leader is not None for each in known.partitions.values()) >= partitions:
            return
        await asyncio.sleep(client.retry_backoff_s)
    raise BrokerError(f"topic {topic!r} was created, but its partitions have no leaders yet", retriable=True)
