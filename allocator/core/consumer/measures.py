"""Measures a group's lag, for assignors that balance work, and names metrics like Kafka's own clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import EARLIEST, LATEST, list_offsets
from allocator.core.subscription.state import SubscriptionState
from allocator.core.telemetry.measures import Effort, Measures
from allocator.core.types import LoadSource, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.assignors import LoadMeter, LoadReport

TIMEOUT_S = 2.0  # short, because a rebalance waits for the lag
Committed = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]


async def lag(
    client: KafkaClient, committed: Committed, reset: object, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """Returns the number of offsets from the committed offset to the end of the log, where both are known.

    Without a committed offset it counts from where `reset` begins: the complete log for "earliest", 0 for "latest".
    Otherwise the partition is left out, like a partition without a leader. Raises BrokerError, NoOffsetsError.
    """
    asked = [partition for partition in partitions if client.leader(partition) is not None]
    if not asked:
        return {}
    ends = await list_offsets(client, dict.fromkeys(asked, LATEST), timeout_s=TIMEOUT_S)
    begins = {partition: found.offset for partition, found in (await committed(asked)).items()}
    new = [partition for partition in asked if partition not in begins]
    if new and reset in ("earliest", "latest"):
        found = ends
        if reset == "earliest":
            found = await list_offsets(client, dict.fromkeys(new, EARLIEST), timeout_s=TIMEOUT_S)
        begins.update({p: there.offset for p in new if (there := found[p]) is not None})
    return {
        partition: float(max(0, there.offset - begins[partition]))
        for partition in asked
        if (there := ends[partition]) is not None and partition in begins
    }


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


def reference_metrics(measures: Measures, lag: Mapping[TopicPartition, int], assigned: int) -> dict[str, float]:
    """Returns the metrics of kafka-python's coordinator and fetcher: times in milliseconds, rates per second.

    Times and rates cover the last 30 to 60 seconds. `last-heartbeat-seconds-ago` is missing before the first heartbeat,
    `records-lag-max` before the first fetch.
    """
    found: dict[str, float] = {"assigned-partitions": assigned}
    for name, measure in (
        ("join-time", measures.join),
        ("sync-time", measures.sync),
        ("commit-latency", measures.commit),
        ("heartbeat-response-time", measures.heartbeat),
    ):
        found[f"{name}-avg"] = 1000 * measure.avg_s
        found[f"{name}-max"] = 1000 * measure.max_s
        found[f"{name.split('-')[0]}-rate"] = measure.rate
    if measures.last_heartbeat_age_s is not None:
        found["last-heartbeat-seconds-ago"] = measures.last_heartbeat_age_s
    if lag:
        found["records-lag-max"] = max(lag.values())
    return found
