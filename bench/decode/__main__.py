"""Measures the time to decode a record set, the time to copy and checksum it, and decoding in two threads."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatch
from kafka.errors import UnsupportedCodecError

from .data import Sample, sample
from .decoders import CONTENDERS, REFERENCE, limit


def best_ns(functions: dict[str, Callable[[bytes], int]], data: bytes, seconds: float) -> dict[str, float]:
    """Returns the CPU time of each contender's fastest run, in ns. They run alternately, so load affects all."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function(data)
    until = time.monotonic() + seconds * len(functions)
    rounds = 0
    while time.monotonic() < until or rounds < 3:
        rounds += 1
        for name, function in functions.items():
            # repeat a fast contender, whose single runs vary more
            for _ in range(1 if best[name] > 5e6 else 10):
                began = time.thread_time_ns()
                function(data)
                best[name] = min(best[name], time.thread_time_ns() - began)
    return best


def run(made: Sample, seconds: float) -> tuple[dict[str, float], list[str]]:
    """Returns ns per record for each contender, and the rows of the table."""
    functions: dict[str, Callable[[bytes], int]] = {"limit": limit(made.data)}
    lacking = []
    for name, function in CONTENDERS.items():
        if function is None:
            continue
        try:
            count = function(made.data)
        except UnsupportedCodecError as error:  # kafka-python needs optional packages for codecs
            lacking.append(f"{name} ({type(error).__name__})")
            continue
        if count != made.records:
            raise SystemExit(f"{made.name}: {name} reads {count} records of {made.records}")
        functions[name] = function
    took = best_ns(functions, made.data, seconds)
    rows = []
    aiokafka = took["aiokafka, records"]
    for name, ns in took.items():
        of_limit = took["limit"] / ns
        rows.append(
            f"| {made.name} | {name} | {ns / made.records:.1f} | {made.records / ns * 1e3:.2f} "
            f"| {len(made.data) / ns:.2f} | {of_limit:.0%} | {aiokafka / ns:.2f} |"
        )
    if lacking:
        rows.append(f"| {made.name} | not supported: {', '.join(lacking)} | | | | | |")
    return {name: ns / made.records for name, ns in took.items()}, rows


def rate(made: Sample, seconds: float) -> float:
    """Decodes to columns again and again for `seconds`, and returns the records per second."""
    function = CONTENDERS[REFERENCE]
    assert function is not None
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        function(made.data)
        count += made.records
    return count / (time.perf_counter() - began)


def at_once(made: Sample, seconds: float) -> str:
    """Returns a row with the rates of one thread, two threads and two processes.

    Two processes show what the machine can do at present, because they share no interpreter lock.
    """
    took: dict[str, list[float]] = {"one": [], "two": [], "processes": []}
    with ProcessPoolExecutor(2, get_context("fork")) as processes, ThreadPoolExecutor(2) as threads:
        list(processes.map(rate, [made] * 2, [0.01] * 2))
        for _ in range(5):
            took["one"].append(rate(made, seconds))
            took["two"].append(sum(threads.map(rate, [made] * 2, [seconds] * 2)))
            took["processes"].append(sum(processes.map(rate, [made] * 2, [seconds] * 2)))
    one, two, both = (max(rates) / 1e6 for rates in took.values())
    return f"| {made.name} | {one:.2f} | {two:.2f} | {both:.2f} | {two / both:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 100_000], help="bytes per value")
    parser.add_argument("--codecs", nargs="+", default=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--codec-size", type=int, default=100, help="bytes per value in compressed samples")
    parser.add_argument(
        "--batch-bytes", type=int, nargs="+", default=[16384], help="bytes per batch before compression"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to run each contender on each sample")
    parser.add_argument("--json", type=Path, help="also write the ns per record to this file")
    options = parser.parse_args()

    if "_crecords" not in DefaultRecordBatch.__module__:
        print("aiokafka runs without its compiled extension\n")
    samples = [
        sample(size, codec, batch_bytes=batch_bytes)
        for batch_bytes in options.batch_bytes
        for codec in options.codecs
        for size in (options.sizes if codec == "none" else [options.codec_size])
    ]
    samples.append(sample(options.codec_size, "none", magic=1))
    print("| values | decoder | ns/record | M records/s | GB/s | % of limit | aiokafka's ns / its ns |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for made in samples:
        found[made.name], rows = run(made, options.seconds)
        print("\n".join(rows), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    if CONTENDERS[REFERENCE] is not None:
        print(
            "\n| values | one thread, M records/s | two threads | two processes | threads / processes |\n"
            "|---|---|---|---|---|"
        )
        for made in samples:
            print(at_once(made, options.seconds), flush=True)


if __name__ == "__main__":
    main()
