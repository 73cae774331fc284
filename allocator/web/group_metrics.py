"""The groups that a `Watcher` sees, as a collector of prometheus-client's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from allocator.types import TopicPartition
from allocator.web.watch import Group, Watcher

__all__ = ["GroupCollector"]

GAUGES: tuple[tuple[str, str, Callable[[Group], float]], ...] = (
    ("members", "Members of the group", lambda g: len(g.report.state.members)),
    ("partitions", "Partitions that it reads, should read, or has offsets of", lambda g: len(g.report.partitions)),
    ("unowned_partitions", "Partitions that it should read and nobody does", lambda g: len(g.report.unowned)),
    ("generation", "Number of its newest assignment", lambda g: g.report.state.generation),
    ("rebalancing", "1 while partitions change hands", lambda g: float(g.report.phase == "rebalancing")),
    ("findings", "Problems that are known of it", lambda g: g.wrong),
)


class GroupCollector(Collector):
    """Register it once. Asks nobody: what a scrape tells is what the watcher knows, and it counts since it watches.

    Offsets are summed by topic: `deriv` of them is what is written and what is committed, in records a second.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("allocator_cluster_up", "1 while it answers", labels=["cluster"])
        for cluster in self._watcher.clusters:
            up.add_metric([cluster], float(cluster not in self._watcher.problems))
        yield up
        groups = [(name, group) for name, group in sorted(self._watcher.groups.items()) if group.seen]
        for what, text, value in GAUGES:
            gauge = GaugeMetricFamily(f"allocator_group_{what}", text, labels=["group"])
            for name, group in groups:
                gauge.add_metric([name], value(group))
            yield gauge
        count = CounterMetricFamily(
            "allocator_group_partitions_moved",
            "Partitions that changed owner, since this server watches",
            labels=["group"],
        )
        times = SummaryMetricFamily(
            "allocator_group_rebalance_seconds",
            "Rebalances that this server saw wholly, and their length from the first news on",
            labels=["group"],
        )
        unnoticed = CounterMetricFamily(
            "allocator_group_unnoticed_seconds",
            "At most so long partitions stood still before crashes were noticed: the members' session timeouts",
            labels=["group"],
        )
        for name, group in groups:
            count.add_metric([name], group.history.moved)
            times.add_metric([name], count_value=group.history.count, sum_value=group.history.seconds)
            unnoticed.add_metric([name], group.history.unnoticed_s)
        yield from (count, times, unnoticed)
        yield from self._by_topic(groups)

    def _by_topic(self, groups: list[tuple[str, Group]]) -> Iterator[Metric]:
        labels = ["group", "topic"]
        lag = GaugeMetricFamily(
            "allocator_group_lag",
            "Records between committed offsets and the ends of the logs, of topics that it reads; absent if unknown",
            labels=labels,
        )
        committed = GaugeMetricFamily(
            "allocator_group_committed_offsets", "Sum over the partitions that have one", labels=labels
        )
        ends = GaugeMetricFamily(
            "allocator_group_end_offsets", "Sum over the partitions; absent if one is unknown", labels=labels
        )
        for name, group in groups:
            logs = group.report.logs
            by_topic: dict[str, list[TopicPartition]] = {}
            for partition in group.report.current:
                by_topic.setdefault(partition.topic, []).append(partition)
            totals = {topic: logs.lag_of(partitions).total for topic, partitions in by_topic.items()}
            # no sample is better than a sum that leaves partitions out
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
