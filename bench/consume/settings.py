"""The settings of the contenders: the same limits for all, or values that a client's documentation recommends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["CODECS", "FORMATS", "SIZES", "TURN", "Job", "records_of"]

SIZES = (10, 100, 1_000, 100_000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# record format -> (Kafka version that writes it, topic settings)
FORMATS = {"v2": ("3.9.1", {}), "0.10": ("2.8.2", {"message.format.version": "0.10.2"})}

# maximum bytes of a response, of one partition in it, and of prefetched records, in clients with these settings
MAX_BYTES = 52_428_800
PARTITION_BYTES = 1_048_576
PREFETCH_BYTES = 64 << 20

TURN = 3
"""Number of records in a turn; see `turns`."""

STAMP = "<q"
"""Format of the first 8 bytes of a value in a latency run: time.monotonic_ns() when it was sent."""


@dataclass(frozen=True)
class Job:
    """The task of one worker process."""

    kind: str
    """throughput or turns: read `records`; latency or idle: run for `seconds`; cold: join a group, read one record."""
    bootstrap: str
    zookeeper: str
    topic: str
    partitions: int
    records: int = 0
    seconds: float = 0.0
    group: str = ""
    port: int = 0
    """For turns: UDP port on 127.0.0.1 to which the worker sends the number of values that it reads."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Job:
        return cls(**json.loads(text))


def records_of(size: int, most: int, volume: int = 400 << 20) -> int:
    """Returns how many records of `size` bytes to read: at most `most` and `volume` bytes, but at least 500."""
    return max(500, min(most, volume // size))
