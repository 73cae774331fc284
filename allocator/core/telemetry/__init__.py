"""Figures and spans of a running consumer. Both cost nothing until something reads them."""

from __future__ import annotations

from allocator.core.telemetry.measures import Effort, Measure, Measures
from allocator.core.telemetry.tracing import handling

__all__ = ["Effort", "Measure", "Measures", "handling"]
