"""The lag of a group, for assignors that balance work, and metrics under the names of Kafka's own clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from allocator.client.client import KafkaClient
from allocator.client.log_offsets import EARLIEST, LATEST, list_offsets
from allocator.groups.zookeeper.load_report import LoadMeter, LoadReport
from allocator.measures import Measures
from allocator.subscription.state import SubscriptionState
from allocator.types import LoadSource, OffsetAndMetadata, TopicPartition

__all__ = ["OwnLoad", "lag", "lags", "reference_metrics"]

TIMEOUT_S = 2.0  # short, because a rebalance waits for it
Committed = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]


async def lag(
    client: KafkaClient, committed: Committed, reset: object, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """Records from the committed offset to the end of the log, where both are known.

    Without a committed offset it counts from where `reset` ("earliest", "latest", a time, ...) would begin: the whole
    log with "earliest", nothing with "latest"; else the partition is left out, as is one without a leader. Records, not
    bytes: Kafka tells no consumer how large they are.
    Raises BrokerError, NoOffsetsError.
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


def lags(state: SubscriptionState) -> dict[TopicPartition, int]:
    """Records between the position and the end of each partition, of those whose end is known from a fetch."""
    found = {partition: state.partition_lag(partition) for partition in state.assigned_partitions()}
    return {partition: lag for partition, lag in found.items() if lag is not None}


class OwnLoad:
    """The load of the partitions that one consumer owns, for `follow_load`."""

    def __init__(self, state: SubscriptionState) -> None:
        self._state = state
        self._meter = LoadMeter()
        self.reported: dict[TopicPartition, float] = {}
        """What the user reported last."""

    def report(self, source: LoadSource) -> LoadReport:
        """What to tell the group now. Each call is one measurement."""
        owned = self._state.assigned_partitions()
        if source == "reported":
            self.reported = {partition: load for partition, load in self.reported.items() if partition in owned}
            return LoadReport.of(source, self._meter.of_loads(self.reported))
        ends = {partition: self._state.high_watermark(partition) for partition in owned}
        return LoadReport.of(
            source, self._meter.of_ends({partition: end for partition, end in ends.items() if end is not None})
        )


def reference_metrics(measures: Measures, lag: Mapping[TopicPartition, int], assigned: int) -> dict[str, float]:
    """The metrics of kafka-python's coordinator and fetcher: times in milliseconds, rates per second.

    Times and rates are those of the last 30 to 60 seconds. `last-heartbeat-seconds-ago` is missing before the first
    heartbeat, `records-lag-max` before the first fetch.
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
