"""Measures the load of the partitions that a consumer owns, for assignors that balance work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Effort, Measures
from allocator.core.types import LoadSource, TopicPartition

if TYPE_CHECKING:
    from allocator.assignors import LoadMeter, LoadReport


class OwnLoad:
    """The load of the partitions that one consumer owns, for `follow_load`."""

    def __init__(self, state: SubscriptionState, measures: Measures) -> None:
        self._state = state
        self._measures = measures
        self._meter: LoadMeter | None = None
        self.source: LoadSource | None = None
        """The kind of load; None if the group does not follow load."""
        self.reported: dict[TopicPartition, float] = {}
        """The latest load of each partition from `Consumer.report_load`."""

    def measure(self, source: LoadSource) -> Callable[[], LoadReport]:
        """Starts to measure. Each call of the result takes one measurement and returns the report for the group."""
        from allocator.assignors import LoadMeter  # costs time where the group does not follow load

        self._meter = self._meter or LoadMeter()
        self.source = source
        self._measures.fetched = Effort() if source == "bytes" else None
        self._measures.handled = Effort() if source == "handler_s" else None
        return partial(self._report, source, self._meter)

    def _report(self, source: LoadSource, meter: LoadMeter) -> LoadReport:
        from allocator.assignors import LoadReport

        owned = self._state.owned
        if source == "reported":
            self.reported = {partition: load for partition, load in self.reported.items() if partition in owned}
            return LoadReport.of(source, meter.of_loads(self.reported))
        tenures = self._state.assignment.items()
        ends = {partition: end for partition, tenure in tenures if (end := tenure.high_watermark) is not None}
        work = self._measures.fetched or self._measures.handled
        if work is None:
            return LoadReport.of(source, meter.of_ends(ends))
        work.keep(owned)
        return LoadReport.of(source, meter.of_work(ends, work.by_partition))
