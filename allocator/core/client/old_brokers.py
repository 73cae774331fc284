"""Recognizes brokers before 0.10, which do not know ApiVersions, by evidence that no delay can produce.

- A broker before 0.10 ignores the version of a ListOffsets request. So it answers `AnyVersionRequest`, whose version no
  broker has; a newer broker closes the connection.
- 0.9 leaves out ApiVersions and answers the next request on the same connection. A newer broker answers in order.
- 0.8 closes the connection on a request that it does not know.

Silence and a closed connection prove nothing: a broker may be slow, or stop at that moment.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

HAS_API_VERSIONS: Final = (0, 10)
NO_VERSION: Final = 0x7FFF
GROUP: Final = "allocator-version-probe"
TRIES: Final = 2


def is_old(versions: BrokerVersionData) -> bool:
    """Whether a broker with these versions does not know ApiVersions."""
    return bool(versions.broker_version < HAS_API_VERSIONS)


class AnyVersionRequest:
    """A ListOffsets request about no partition, in a version that no broker has."""

    API_KEY = ListOffsetsRequest.API_KEY
    API_VERSION = NO_VERSION

    def __init__(self) -> None:
        self._request = ListOffsetsRequest[0](replica_id=-1, topics=[])

    @property
    def header(self) -> Any:
        return self._request.header

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._request.with_header(correlation_id=correlation_id, client_id=client_id)

    def encode(self, framed: bool, header: bool) -> bytearray:
        data = bytearray(self._request.encode(framed=framed, header=header))
        struct.pack_into(">h", data, 6, NO_VERSION)  # behind the length of the frame and the API key
        return data


def known_to_0_9() -> Any:
    """A request that every broker from 0.9 on answers at once."""
    return ListGroupsRequest[0]()


async def version_of_0_8(answers: Callable[[Any], Awaitable[bool]]) -> tuple[int, ...]:
    """The version of a broker of 0.8: (0, 8, 2), (0, 8, 1) or (0, 8, 0).

    `answers(request)` sends a request on a connection that has just proved that its broker is older than 0.10. Returns
    False if the broker closes the connection, and raises an error without that proof.
    """
    probes: tuple[tuple[tuple[int, ...], Any, tuple[Any, ...]], ...] = (
        # makes 0.8.2 create its offsets topic, as the first consumer does
        ((0, 8, 2), FindCoordinatorRequest[0], (GROUP,)),
        ((0, 8, 1), OffsetFetchRequest[0], (GROUP, [])),
    )
    for version, request_class, fields in probes:
        for _ in range(TRIES):  # a broker that stops closes the connection as well
            if await answers(request_class(*fields)):
                return version
    return (0, 8, 0)
