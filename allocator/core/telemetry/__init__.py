"""Figures and spans of a running consumer. Both cost nothing until somebody reads them."""

from __future__ import annotations

from allocator.core.telemetry.measures import Measure, Measures
from allocator.core.telemetry.tracing import spans_of

__all__ = [
    "Measure",
    "Measures",
    "spans_of",
]
