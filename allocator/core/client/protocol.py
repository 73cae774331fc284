"""kafka-python's requests, responses and table of versions, imported on first use.

The import takes as long as all of `from allocator import Consumer`, and a process without connections needs none of it.
`KafkaClient.connect` calls `load`, so that no later request waits for the import.
"""

from __future__ import annotations

from typing import Any, Final

FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
SYNC_GROUP: Final = 14


def load() -> None:
    """Imports all of kafka-python, if no module has done so. Blocks for about 0.1 s then."""
    # `kafka` before its submodules: a thread that imports a submodule holds its lock while it waits for `kafka`, and so
    # deadlocks with a thread that imports `kafka`
    from kafka import errors  # noqa: F401
    from kafka.protocol.admin import DescribeConfigsRequest, ListGroupsRequest
    from kafka.protocol.broker_version_data import BrokerVersionData
    from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest
    from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

    classes = (
        *(ApiVersionsRequest, BrokerVersionData, DescribeConfigsRequest, FindCoordinatorRequest, ListGroupsRequest),
        *(ListOffsetsRequest, MetadataRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest),
    )
    globals().update({each.__name__: each for each in classes})


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        load()
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]
