"""Prometheus collectors: `ConsumerCollector` for consumers, `GroupCollector` for the groups that a `Watcher` follows.

They need prometheus-client: `pip install 'zk-partition-allocator[web]'`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from allocator.clock import wall_ms
from allocator.consumer.consumer import Consumer
from allocator.groups.order_report import ORDER_STATES
from allocator.groups.zookeeper.plan import in_flight, recent_moves
from allocator.groups.zookeeper.steering import budget_of
from allocator.measures import Measure, Measures
from allocator.types import TopicPartition
from allocator.web.watch import WatchedGroup, Watcher

__all__ = ["ConsumerCollector"]

LABELS = ["group", "client_id"]
# name in Kafka's own clients, description, measure
TIMES: tuple[tuple[str, str, Callable[[Measures], Measure]], ...] = (
    ("join_time", "a group rejoin", lambda m: m.join),
    ("sync_time", "a group sync", lambda m: m.sync),
    ("commit_latency", "a commit request", lambda m: m.commit),
    (
        "heartbeat_response_time",
        "the response to a heartbeat (with ZooKeeper: a lease renewal)",
        lambda m: m.heartbeat,
    ),
)


class ConsumerCollector(Collector):
    """Register it once: `prometheus_client.REGISTRY.register(ConsumerCollector([consumer]))`.

    Names are those of Kafka's own clients after the prefix `allocator_`, in base units: seconds, and rates per second
    over the last 30 to 60 s. Counters and summaries since the start let Prometheus compute its own rates. Each scrape
    reads `consumers`, so a list may change. A scrape sends no request.
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
            "allocator_assigned_partitions", "Partitions that this consumer owns now", labels=LABELS
        )
        may_act = GaugeMetricFamily(
            "allocator_may_act", "1 while the consumer may deliver records and commit offsets", labels=LABELS
        )
        generation = GaugeMetricFamily("allocator_generation", "Generation of the current assignment", labels=LABELS)
        lag = GaugeMetricFamily(
            "allocator_records_lag",
            "Records between the position and the log end at the last fetch",
            labels=[*LABELS, "topic", "partition"],
        )
        lag_max = GaugeMetricFamily("allocator_records_lag_max", "Largest lag of any owned partition", labels=LABELS)
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
        due = GaugeMetricFamily(
            "allocator_retry_due_timestamp_seconds",
            "When the next record of a partition of a retry topic is due, if it waits",
            labels=[*LABELS, "topic", "partition"],
        )
        for labels, measures in measured:
            for partition, due_ms in measures.due_ms.items():
                due.add_metric([*labels, partition.topic, str(partition.partition)], due_ms / 1000)
        yield due
        for what in ("assigned", "revoked", "lost"):
            moved = CounterMetricFamily(
                f"allocator_partitions_{what}", f"Partitions {what} since the start", labels=LABELS
            )
            for labels, measures in measured:
                moved.add_metric(labels, getattr(measures, f"partitions_{what}"))
            yield moved
        for name, what in (
            ("resets", "Positions outside the log that were reset"),
            ("records_lost", "Offsets skipped because the log no longer has them"),
            ("handler_failures", "Calls of the handler that failed"),
            ("records_skipped", "Records that were skipped because of skip_on"),
            ("records_delayed", "Records that were written to a retry topic"),
            ("dead_letters", "Records that became dead letters"),
            ("records_not_repeated", "Records that were done before a restart or a move, and not handled again"),
            ("windows_narrowed", "Times that a partition got no new records as what is done would not fit a commit"),
            ("done_sets_cut", "Commits that could not name all records that are done beyond their offset"),
        ):
            counter = CounterMetricFamily(f"allocator_{name}", f"{what}, since the start", labels=LABELS)
            for labels, measures in measured:
                counter.add_metric(labels, getattr(measures, name))
            yield counter


def _times(name: str, what: str, measured: Iterable[tuple[list[str], Measure]]) -> Iterator[Metric]:
    average = GaugeMetricFamily(f"allocator_{name}_avg_seconds", f"Average time of {what}", labels=LABELS)
    longest = GaugeMetricFamily(f"allocator_{name}_max_seconds", f"Longest time of {what}", labels=LABELS)
    rate = GaugeMetricFamily(f"allocator_{name.split('_')[0]}_rate", f"Rate per second of {what}", labels=LABELS)
    summary = SummaryMetricFamily(f"allocator_{name}_seconds", f"Times of {what} since the start", labels=LABELS)
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


def moving(group: WatchedGroup) -> int:
    """The number of partitions that live members still have to release."""
    state = group.report.state
    return 0 if state.document is None else in_flight(state.document, state.members.keys())


GROUP_GAUGES: tuple[tuple[str, str, Callable[[WatchedGroup], float]], ...] = (
    ("members", "Members of the group", lambda g: len(g.report.state.members)),
    (
        "partitions",
        "Partitions that the group owns, subscribes to, or has offsets of",
        lambda g: len(g.report.partitions),
    ),
    (
        "unowned_partitions",
        "Partitions that the group subscribes to and no member owns",
        lambda g: len(g.report.unowned),
    ),
    (
        "reserved_partitions",
        "Partitions without an owner that wait for a restart (restart_grace_s)",
        lambda g: sum(len(each.partitions) for each in g.report.reserved),
    ),
    (
        "load_max_over_mean",
        "Load of the busiest member, in shares (follow_load); 0 if load is not followed or not known",
        lambda g: 0.0 if g.report.state.load is None else g.report.state.load.max_over_mean or 0.0,
    ),
    ("generation", "Generation of the newest assignment", lambda g: g.report.state.generation),
    (
        "moving_partitions",
        "Partitions that a live member has to release for another one",
        moving,
    ),
    ("rebalancing", "1 during a rebalance", lambda g: float(g.report.phase == "rebalancing")),
    ("findings", "Findings above INFO about the group", lambda g: g.wrong),
)


def _orders(groups: list[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
    """The orders of operators, and how much of the budget is used."""
    count = GaugeMetricFamily("allocator_group_orders", "Orders of operators by their state", labels=["group", "state"])
    limits = GaugeMetricFamily(
        "allocator_group_budget",
        "Partitions that the budget lets move at once, and in a minute; absent without a budget",
        labels=["group", "limit"],
    )
    used = GaugeMetricFamily(
        "allocator_group_budget_used",
        "Partitions that move now, and that were moved in the last minute; absent without a budget",
        labels=["group", "limit"],
    )
    for name, group in groups:
        states = Counter(each.state for each in group.report.orders)
        for state in ORDER_STATES:
            count.add_metric([name, state], states[state])
        document = group.report.state.document
        budget = budget_of(each.order for each in group.report.orders if each.state == "kept")
        if budget.at_once is not None:
            limits.add_metric([name, "at_once"], budget.at_once)
            used.add_metric([name, "at_once"], moving(group))
        if budget.per_minute is not None and document is not None:
            limits.add_metric([name, "per_minute"], budget.per_minute)
            recent = recent_moves(document.moved, wall_ms())
            used.add_metric([name, "per_minute"], sum(number for _, number in recent))
    yield from (count, limits, used)


class GroupCollector(Collector):
    """Register it once. A scrape sends no request: it reads the watcher, which counts since its start.

    Offsets are summed by topic: their `deriv` is the rate of written and of committed records.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("allocator_cluster_up", "1 while the cluster answers", labels=["cluster"])
        for cluster in self._watcher.clusters:
            up.add_metric([cluster], float(cluster not in self._watcher.problems))
        yield up
        groups = [(name, group) for name, group in sorted(self._watcher.groups.items()) if group.seen]
        for what, text, value in GROUP_GAUGES:
            gauge = GaugeMetricFamily(f"allocator_group_{what}", text, labels=["group"])
            for name, group in groups:
                gauge.add_metric([name], value(group))
            yield gauge
        count = CounterMetricFamily(
            "allocator_group_partitions_moved",
            "Partitions that changed their owner since this server started",
            labels=["group"],
        )
        times = SummaryMetricFamily(
            "allocator_group_rebalance_seconds",
            "Rebalances that this server observed completely, and their duration from the first event",
            labels=["group"],
        )
        unnoticed = CounterMetricFamily(
            "allocator_group_unnoticed_seconds",
            "Upper bound of the time without an owner before crashes were noticed: the session timeouts of the members",
            labels=["group"],
        )
        for name, group in groups:
            count.add_metric([name], group.history.moved)
            times.add_metric([name], count_value=group.history.count, sum_value=group.history.seconds)
            unnoticed.add_metric([name], group.history.unnoticed_s)
        yield from (count, times, unnoticed)
        yield _ages_of_lag(groups)
        yield from _orders(groups)
        yield from self._by_topic(groups)
        yield from _as_kafka_exporter(groups)

    def _by_topic(self, groups: list[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
        labels = ["group", "topic"]
        lag = GaugeMetricFamily(
            "allocator_group_lag",
            "Records between committed offsets and log ends of the subscribed topics; absent if unknown",
            labels=labels,
        )
        committed = GaugeMetricFamily(
            "allocator_group_committed_offsets",
            "Sum of the committed offsets over all partitions that have one",
            labels=labels,
        )
        ends = GaugeMetricFamily(
            "allocator_group_end_offsets",
            "Sum of the log end offsets over all partitions; absent if one is unknown",
            labels=labels,
        )
        for name, group in groups:
            logs = group.report.logs
            by_topic: dict[str, list[TopicPartition]] = {}
            for partition in group.report.current:
                by_topic.setdefault(partition.topic, []).append(partition)
            totals = {topic: logs.lag_of(partitions).total for topic, partitions in by_topic.items()}
            # no sample is better than a sum without some partitions
            lags = {topic: total for topic, total in totals.items() if total is not None}
            done: Counter[str] = Counter()
            written: Counter[str] = Counter()
            for partition, offset in logs.committed.items():
                done[partition.topic] += offset.offset
            for partition, end in logs.end.items():
                written[partition.topic] += end
            for partition in group.report.partitions:
                if partition not in logs.end:
                    written.pop(partition.topic, None)
            for family, sums in ((lag, lags), (committed, done), (ends, written)):
                for topic, value in sorted(sums.items()):
                    family.add_metric([name, topic], value)
        yield from (lag, committed, ends)


def _ages_of_lag(groups: Iterable[tuple[str, WatchedGroup]]) -> Metric:
    age = GaugeMetricFamily(
        "allocator_group_lag_seconds",
        "Time that the oldest record without a commit has waited; absent if unknown",
        labels=["group"],
    )
    for name, group in groups:
        if group.age.s is not None:
            age.add_metric([name], group.age.s)
    return age


def _as_kafka_exporter(groups: Iterable[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
    """The names and labels of kafka-exporter (https://github.com/danielqsj/kafka_exporter), for its dashboards."""
    labels = ["consumergroup", "topic", "partition"]
    lag = GaugeMetricFamily(
        "kafka_consumergroup_lag", "Lag of a partition in records, as kafka-exporter names it", labels=labels
    )
    current = GaugeMetricFamily(
        "kafka_consumergroup_current_offset",
        "Committed offset of a partition, as kafka-exporter names it",
        labels=labels,
    )
    members = GaugeMetricFamily(
        "kafka_consumergroup_members", "Members of the group, as kafka-exporter names it", labels=["consumergroup"]
    )
    for name, group in groups:
        members.add_metric([name], len(group.report.state.members))
        logs = group.report.logs
        for partition in group.report.current:
            where = [name, partition.topic, str(partition.partition)]
            records, committed = logs.lag(partition), logs.committed.get(partition)
            if records is not None:
                lag.add_metric(where, records)
            if committed is not None:
                current.add_metric(where, committed.offset)
    yield from (lag, current, members)
