"""Finds records of a topic by offset, time or key, decodes them, and masks fields.

The command `allocator records` and the status page use it. It reads from the brokers without a group, and from the
schema registry if one is configured. Writes nothing.
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
