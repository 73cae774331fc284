"""Limits that the client reads from the coordinator, and the defaults if it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allocator.core.client.coordinator import Coordinator
from allocator.core.telemetry.measures import Measures
from allocator.errors import BrokerError


class Client:
    """A client. `configs`: the brokers' settings or error; None: they do not support DescribeConfigs."""

    def __init__(self, configs: dict[str, str] | BrokerError | None) -> None:
        self.measures = Measures()
        self.request_timeout_s = 10.0
        self.requests: list[tuple[int, list[tuple[str, list[str]]]]] = []
        self._configs = configs

    def api_version(self, request: Any) -> int | None:
        return None if self._configs is None else 1

    async def send(self, node: int, request: Any, timeout_s: float | None) -> Any:
        self.requests.append((node, [(each.resource_name, each.configuration_keys) for each in request.resources]))
        if isinstance(self._configs, BrokerError):
            raise self._configs
        assert self._configs is not None
        found = [SimpleNamespace(name=name, value=value) for name, value in self._configs.items()]
        result = SimpleNamespace(error_code=0, resource_name=str(node), configs=found)
        return SimpleNamespace(API_VERSION=1, results=[result])


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"offset.metadata.max.bytes": "16384"}, 16384),
        ({"offset.metadata.max.bytes": "many"}, 4096),
        (BrokerError("not allowed"), 4096),
        (None, 4096),
    ],
)
async def test_the_limit_of_metadata_is_requested_from_the_coordinator(configs: Any, expected: int) -> None:
    client: Any = Client(configs)
    found = Coordinator(client, "g", 0.1)
    assert await found.metadata_bytes() == 4096, "no coordinator is known yet"
    found.node = 3
    assert await found.metadata_bytes() == expected
    assert client.requests == ([] if configs is None else [(3, [("3", ["offset.metadata.max.bytes"])])])
