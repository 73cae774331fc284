"""A Prometheus collector for one process of a mirror, and its server.

It needs prometheus-client: `pip install 'zk-partition-allocator[web]'`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterator
from itertools import groupby

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from allocator.migrate import Mirror
from allocator.web.families import counter, gauge
from allocator.web.guard import Guard
from allocator.web.server import Health, Site, serve

GROUP = ["group"]
TOPIC = ["group", "topic"]


class MirrorCollector(Collector):
    """The metrics of one process of a mirror, counted since its start. A scrape sends no request.

    The processes of a mirror share its partitions, so sums over the processes are metrics of the mirror.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def collect(self) -> Iterator[Metric]:
        mirror, name = self._mirror, self._mirror.settings.group
        progress = mirror.progress()
        by_topic = groupby(sorted(progress), lambda each: each.partition.topic)
        lags = [([name, topic], mirror.lag(list(of_topic))) for topic, of_topic in by_topic]
        yield gauge(
            "allocator_mirror_lag",
            "Records of the old cluster that are not mirrored yet; absent if unknown for any partition",
            TOPIC,
            ((labels, lag.records) for labels, lag in lags),
        )
        yield gauge(
            "allocator_mirror_lag_seconds",
            "Age of the oldest record that is not mirrored yet; absent if unknown for any partition",
            TOPIC,
            ((labels, lag.seconds) for labels, lag in lags),
        )
        for what, text, counts in (
            ("records", "Records that the new cluster acknowledged", mirror.records_of),
            ("bytes", "Bytes that the new cluster acknowledged", mirror.bytes_of),
        ):
            samples = [([name, topic], count) for topic, count in sorted(counts.items())]
            yield counter(f"allocator_mirror_{what}", f"{text}, since the start", TOPIC, samples)
        for what, text, number in (
            ("lost_offsets", "Offsets that the old cluster deleted before they were mirrored", mirror.lost_at_source),
            ("already_present", "Records that the new cluster already had after a crash, so they were not sent again",
             mirror.already_present),
            ("duplicated", "Records of the new cluster that another producer wrote, or that were written twice",
             mirror.duplicated),
            ("errors", "Failures that the mirror retried", mirror.errors),
        ):  # fmt: skip
            yield counter(f"allocator_mirror_{what}", f"{text}, since the start", GROUP, [([name], number)])
        last_ms = mirror.last_progress_ms
        for what, text, value in (
            ("eta_seconds",
             "Time until nothing is left, at the rates of the last minute; absent if unknown, or if it never comes",
             mirror.lag(progress).eta_s),
            ("partitions", "Partitions that this process mirrors", len(progress)),
            ("waiting_partitions", "Partitions of this process that wait, for example for a leader",
             sum(each.waits is not None for each in progress)),
            ("stopped_topics", "Topics that are not mirrored until an operator decides how to continue (see the log)",
             len(mirror.stopped)),
            ("up", "1 while the mirror reaches its servers, 0 while it retries", float(mirror.problem is None)),
            ("last_progress_timestamp_seconds",
             "When the new cluster last acknowledged records, or when the process started",
             None if last_ms is None else last_ms / 1000),
        ):  # fmt: skip
            yield gauge(f"allocator_mirror_{what}", text, GROUP, [([name], value)])


@contextlib.asynccontextmanager
async def serve_mirror(mirror: Mirror, host: str, port: int, hosts: Collection[str]) -> AsyncIterator[int]:
    """Serves /metrics and /health during the block, and yields the port. Raises PortTaken."""
    registry = CollectorRegistry()
    registry.register(MirrorCollector(mirror))
    for collector in (ProcessCollector, PlatformCollector):
        collector(registry=registry)
    health = Health(ready=lambda: [] if mirror.problem is None else [mirror.problem])
    async with serve(Site(Guard.make(hosts, None), registry, health), host, port) as bound:
        yield bound
