"""Creates Prometheus gauges and counters from samples."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Sample = tuple[list[str], "float | None"]
"""Label values and the value. None: the value is unknown, and the sample is left out."""


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: list[str],
    samples: Iterable[Sample],
) -> Metric:
    family = kind(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


gauge = partial(_family, GaugeMetricFamily)
counter = partial(_family, CounterMetricFamily)
