"""How long Kafka keeps a committed offset that is not committed again.

Kafka counts from the last commit where it knows no members of the group, and before 2.1 (KIP-211) for every group.
"""

from __future__ import annotations

import logging
from typing import Final

from kafka.protocol.admin import DescribeConfigsRequest

from allocator.coordinator.find import Coordinator
from allocator.errors import AllocatorError
from allocator.wire.kafka import KafkaClient
from allocator.wire.kafka_errors import for_code

__all__ = ["SHORTEST_DEFAULT_S", "ask_retention"]

log = logging.getLogger(__name__)

BROKER_RESOURCE: Final = 4
SETTING: Final = "offsets.retention.minutes"
SHORTEST_DEFAULT_S: Final = 24 * 3600.0
"""Kafka's default up to 1.1; from 2.0 on it is seven days."""
ANSWERS_WITHIN_S: Final = 10.0


async def ask_retention(client: KafkaClient, coordinator: Coordinator, group: str) -> float | None:
    """Seconds, as the coordinator says; `SHORTEST_DEFAULT_S` where it never will (below 0.11, or without the right).

    None: not at this moment. It needs the right to DESCRIBE_CONFIGS of the cluster.
    """
    node = coordinator.node
    if client.api_version(DescribeConfigsRequest) is None:
        return SHORTEST_DEFAULT_S
    if node is None:
        return None
    try:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=str(node), configuration_keys=[SETTING]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        (result,) = (await client.send(node, request, ANSWERS_WITHIN_S)).results
        if result.error_code:
            raise for_code(result.error_code, f"settings of broker {node}")
        (found,) = [float(config.value) * 60 for config in result.configs if config.name == SETTING]
    except (AllocatorError, ValueError, TypeError) as error:
        log.debug("%s: how long offsets are kept is not to be had: %s", group, error)
        return None if getattr(error, "retriable", False) else SHORTEST_DEFAULT_S
    return found
