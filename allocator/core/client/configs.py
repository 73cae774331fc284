"""Reads the settings of topics, brokers and groups: DescribeConfigs, from Kafka 0.11 on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from allocator.core.client import protocol
from allocator.core.client.client import KafkaClient
from allocator.core.client.errors import ErrorCode, for_code

ResourceKind = Literal["topic", "broker", "group"]
RESOURCE_TYPES: Mapping[ResourceKind, int] = {"topic": 2, "broker": 4, "group": 32}
SET_ON_TOPIC = 1  # value of `config_source`


async def describe_configs(
    client: KafkaClient,
    kind: ResourceKind,
    names: Iterable[str],
    keys: Collection[str] | None = None,
    *,
    node: int | None = None,
    timeout_s: float | None = None,
) -> dict[str, dict[str, str]]:
    """Returns name -> setting -> value. `keys` None: the settings of a topic that differ from the cluster's defaults.

    `node` None: from any broker. Raises BrokerError, for example if the user lacks DESCRIBE_CONFIGS on the cluster, the
    topic or the group.
    """
    resources = [
        protocol.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=RESOURCE_TYPES[kind],
            resource_name=name,
            configuration_keys=None if keys is None else list(keys),
        )
        for name in names
    ]
    request = protocol.DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False, max_version=4
    )
    if node is None:
        response = await client.send_any(request, timeout_s)
    else:
        response = await client.send(node, request, timeout_s)
    for result in response.results:
        if result.error_code:
            error = for_code(result.error_code, f"settings of {kind} {result.resource_name!r}")
            # a broker that lost its ZooKeeper session returns this code
            error.retriable = error.retriable or result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            raise error
    return {
        result.resource_name: {
            entry.name: entry.value
            for entry in result.configs
            if entry.value is not None
            and (_is_set_on_topic(entry, response.API_VERSION) if keys is None else entry.name in keys)
        }
        for result in response.results
    }


def _is_set_on_topic(entry: Any, version: int) -> bool:
    return bool(entry.config_source == SET_ON_TOPIC if version >= 1 else not entry.is_default)
