"""Sends a consumer a few records at a time: the next turn starts when the consumer has the records of the last turn.

So each turn is one fetch with one response, and its CPU time is the cost of fetching a few records. Load on the machine
does not change how many records a fetch returns.
"""

from __future__ import annotations

import select
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

from .settings import TURN

__all__ = ["drive"]

PATIENCE_S = 30.0


def drive(
    bootstrap: str, topic: str, partitions: int, turns: int, size: int, sock: socket.socket, alive: Callable[[], bool]
) -> dict[str, Any]:
    """Sends the records of all turns. Returns p50, p99 and mean of the milliseconds until the consumer has a turn."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "acks": 1})
    value = bytes(size)
    late = []
    for turn in range(turns):
        began = time.perf_counter()
        for _ in range(TURN):
            producer.produce(topic, value, partition=turn % partitions)
        producer.flush(PATIENCE_S)
        arrived = 0
        while arrived < TURN:
            if not select.select([sock], [], [], 0.5)[0]:
                if not alive() or time.perf_counter() - began > PATIENCE_S:
                    raise RuntimeError(f"turn {turn} of {turns} did not arrive")
                continue
            arrived += int.from_bytes(sock.recv(4), "big")
        late.append((time.perf_counter() - began) * 1000)
    late = sorted(late[turns // 10 :])
    return {f"p{share}": late[int(len(late) * share / 100)] for share in (50, 99)} | {"mean": statistics.mean(late)}
