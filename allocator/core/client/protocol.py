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

NAMES: Final = frozenset(
    {
        "ApiVersionsRequest",
        "BrokerVersionData",
        "DescribeConfigsRequest",
        "FindCoordinatorRequest",
        "ListGroupsRequest",
        "ListOffsetsRequest",
        "MetadataRequest",
        "OffsetFetchRequest",
        "OffsetForLeaderEpochRequest",
    }
)


def load() -> None:
    """Imports all of kafka-python, if no module has done so. Blocks for about 0.1 s then."""
    # `kafka` before its submodules: a thread that imports a submodule holds its lock while it waits for `kafka`, and so
    # deadlocks with a thread that imports `kafka`
    from kafka import errors  # noqa: F401
    from kafka.protocol import admin, broker_version_data, consumer, metadata

    for module in (admin, broker_version_data, consumer, metadata):
        globals().update((name, getattr(module, name)) for name in NAMES if hasattr(module, name))


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load()
    return globals()[name]
