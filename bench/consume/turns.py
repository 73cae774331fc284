"""Measures small batches one at a time: the next batch is sent when the consumer has the last one.

Each turn is one fetch with one response. So the CPU time of a turn is the cost of a fetch of a few records, and other
load on the machine does not change the number of records in it.
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
    """Sends `turns` batches. Returns percentiles of the milliseconds until the handler has a batch."""
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
