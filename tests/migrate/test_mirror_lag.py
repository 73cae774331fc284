"""The lag of a mirror in records and seconds, and its remaining time. What is unknown is not shown as 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Optional

import pytest

from allocator.core.client.client import KafkaClient
from allocator.migrate import lag as lag_module
from allocator.migrate.lag import Lag, LagMeter, MirrorProgress
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import TopicPartition
from tests.migrate.mirroring import Pair

pytestmark = pytest.mark.deadline(180)

MakePair = Callable[..., Any]
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


class Clock:
    """The clocks that the meter reads, set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lag_module, "time", found)
    return found


def unconnected() -> LagMeter:
    return LagMeter(KafkaClient("nowhere:1"), {}, ())


def test_a_backlog_has_the_age_of_its_first_record_however_long_it_grows(clock: Clock) -> None:
    meter = unconnected()
    meter.sample({P: 100}, {P: 100})
    for n in range(3600):
        clock.now += 1
        meter.sample({P: 101 + n}, {P: 100})
    assert meter.age_s(P, 100, -1) == 3599
    age = meter.age_s(P, 2100, -1)
    assert age is not None
    assert 1599 <= age < 1599 + 3600 / 16, "an age may be too high, never too low"
    assert meter.age_s(P, 3700, -1) == 0.0


def test_the_age_of_what_was_there_at_first_is_that_of_its_timestamp_or_unknown(clock: Clock) -> None:
    meter = unconnected()
    meter.sample({P: 100}, {P: 0})
    assert meter.age_s(P, 50, -1) is None
    assert meter.age_s(P, 50, 990_000) == 10.0
    assert meter.age_s(P, 50, 2_000_000) == 0.0, "a producer's clock may be fast"


def test_an_end_is_unknown_once_nobody_has_said_it_for_a_while(clock: Clock) -> None:
    meter = unconnected()
    assert (meter.end(P, None), meter.end(P, 90), meter.age_s(P, 50, -1)) == (None, 90, None)
    meter.sample({P: 100, Q: 5}, {P: 0, Q: 5})
    clock.now += 10
    meter.sample({Q: 5}, {P: 0, Q: 5})
    assert (meter.end(P, 90), meter.end(Q, 6)) == (100, 6)
    clock.now += 10
    assert (meter.end(P, 90), meter.end(Q, None)) == (None, 5)
    unknown = [MirrorProgress(P, 0, None), MirrorProgress(Q, 5, 5, 0.0)]
    assert meter.total(unknown) == Lag(None, None, None)
    assert meter.total(unknown[1:]) == Lag(0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("copied", "produced", "lag", "eta_s"),
    [
        (100, 0, 5000, 50.0),
        (100, 20, 4000, 50.0),
        (100, 100, 5000, None),
        (100, 150, 5000, None),
        (0, 0, 5000, None),
        (100, 100, 200, 2.0),  # it follows the producers
    ],
)
def test_the_remaining_time_counts_what_is_produced_meanwhile(
    clock: Clock, copied: int, produced: int, lag: int, eta_s: Optional[float]
) -> None:
    meter = unconnected()
    rest = [MirrorProgress(P, 0, lag, 1.0)]
    for second in range(11):
        if second < 5:
            assert meter.total(rest).eta_s is None
        meter.sample({P: 100_000 + produced * second}, {P: copied * second})
        clock.now += 1
    assert meter.total(rest).eta_s == eta_s


@contextlib.asynccontextmanager
async def statuses(pair: Pair, *options: str) -> Any:
    """Runs the command, and yields a function that returns the next status as JSON."""
    chosen = pair.settings
    command = [sys.executable, "-m", "allocator.cli", "mirror", chosen.old, chosen.new, "--topic", pair.topic, "--json"]
    command += [
        "--group",
        chosen.group,
        "--replication",
        "1",
        "--status-s",
        "0.2",
        "--zookeeper",
        str(chosen.zookeeper),
    ]
    command += ["--old-zookeeper", str(chosen.old_zookeeper), "--create", *options]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    assert process.stdout is not None

    async def until(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert process.stdout is not None
        while True:
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line, "the mirror ended"
            status: dict[str, Any] = json.loads(line)
            if wanted(status):
                return status

    try:
        yield until
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


@pytest.mark.parametrize("old", ["0.9.0.1", "2.8.2"])
async def test_the_lag_counts_what_a_throttled_mirror_has_not_fetched(make_pair: MakePair, old: str) -> None:
    """Fetches are ahead of a throttle by megabytes, and learn the end of the log only with the next one."""
    pair = await make_pair(old, "3.9.1")
    await pair.fill(3000, "value" + "x" * 1000, batch_records=200)
    async with statuses(pair, "--throttle", "0.2") as until:
        first = await until(lambda status: status["records"] > 0 and status["lag"])
        await pair.fill(1000)
        grown = await until(lambda status: status["lag"] + status["records"] > 3000)
        assert grown["lag"] + grown["records"] <= 4000
        known = await until(lambda status: status["eta_s"] is not None)
        assert known["lag_s"] is None if old == "0.9.0.1" else known["lag_s"] > first["lag_s"] >= 0
        assert known["eta_s"] > 0


async def test_the_age_of_the_oldest_record_is_that_in_its_timestamp(make_pair: MakePair) -> None:
    pair = await make_pair("2.8.2", "3.9.1", config={"retention.ms": "-1"})
    hour_ago = int(time.time() * 1000) - 3_600_000
    rows = [ProducedRecord(b"k", bytes(1000), 0, hour_ago + n) for n in range(2000)]
    await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, rows, batch_records=50)
    async with statuses(pair, "--throttle", "0.05") as until:
        status = await until(lambda status: status["records"] > 0 and status["lag"])
        assert 3600 <= status["lag_s"] < 3700


async def test_the_lag_is_unknown_while_the_old_cluster_does_not_respond(
    make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]
) -> None:
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="2.8.2"))
    pair = await make_pair(old, "3.9.1")
    await pair.fill(20)
    async with statuses(pair) as until:
        status = await until(lambda status: status["lag"] == 0)
        assert (status["lag_s"], status["eta_s"], status["records"]) == (0.0, 0.0, 20)
        old.brokers[0].pause()
        try:
            status = await until(lambda status: status["lag"] is None)
            assert (status["lag_s"], status["eta_s"], status["partitions"]) == (None, None, 1)
        finally:
            old.brokers[0].resume()
        await until(lambda status: status["lag"] == 0)


async def test_the_lag_of_a_stopped_topic_is_unknown(make_pair: MakePair) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    await pair.fill(20)
    async with statuses(pair) as until:
        await until(lambda status: status["lag"] == 0 and status["records"] == 20)
        await asyncio.to_thread(pair.new.delete_topic, pair.topic)
        status = await until(lambda status: status["stopped"])
        assert (status["lag"], status["lag_s"], status["eta_s"]) == (None, None, None)
