"""The settings of all contenders: equal limits, or the values that a client's documentation recommends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["CODECS", "FORMATS", "SIZES", "TURN", "Job", "records_of"]

SIZES = (10, 100, 1_000, 100_000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# record format -> (version of Kafka with that format, settings of the topic)
FORMATS = {"v2": ("3.9.1", {}), "0.10": ("2.8.2", {"message.format.version": "0.10.2"})}

# most bytes of a response, of a partition in it, and of prefetched records, for all clients that have these settings
MAX_BYTES = 52_428_800
PARTITION_BYTES = 1_048_576
PREFETCH_BYTES = 64 << 20

TURN = 3
"""Records of one turn: a stream of few records that other load on the machine does not change."""

STAMP = "<q"
"""The first 8 bytes of a value in the latency run: time.monotonic_ns() when it was sent."""


@dataclass(frozen=True)
class Job:
    """The task of one worker process."""

    kind: str
    """throughput, turns: read `records`; latency, idle: run for `seconds`; cold: read the first record in a group."""
    bootstrap: str
    zookeeper: str
    topic: str
    partitions: int
    records: int = 0
    seconds: float = 0.0
    group: str = ""
    port: int = 0
    """Only for "turns": port of a UDP socket on 127.0.0.1 to which the worker sends the number of values read."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Job:
        return cls(**json.loads(text))


def records_of(size: int, most: int, volume: int = 400 << 20) -> int:
    """Returns how many records of `size` bytes to read: at most `most`, and at most `volume` bytes."""
    return max(500, min(most, volume // size))
