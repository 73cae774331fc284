"""Fills topics with realistic records, and produces a steady stream of records with timestamps."""

from __future__ import annotations

import itertools
import json
import struct
import sys
import time
from collections.abc import Iterator

from .settings import STAMP

__all__ = ["fill", "stream", "values"]

# records per batch, like a busy producer with a short linger
BATCH = 1000


def values(size: int) -> Iterator[bytes]:
    """Yields values of `size` bytes, without end. They compress like JSON events."""
    made = []
    for n in range(997):
        text = json.dumps(
            {"id": n * 7919 % 100_003, "user": f"u{n * 31 % 977}", "at": 1_700_000_000 + n * 13, "ok": n % 3 == 0}
        )
        made.append((text * (size // len(text) + 1)).encode()[:size])
    return itertools.cycle(made)


def fill(
    bootstrap: str, topic: str, partitions: int, count: int, size: int, codec: str, batch_records: int = BATCH
) -> None:
    """Writes `count` records, in batches of `batch_records` that go round robin to the partitions."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 100,
            "batch.num.messages": batch_records,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": 1_000_000,
        }
    )
    for n, value in zip(range(count), values(size)):
        while True:
            try:
                producer.produce(topic, value, partition=n // batch_records % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if n % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"some of {count} records of {topic} were not acknowledged")


def stream(bootstrap: str, topic: str, partitions: int, rate: int, seconds: float, size: int) -> None:
    """Writes `rate` records per second at a steady rate. Each value starts with the time at which it was sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "acks": 1})
    rest = bytes(size - struct.calcsize(STAMP))
    began = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - began) < seconds:
        for _ in range(int(passed * rate) - sent):
            producer.produce(topic, struct.pack(STAMP, time.monotonic_ns()) + rest, partition=sent % partitions)
            sent += 1
        producer.poll(0.001)
    producer.flush(30)


if __name__ == "__main__":
    bootstrap, topic, *numbers = sys.argv[1:]
    stream(bootstrap, topic, int(numbers[0]), int(numbers[1]), float(numbers[2]), int(numbers[3]))
