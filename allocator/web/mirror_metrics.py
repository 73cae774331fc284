"""A Prometheus collector for one process of a mirror, and its server.

It needs prometheus-client: `pip install 'zk-partition-allocator[web]'`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allocator.migrate.mirror import Mirror
from allocator.web.guard import Guard
from allocator.web.server import Health, Site, serve

__all__ = ["MirrorCollector", "serve_mirror"]

GROUP = ["group"]
TOPIC = ["group", "topic"]


class MirrorCollector(Collector):
    """The metrics of one process; all count since its start. A scrape sends no request.

    The processes of a mirror share the partitions, so sums over all of them are those of the mirror.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def collect(self) -> Iterator[Metric]:
        mirror, name = self._mirror, self._mirror.settings.group
        progress = mirror.progress()
        yield _gauge("partitions", "Partitions that this process mirrors", name, len(progress))
        lag = GaugeMetricFamily(
            "allocator_mirror_lag",
            "Records of the old cluster that are not mirrored yet; absent if one partition's is unknown",
            labels=TOPIC,
        )
        lags: dict[str, int | None] = {}
        for each in progress:
            before = lags.get(each.partition.topic, 0)
            lags[each.partition.topic] = None if before is None or each.lag is None else before + each.lag
        for topic, records in sorted(lags.items()):
            if records is not None:
                lag.add_metric([name, topic], records)
        yield lag
        for what, text, counts in (
            ("records", "Records that the new cluster acknowledged", mirror.records_of),
            ("bytes", "Bytes that the new cluster acknowledged", mirror.bytes_of),
        ):
            counter = CounterMetricFamily(f"allocator_mirror_{what}", f"{text}, since the start", labels=TOPIC)
            for topic, count in sorted(counts.items()):
                counter.add_metric([name, topic], count)
            yield counter
        for what, text, number in (
            ("lost_offsets", "Offsets that the old cluster deleted before they were mirrored", mirror.lost_at_source),
            ("already_present", "Records that the new cluster had after a crash, and that were not sent again",
             mirror.already_present),
            ("duplicated", "Records of the new cluster that are of another producer, or written twice",
             mirror.duplicated),
            ("errors", "Failures after which the mirror tried again", mirror.errors),
        ):  # fmt: skip
            counter = CounterMetricFamily(f"allocator_mirror_{what}", f"{text}, since the start", labels=GROUP)
            counter.add_metric([name], number)
            yield counter
        yield _gauge(
            "stopped_topics", "Topics that wait for --recreated, as they were deleted and created again", name,
            len(mirror.stopped),
        )  # fmt: skip
        yield _gauge("up", "1 while the mirror has its servers, 0 while it tries again", name, mirror.problem is None)
        last = GaugeMetricFamily(
            "allocator_mirror_last_progress_timestamp_seconds",
            "When the new cluster last acknowledged records, or when the process began",
            labels=GROUP,
        )
        if mirror.last_progress_ms is not None:
            last.add_metric([name], mirror.last_progress_ms / 1000)
        yield last


def _gauge(what: str, text: str, group: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(f"allocator_mirror_{what}", text, labels=GROUP)
    gauge.add_metric([group], float(value))
    return gauge


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
