"""The report of the consumer bench, from the output of its workers."""

from __future__ import annotations

import struct
import time
import xml.etree.ElementTree as ElementTree

import pytest

from bench.consume.report import Case, markdown, median, per_cpu_s, svg
from bench.consume.settings import STAMP, Job, records_of
from bench.consume.sink import Sink, peak_rss_mb


def figures(cpu_s: float, count: int = 1000) -> dict[str, float]:
    return {"count": count, "bytes": 10 * count, "wall_s": 2 * cpu_s, "cpu_s": cpu_s, "first_s": 0.1, "rss_mb": 50.0}


CASE = Case(
    "v2, 100 B, none", {"ours, records": figures(1.0), "confluent-kafka": figures(4.0)}, {"aiokafka": "died <&>"}
)


def test_medians_are_of_each_figure() -> None:
    runs = [{"a": a, "late_ms": {"p50": b}, "first_s": None} for a, b in ((1, 9), (2, 7), (9, 8))]
    assert median(runs) == {"a": 2, "late_ms": {"p50": 8}, "first_s": None}


def test_ratios_compare_records_per_cpu_second_with_the_reference() -> None:
    assert per_cpu_s(figures(0.5)) == 2000
    table = markdown("throughput", [CASE], "confluent-kafka")
    assert "| v2, 100 B, none | ours, records | 0.001 | 1000.000 | 4.00 | 50 |" in table
    assert "|  | confluent-kafka | 0.000 | 4000.000 | 1.00 | 50 |" in table
    assert "|  | aiokafka | died <&> | | | |" in table


def test_the_picture_is_one_and_its_bars_are_in_proportion() -> None:
    tree = ElementTree.fromstring(svg([CASE], "a < b"))
    widths = [rect.attrib["width"] for rect in tree.iter("{http://www.w3.org/2000/svg}rect")]
    bars = [float(width) for width in widths if width != "100%"]
    assert bars[0] / bars[1] == pytest.approx(4, rel=0.01)


def test_a_run_ends_by_count_or_by_time() -> None:
    job = Job("throughput", "b", "z", "t", 1, records=3)
    assert Job.load(job.dump()) == job
    sink = Sink(job)
    sink.values([b"12", b"3"])
    assert (sink.count, sink.size, sink.done) == (2, 3, False)
    sink.counted(1, 10)
    assert sink.done
    assert sink.report()["first_s"] is not None
    assert not Sink(Job("idle", "b", "z", "t", 1, seconds=60)).done


def test_latencies_are_told_by_their_percentiles() -> None:
    sink = Sink(Job("latency", "b", "z", "t", 1, seconds=60))
    sink.values([struct.pack(STAMP, time.monotonic_ns() - 5_000_000)] * 100)
    late = sink.report()["late_ms"]
    assert set(late) == {"p50", "p99", "p99.9"}
    assert 5 <= late["p50"] <= late["p99.9"] < 5_000


def test_the_volume_bounds_the_number_of_records() -> None:
    assert records_of(10, 2_000_000) == 2_000_000
    assert records_of(100_000, 2_000_000) == 4194
    assert peak_rss_mb() > 1
