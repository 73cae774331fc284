"""Recognizes brokers before 0.10, which lack ApiVersions, by responses that no newer broker gives.

- A broker before 0.10 ignores the version of a ListOffsets request. So it responds to `AnyVersionRequest`, whose
  version no broker has; a newer broker closes the connection.
- 0.9 ignores ApiVersions and responds to the next request on the same connection. A newer broker responds in order.
- 0.8 closes the connection on a request that it lacks.

Silence and a closed connection prove nothing: a broker may be slow or stopping.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from allocator.core.client import protocol

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData

HAS_API_VERSIONS: Final = (0, 10)
NO_VERSION: Final = 0x7FFF
GROUP: Final = "allocator-version-probe"
TRIES: Final = 2


def is_old(versions: BrokerVersionData) -> bool:
    """Returns whether a broker with these versions lacks ApiVersions."""
    return bool(versions.broker_version < HAS_API_VERSIONS)


class AnyVersionRequest:
    """A ListOffsets request about no partition, in a version that no broker has."""

    API_KEY = protocol.LIST_OFFSETS
    API_VERSION = NO_VERSION

    def __init__(self) -> None:
        self._request = protocol.ListOffsetsRequest[0](replica_id=-1, topics=[])

    @property
    def header(self) -> Any:
        return self._request.header

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._request.with_header(correlation_id=correlation_id, client_id=client_id)

    def encode(self, framed: bool, header: bool) -> bytearray:
        data = bytearray(self._request.encode(framed=framed, header=header))
        struct.pack_into(">h", data, 6, NO_VERSION)  # after the length of the frame and the API key
        return data


def known_to_0_9() -> Any:
    """Returns a request to which every broker from 0.9 on responds at once."""
    return protocol.ListGroupsRequest[0]()


async def version_of_0_8(responds: Callable[[Any], Awaitable[bool]]) -> tuple[int, ...]:
    """Returns the version of a broker of 0.8: (0, 8, 2), (0, 8, 1) or (0, 8, 0).

    `responds(request)` opens a connection, which fails unless the broker is older than 0.10, and sends a request on it.
    It returns False if the broker closes the connection.
    """
    probes: tuple[tuple[tuple[int, ...], Any, tuple[Any, ...]], ...] = (
        # 0.8.2 then creates its offsets topic, as for its first consumer
        ((0, 8, 2), protocol.FindCoordinatorRequest[0], (GROUP,)),
        ((0, 8, 1), protocol.OffsetFetchRequest[0], (GROUP, [])),
    )
    for version, request_class, fields in probes:
        for _ in range(TRIES):  # a broker that stops closes the connection as well
            if await responds(request_class(*fields)):
                return version
    return (0, 8, 0)
