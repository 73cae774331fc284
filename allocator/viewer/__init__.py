"""Finds records of a topic by offset, time or key, decodes them, and masks their fields, for commands and the status
page.

In: a query, masks, formats and perhaps a schema registry. Out: records as JSON. May touch: the brokers, without a
group; and the schema registry, if one is configured. Writes nothing.
"""

from allocator.handlers.schemas import Decoded, Formats, Masks, Registry, Schema
from allocator.viewer.read import Bounds, Position, Query, Reader, ReadResult, ReadWindow, parse_key
from allocator.viewer.viewer import SeenRecord, View, Viewer

__all__ = [
    "Bounds",
    "Decoded",
    "Formats",
    "Masks",
    "Position",
    "Query",
    "ReadResult",
    "ReadWindow",
    "Reader",
    "Registry",
    "Schema",
    "SeenRecord",
    "View",
    "Viewer",
    "parse_key",
]
