"""Consumers as a collector of prometheus-client's; `pip install 'zk-partition-allocator[web]'` brings that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from allocator.consumer.consumer import Consumer
from allocator.measures import Measure, Measures

__all__ = ["ConsumerCollector"]

LABELS = ["group", "client_id"]
# the name that Kafka's own clients use, what it measures, and where it is
TIMES: tuple[tuple[str, str, Callable[[Measures], Measure]], ...] = (
    ("join_time", "a group rejoin", lambda m: m.join),
    ("sync_time", "a group sync", lambda m: m.sync),
    ("commit_latency", "a commit request", lambda m: m.commit),
    (
        "heartbeat_response_time",
        "the answer to a heartbeat (with ZooKeeper: a proof of the session)",
        lambda m: m.heartbeat,
    ),
)


class ConsumerCollector(Collector):
    """Register it once: `prometheus_client.REGISTRY.register(ConsumerCollector([consumer]))`.

    Names are those of Kafka's own clients behind `allocator_`, in base units: seconds, and rates per second over the
    last 30 to 60 s. Beside them stand counters and summaries of all time, which Prometheus can compute rates of.
    `consumers` is read at each scrape, so a list may change meanwhile. Reads what is known; asks nobody.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._consumers = consumers

    def collect(self) -> Iterator[Metric]:
        each = [([consumer.group or "", consumer.client_id], consumer) for consumer in self._consumers]
        measured = [(labels, consumer.measures) for labels, consumer in each]
        for name, what, of in TIMES:
            yield from _times(name, what, [(labels, of(measures)) for labels, measures in measured])
        yield _ages(measured)
        assigned = GaugeMetricFamily(
            "allocator_assigned_partitions", "Partitions that are this consumer's at present", labels=LABELS
        )
        may_act = GaugeMetricFamily(
            "allocator_may_act", "1 while records may be handled and offsets committed", labels=LABELS
        )
        generation = GaugeMetricFamily("allocator_generation", "Number of the assignment it follows", labels=LABELS)
        lag = GaugeMetricFamily(
            "allocator_records_lag",
            "Records between position and end as of the last fetch",
            labels=[*LABELS, "topic", "partition"],
        )
        lag_max = GaugeMetricFamily("allocator_records_lag_max", "Largest lag of its partitions", labels=LABELS)
        for labels, consumer in each:
            assigned.add_metric(labels, len(consumer.assignment()))
            may_act.add_metric(labels, float(consumer.may_act()))
            generation.add_metric(labels, consumer.generation)
            known = consumer.lag()
            for partition, records in known.items():
                lag.add_metric([*labels, partition.topic, str(partition.partition)], records)
            if known:
                lag_max.add_metric(labels, max(known.values()))
        yield from (assigned, may_act, generation, lag, lag_max)
        for what in ("assigned", "revoked", "lost"):
            moved = CounterMetricFamily(
                f"allocator_partitions_{what}", f"Partitions that were {what}, of all time", labels=LABELS
            )
            for labels, measures in measured:
                moved.add_metric(labels, getattr(measures, f"partitions_{what}"))
            yield moved
        for name, what in (
            ("resets", "Positions that the log did not have and that were replaced"),
            ("records_lost", "Offsets that were skipped because the log did not have them"),
        ):
            counter = CounterMetricFamily(f"allocator_{name}", f"{what}, of all time", labels=LABELS)
            for labels, measures in measured:
                counter.add_metric(labels, getattr(measures, name))
            yield counter


def _times(name: str, what: str, measured: Iterable[tuple[list[str], Measure]]) -> Iterator[Metric]:
    average = GaugeMetricFamily(f"allocator_{name}_avg_seconds", f"Average time of {what}", labels=LABELS)
    longest = GaugeMetricFamily(f"allocator_{name}_max_seconds", f"Longest time of {what}", labels=LABELS)
    rate = GaugeMetricFamily(f"allocator_{name.split('_')[0]}_rate", f"How often a second: {what}", labels=LABELS)
    summary = SummaryMetricFamily(f"allocator_{name}_seconds", f"Times of {what}, of all time", labels=LABELS)
    for labels, measure in measured:
        average.add_metric(labels, measure.avg_s)
        longest.add_metric(labels, measure.max_s)
        rate.add_metric(labels, measure.rate)
        summary.add_metric(labels, count_value=measure.count, sum_value=measure.total_s)
    yield from (average, longest, rate, summary)


def _ages(measured: Iterable[tuple[list[str], Measures]]) -> Metric:
    age = GaugeMetricFamily(
        "allocator_last_heartbeat_seconds_ago", "Seconds since the last heartbeat was sent", labels=LABELS
    )
    for labels, measures in measured:
        if measures.last_heartbeat_age_s is not None:
            age.add_metric(labels, measures.last_heartbeat_age_s)
    return age
