"""Prometheus collectors: `ConsumerCollector` for consumers, `GroupCollector` for the groups that a `Watcher` follows.

They need prometheus-client: `pip install 'zk-partition-allocator[web]'`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from allocator import Consumer
from allocator.core.aio import wall_ms
from allocator.operate import COMMAND_STATES
from allocator.protocols.zookeeper import Budget
from allocator.types import TopicPartition
from allocator.web.families import Sample, counter, gauge
from allocator.web.snapshot import by_topic
from allocator.web.watch import WatchedGroup, Watcher

__all__ = ["ConsumerCollector"]

LABELS = ["group", "client_id"]
# name in Kafka's own clients, description, attribute of `Measures`
TIMES = (
    ("join_time", "a group rejoin", "join"),
    ("sync_time", "a group sync", "sync"),
    ("commit_latency", "a commit request", "commit"),
    ("heartbeat_response_time", "the response to a heartbeat (with ZooKeeper: a lease renewal)", "heartbeat"),
)
CONSUMER_GAUGES: tuple[tuple[str, str, Callable[[Consumer], float | None]], ...] = (
    (
        "last_heartbeat_seconds_ago",
        "Seconds since the last heartbeat was sent",
        lambda c: c.measures.last_heartbeat_age_s,
    ),
    ("assigned_partitions", "Partitions that this consumer owns now", lambda c: len(c.assignment())),
    ("may_act", "1 while the consumer may deliver records and commit offsets", lambda c: float(c._member.may_act())),
    ("generation", "Generation of the current assignment", lambda c: c.generation),
)
# attributes of `Measures`
CONSUMER_COUNTERS = (
    ("partitions_assigned", "Partitions assigned"),
    ("partitions_revoked", "Partitions revoked"),
    ("partitions_lost", "Partitions lost"),
    ("resets", "Positions outside the log that were reset"),
    ("records_lost", "Offsets skipped because the log no longer has them"),
    ("handler_failures", "Failed calls of the handler"),
    ("records_skipped", "Records skipped because of skip_on"),
    ("records_delayed", "Records that were written to a retry topic"),
    ("dead_letters", "Records that became dead letters"),
    ("records_not_repeated", "Records that were done before a restart or a move, so they were not handled again"),
    ("windows_narrowed", "Times that a partition's delivery stopped until its done records fitted into a commit again"),
    ("done_sets_cut", "Commits without the full list of records that are done beyond the committed offset"),
)


class ConsumerCollector(Collector):
    """Register it once: `prometheus_client.REGISTRY.register(ConsumerCollector([consumer]))`.

    Metrics have the names of Kafka's own clients with the prefix `allocator_`. Times are in seconds, rates per second
    over the last 30 to 60 s. Each scrape iterates over `consumers` again, so that the list may change. A scrape sends
    no request.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._consumers = consumers

    def collect(self) -> Iterator[Metric]:
        each = [([consumer.group or "", consumer.client_id], consumer) for consumer in self._consumers]
        for name, what, measure in TIMES:
            yield from _times(name, what, measure, each)
        for name, text, value in CONSUMER_GAUGES:
            yield gauge(f"allocator_{name}", text, LABELS, [(labels, value(consumer)) for labels, consumer in each])
        lags = [(labels, consumer.lag()) for labels, consumer in each]
        yield gauge(
            "allocator_records_lag",
            "Records between the position and the log end at the last fetch",
            [*LABELS, "topic", "partition"],
            ((_of(labels, partition), records) for labels, lag in lags for partition, records in lag.items()),
        )
        yield gauge(
            "allocator_records_lag_max",
            "Largest lag of any owned partition",
            LABELS,
            ((labels, max(lag.values(), default=None)) for labels, lag in lags),
        )
        yield gauge(
            "allocator_retry_due_timestamp_seconds",
            "Time when the next record of a retry topic's partition is due; absent if none waits",
            [*LABELS, "topic", "partition"],
            (
                (_of(labels, partition), due_ms / 1000)
                for labels, consumer in each
                for partition, due_ms in consumer.measures.due_ms.items()
            ),
        )
        for name, text in CONSUMER_COUNTERS:
            counts = [(labels, getattr(consumer.measures, name)) for labels, consumer in each]
            yield counter(f"allocator_{name}", f"{text}, since the start", LABELS, counts)


def _of(labels: list[str], partition: TopicPartition) -> list[str]:
    return [*labels, partition.topic, str(partition.partition)]


def _times(name: str, what: str, measure: str, consumers: Iterable[tuple[list[str], Consumer]]) -> Iterator[Metric]:
    measured = [(labels, getattr(consumer.measures, measure)) for labels, consumer in consumers]
    for metric, text, figure in (
        (f"{name}_avg_seconds", "Average time", "avg_s"),
        (f"{name}_max_seconds", "Longest time", "max_s"),
        (f"{name.split('_')[0]}_rate", "Rate per second", "rate"),
    ):
        samples = [(labels, getattr(each, figure)) for labels, each in measured]
        yield gauge(f"allocator_{metric}", f"{text} of {what}", LABELS, samples)
    summary = SummaryMetricFamily(f"allocator_{name}_seconds", f"Times of {what} since the start", labels=LABELS)
    for labels, each in measured:
        summary.add_metric(labels, count_value=each.count, sum_value=each.total_s)
    yield summary


def moving(group: WatchedGroup) -> int:
    """Returns the number of partitions that live members still have to release."""
    state = group.report.state
    return 0 if state.document is None else state.document.in_flight(state.members.keys())


GROUP_GAUGES: tuple[tuple[str, str, Callable[[WatchedGroup], float | None]], ...] = (
    ("members", "Members of the group; absent if unknown", lambda g: g.report.member_count),
    (
        "partitions",
        "Partitions that the group owns, subscribes to, or has committed offsets for",
        lambda g: len(g.report.partitions),
    ),
    (
        "unowned_partitions",
        "Partitions that the group subscribes to and no member owns; absent if its members or partitions are unknown",
        lambda g: g.report.unowned_count,
    ),
    (
        "reserved_partitions",
        "Partitions without an owner that wait for a restart (restart_grace_s)",
        lambda g: sum(len(each.partitions) for each in g.report.reserved),
    ),
    (
        "load_max_over_mean",
        "Load of the busiest member relative to its share (follow_load); 0 if load is not followed or unknown",
        lambda g: 0.0 if g.report.state.load is None else g.report.state.load.max_over_mean or 0.0,
    ),
    (
        "generation",
        "Generation of the newest assignment; absent if the group uses Kafka's own protocols",
        lambda g: g.report.generation,
    ),
    ("moving_partitions", "Partitions that a live member has to release for another one", moving),
    ("rebalancing", "1 during a rebalance", lambda g: float(g.report.phase == "rebalancing")),
    ("findings", "Findings above INFO about the group", lambda g: g.wrong),
    ("lag_seconds", "Time that the oldest uncommitted record has waited; absent if unknown", lambda g: g.age.s),
)
GROUP_COUNTERS: tuple[tuple[str, str, Callable[[WatchedGroup], float]], ...] = (
    ("partitions_moved", "Partitions that changed their owner since this server started", lambda g: g.history.moved),
    (
        "unnoticed_seconds",
        "Upper bound of the time between crashes and their detection: the sum of the session timeouts",
        lambda g: g.history.unnoticed_s,
    ),
)


def _commands(groups: list[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
    """Yields the metrics of operator commands and of the budget."""
    states = {name: Counter(each.state for each in group.report.commands) for name, group in groups}
    yield gauge(
        "allocator_group_commands",
        "Operator commands by state",
        ["group", "state"],
        (([name, state], counts[state]) for name, counts in states.items() for state in COMMAND_STATES),
    )
    limits, used = list[Sample](), list[Sample]()
    for name, group in groups:
        document = group.report.state.document
        budget = Budget.of(each.command for each in group.report.commands if each.state == "kept")
        if budget.at_once is not None:
            limits.append(([name, "at_once"], budget.at_once))
            used.append(([name, "at_once"], moving(group)))
        if budget.per_minute is not None and document is not None:
            limits.append(([name, "per_minute"], budget.per_minute))
            recent = document.recent_moves(wall_ms())
            used.append(([name, "per_minute"], sum(number for _, number in recent)))
    for what, text, samples in (
        ("budget", "Maximum number of partitions that may move at once and per minute", limits),
        ("budget_used", "Number of partitions that are moving now and that moved in the last minute", used),
    ):
        yield gauge(f"allocator_group_{what}", f"{text}; absent without a budget", ["group", "limit"], samples)


class GroupCollector(Collector):
    """Register it once. A scrape sends no request: it reads the watcher, which counts from the start of the process.

    Offsets are summed by topic; their `deriv` is the rate of written or committed records.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        problems = self._watcher.problems
        yield gauge(
            "allocator_cluster_up",
            "1 while the cluster responds",
            ["cluster"],
            (([cluster], float(cluster not in problems)) for cluster in self._watcher.clusters),
        )
        groups = [(name, group) for name, group in sorted(self._watcher.groups.items()) if group.seen]
        for make, table in ((gauge, GROUP_GAUGES), (counter, GROUP_COUNTERS)):
            for what, text, value in table:
                samples = [([name], value(group)) for name, group in groups]
                yield make(f"allocator_group_{what}", text, ["group"], samples)
        times = SummaryMetricFamily(
            "allocator_group_rebalance_seconds",
            "Rebalances that this server observed completely, and their duration from the first event",
            labels=["group"],
        )
        for name, group in groups:
            times.add_metric([name], count_value=group.history.count, sum_value=group.history.seconds)
        yield times
        yield from _commands(groups)
        yield from _by_topic(groups)
        yield from _as_kafka_exporter(groups)


def _by_topic(groups: list[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
    lags, committed, ends = list[Sample](), list[Sample](), list[Sample]()
    for name, group in groups:
        logs = group.report.logs
        for topic, partitions in sorted(by_topic(group.report.current).items()):
            lags.append(([name, topic], logs.lag_of(partitions).total))
        done: Counter[str] = Counter()
        for partition, offset in logs.committed.items():
            done[partition.topic] += offset.offset
        committed += (([name, topic], total) for topic, total in sorted(done.items()))
        written: Counter[str] = Counter()
        for partition, end in logs.end.items():
            written[partition.topic] += end
        for partition in group.report.partitions:
            if partition not in logs.end:  # a sum without some partitions would mislead
                written.pop(partition.topic, None)
        ends += (([name, topic], total) for topic, total in sorted(written.items()))
    for what, text, samples in (
        ("lag", "Records between committed offsets and log ends of the subscribed topics; absent if unknown", lags),
        ("committed_offsets", "Sum of the committed offsets over all partitions that have one", committed),
        ("end_offsets", "Sum of the log end offsets over all partitions; absent if one is unknown", ends),
    ):
        yield gauge(f"allocator_group_{what}", text, ["group", "topic"], samples)


def _as_kafka_exporter(groups: list[tuple[str, WatchedGroup]]) -> Iterator[Metric]:
    """Yields metrics with the names and labels of kafka-exporter, for the dashboards that are written for it."""
    lags, committed = list[Sample](), list[Sample]()
    for name, group in groups:
        logs = group.report.logs
        for partition in group.report.current:
            where, offset = _of([name], partition), logs.committed.get(partition)
            lags.append((where, logs.lag(partition)))
            committed.append((where, None if offset is None else offset.offset))
    members = [([name], group.report.member_count) for name, group in groups]
    by_partition = ["consumergroup", "topic", "partition"]
    for what, text, labels, samples in (
        ("lag", "Lag of a partition in records", by_partition, lags),
        ("current_offset", "Committed offset of a partition", by_partition, committed),
        ("members", "Members of the group", ["consumergroup"], members),
    ):
        yield gauge(f"kafka_consumergroup_{what}", f"{text}, as kafka-exporter names it", labels, samples)
