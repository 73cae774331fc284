"""Reads the settings of topics, brokers and groups: DescribeConfigs, from Kafka 0.11 on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from kafka.protocol.admin import DescribeConfigsRequest

from allocator.core.client.client import KafkaClient
from allocator.core.client.errors import ErrorCode, for_code

ResourceKind = Literal["topic", "broker", "group"]
RESOURCE_TYPES: Mapping[ResourceKind, int] = {"topic": 2, "broker": 4, "group": 32}
SET_ON_TOPIC = 1  # source of a setting


async def describe_configs(
    client: KafkaClient,
    kind: ResourceKind,
    name: str,
    keys: Sequence[str],
    *,
    node: int | None = None,
    timeout_s: float | None = None,
) -> dict[str, str]:
    """The set values of `keys`, from broker `node`, or from any broker without a node.

    Raises BrokerError, also if the user lacks the right DESCRIBE_CONFIGS on the cluster, the topic or the group.
    """
    response = await _ask(client, kind, [name], list(keys), node, timeout_s)
    (result,) = response.results
    return {entry.name: entry.value for entry in result.configs if entry.value is not None and entry.name in keys}


async def set_on_topics(client: KafkaClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic itself, without the defaults of the cluster. Raises BrokerError."""
    response = await _ask(client, "topic", topics)
    return {
        result.resource_name: {
            entry.name: entry.value
            for entry in result.configs
            if entry.value is not None and _is_set_on_topic(entry, response.API_VERSION)
        }
        for result in response.results
    }


def _is_set_on_topic(entry: Any, version: int) -> bool:
    return bool(entry.config_source == SET_ON_TOPIC if version >= 1 else not entry.is_default)


async def _ask(
    client: KafkaClient,
    kind: ResourceKind,
    names: Iterable[str],
    keys: list[str] | None = None,
    node: int | None = None,
    timeout_s: float | None = None,
) -> Any:
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=RESOURCE_TYPES[kind], resource_name=name, configuration_keys=keys
        )
        for name in names
    ]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False, max_version=4
    )
    if node is None:
        response = await client.send_any(request, timeout_s)
    else:
        response = await client.send(node, request, timeout_s)
    for result in response.results:
        if result.error_code:
            error = for_code(result.error_code, f"settings of {kind} {result.resource_name!r}")
            # a broker without a session with its ZooKeeper returns this code
            error.retriable = error.retriable or result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            raise error
    return response
