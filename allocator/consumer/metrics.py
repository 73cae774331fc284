"""What Kafka's own clients measure of a consumer, under the names that they use."""

from __future__ import annotations

from collections.abc import Mapping

from allocator.measures import Measures
from allocator.subscription.state import SubscriptionState
from allocator.types import TopicPartition

__all__ = ["lags", "reference_metrics"]


def lags(state: SubscriptionState) -> dict[TopicPartition, int]:
    """Records between the position and the end of each partition, of those whose end is known from a fetch."""
    found = {partition: state.partition_lag(partition) for partition in state.assigned_partitions()}
    return {partition: lag for partition, lag in found.items() if lag is not None}


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
