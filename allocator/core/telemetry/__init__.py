"""Measures and tracing spans of a running consumer."""

from __future__ import annotations

from allocator.core.telemetry.measures import Effort, Measure, Measures
from allocator.core.telemetry.tracing import handling

__all__ = ["Effort", "Measure", "Measures", "handling"]
