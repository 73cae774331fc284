"""Limits that the client asks the coordinator for, and the defaults if the coordinator does not report them."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.core.offsets import coordinator as module
from allocator.core.offsets.coordinator import Coordinator
from allocator.core.telemetry.measures import Measures
from allocator.errors import BrokerError


class Client:
    """A client of brokers that know DescribeConfigs, or do not."""

    def __init__(self, knows: bool = True) -> None:
        self.measures = Measures()
        self.request_timeout_s = 10.0
        self._knows = knows

    def api_version(self, request: Any) -> int | None:
        return 1 if self._knows else None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"offset.metadata.max.bytes": "16384"}, 16384),
        ({}, 4096),
        ({"offset.metadata.max.bytes": "many"}, 4096),
        (BrokerError("not allowed"), 4096),
    ],
)
async def test_the_room_for_metadata_is_asked_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, answer: Any, expected: int
) -> None:
    asked = []

    async def describe(client: Any, kind: int, name: str, keys: Any, **more: Any) -> dict[str, str]:
        asked.append((name, list(keys), more["node"]))
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "describe_configs", describe)
    client: Any = Client()
    found = Coordinator(client, "g", 0.1)
    assert await found.metadata_bytes() == 4096, "no coordinator is known yet"
    found._node = 3
    assert await found.metadata_bytes() == expected
    assert asked == [("3", ["offset.metadata.max.bytes"], 3)]


async def test_brokers_before_0_11_do_not_tell_it() -> None:
    client: Any = Client(knows=False)
    found = Coordinator(client, "g", 0.1)
    found._node = 3
    assert await found.metadata_bytes() == 4096
