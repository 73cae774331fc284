"""Freezes and kills consumer processes that write their effects to real databases."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.testing import LocalCluster, wait_until
from tests.sinks.sink_member import Store

HERE = Path(__file__).parent
pytestmark = pytest.mark.servers


class Member:
    """One process that writes effects."""

    def __init__(self, store: Store, consumer: dict[str, Any], freeze_at: int | None = None) -> None:
        settings = {
            "place": store.place,
            "effects": store.effects,
            "offsets": store.sink.table,
            "freeze_at": freeze_at,
            "consumer": consumer,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sink_member.py"), json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )

    def word(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(*arguments: Any, **options: Any) -> Member:
        members.append(Member(*arguments, **options))
        return members[-1]

    yield make
    for member in members:
        member.end()


def settings(cluster: LocalCluster, topic: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "topics": [topic],
        "brokers": cluster.bootstrap,
        "zookeeper": f"{cluster.zookeeper}/{group}",
        "group": group,
        "joins": {"session_timeout_s": 2.0},
        "prefetch_bytes": 3000,
        "max_wait_s": 0.05,
        **more,
    }


def test_writes_of_a_process_that_thaws_after_its_successor_wrote_are_rejected(
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    new_store: Callable[[], Store],
    start: Callable[..., Member],
) -> None:
    topic, store = topic_factory(1), new_store()
    kafka_cluster.produce(topic, [b"%d" % n for n in range(600)])
    consumer = settings(kafka_cluster, topic, group)
    frozen = start(store, consumer, freeze_at=300)
    while frozen.word() != "freezes":
        assert frozen.process.poll() is None
    before = store.written()
    start(store, consumer)
    wait_until(lambda: store.written() == 600, 60, "the successor's effects")
    frozen.process.send_signal(signal.SIGCONT)
    assert frozen.word() == "refused"
    assert 0 < before <= 300
    assert store.counts() == {(0, n): 1 for n in range(600)}


@pytest.mark.parametrize(
    ("place", "membership", "kills"), [("postgres", "zookeeper", 2), ("sqlite", "kafka", 1)], indirect=["place"]
)
def test_killed_at_any_moment_each_of_2000_effects_is_there_once(
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    new_store: Callable[[], Store],
    start: Callable[..., Member],
    membership: str,
    kills: int,
) -> None:
    topic, store, chance = topic_factory(4), new_store(), random.Random(group)
    kafka_cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(2000)])
    more = {"joins": {"session_timeout_s": 6.0, "heartbeat_interval_s": 0.3}} if membership == "kafka" else {}
    consumer = settings(kafka_cluster, topic, group, membership=membership, **more)
    for _ in range(kills):
        # at most all of them: a member may have written on for long before the kill reached it
        member, aim = start(store, consumer), min(store.written() + chance.randrange(1, 500), 2000)
        wait_until(lambda aim=aim: store.written() >= aim, 60, f"{aim} effects", interval_s=0.001)  # type: ignore[misc]
        member.end()
    start(store, consumer)
    wait_until(lambda: store.written() >= 2000, 120, "all effects")
    assert store.counts() == {(part, n): 1 for part in range(4) for n in range(500)}
