"""Declares the kind, the default and the text of each setting of `Producer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from allocator.core.settings import Number, Setting, Text, Whole
from allocator.producer.encoding import TARGET_BYTES
from allocator.types import Acks, Compression

PRODUCING: Final[Mapping[str, Setting]] = {
    "client_id": Setting(
        Text(check=str.encode), None, "Name of this client in the brokers' logs and quotas. None: `allocator`."
    ),
    "acks": Setting(
        Text(tuple(map(str, get_args(Acks)))),
        "all",
        "Replicas that must have a record: `all` that are in sync, or 1, the leader alone. With 1, a record is lost if "
        "its leader fails too early, and a retry may write records twice.",
    ),
    "linger_s": Setting(
        Number(0, 60),
        0.005,
        "Seconds for which a batch waits for further records. Higher: larger batches and less CPU; lower: less "
        "latency.",
    ),
    "compression": Setting(
        Text(get_args(Compression)), None, "Compresses batches. `zstd` needs brokers from 2.1, `lz4` from 0.8.2."
    ),
    "buffer_bytes": Setting(
        Whole(1, 2**40, unit="bytes"),
        67_108_864,
        "Bytes of records that are not acknowledged, for all partitions together; `send` waits while there are more. "
        "A record takes about 200 bytes of memory beside its own. Higher: survives longer pauses of brokers; lower: "
        "less memory.",
    ),
    "batch_bytes": Setting(
        Whole(1, unit="bytes"),
        TARGET_BYTES,
        "Bytes of one batch before compression. Higher: fewer requests; lower: less latency of other partitions.",
    ),
    "delivery_timeout_s": Setting(
        Number(0, 86400, above=True),
        60.0,
        "Seconds from `send` until a record that no broker acknowledges fails. Higher: survives longer outages; lower: "
        "an outage is reported sooner. Brokers abort a transaction after this time, or 15 minutes if it is longer.",
    ),
}

PRODUCING_DEFAULT: Final[Mapping[str, Any]] = {name: each.default for name, each in PRODUCING.items()}
