"""What strangers may have written: JSON objects of znodes and records, checked field by field within bounds."""

from __future__ import annotations

from allocator.core.documents.checked import InvalidZnode
from allocator.core.documents.packed import InflateBudget, to_ranges

__all__ = ["InflateBudget", "InvalidZnode", "to_ranges"]
