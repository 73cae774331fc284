"""Reads the configuration of a topic, a broker or a group: DescribeConfigs, from Kafka 0.11 on."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.admin import DescribeConfigsRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import for_code

__all__ = ["BROKER_RESOURCE", "GROUP_RESOURCE", "TOPIC_RESOURCE", "describe_configs"]

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
KINDS = {TOPIC_RESOURCE: "topic", BROKER_RESOURCE: "broker", GROUP_RESOURCE: "group"}


async def describe_configs(
    client: KafkaClient,
    kind: int,
    name: str,
    keys: Sequence[str],
    *,
    node: int | None = None,
    timeout_s: float | None = None,
) -> dict[str, str]:
    """The set values of `keys`, from broker `node`, or from any broker without a node.

    Raises BrokerError, also if the user lacks the right DESCRIBE_CONFIGS on the cluster, the topic or the group.
    """
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys)
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
    if node is None:
        response = await client.send_any(request, timeout_s)
    else:
        response = await client.send(node, request, timeout_s)
    (result,) = response.results
    if result.error_code:
        raise for_code(result.error_code, f"configuration of {KINDS[kind]} {name}")
    return {entry.name: entry.value for entry in result.configs if entry.value is not None and entry.name in keys}
