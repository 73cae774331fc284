"""Hypothesis strategies for record sets, and kafka-python's decoder to compare with."""

from __future__ import annotations

import os
from typing import Any, Optional

from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from tests.fetch.fetch_decoders import Row
from tests.fetch.fetch_encode import APPEND_TIME, R, batch, messages

# factor for the number of examples, for a search of rare cases
FUZZ_TIMES = int(os.environ.get("ALLOCATOR_FUZZ_TIMES", "1"))
LOWEST, HIGHEST = 1 - (1 << 63), (1 << 63) - 1

# around the lengths that need another varint byte, and the largest length that an Arrow view holds itself
sizes = st.sampled_from([0, 1, 11, 12, 13, 63, 64, 8191, 8192])
field = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200), sizes.map(bytes))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
near = st.integers(1_700_000_000_000, 1_700_000_020_000)
# the timestamps of a v2 batch must be less than 64 bits apart
v2_times = st.one_of(near, st.integers(0, 1 << 42))
old_times = st.one_of(st.just(-1), near, v2_times, st.sampled_from([LOWEST, HIGHEST]))


@st.composite
def record_sets(draw: st.DrawFn) -> bytes:
    """A few batches or message sets in codecs that kafka-python reads, with the gaps that compaction leaves."""
    out, base = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        magic, codec = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from(["none", "gzip"]))
        many, offset = [], -1
        for _ in range(draw(st.integers(1, 8))):
            offset += draw(st.one_of(st.just(1), st.integers(1, 300)))
            with_headers = draw(headers) if magic == 2 else ()
            many.append(R(offset, draw(field), draw(field), draw(v2_times if magic == 2 else old_times), with_headers))
        append_time = draw(st.one_of(st.none(), v2_times)) if magic else None
        if magic < 2:
            out.append(messages(many, magic, base, codec, append_time=append_time))
        elif append_time is None:
            out.append(batch(many, base, codec))
        else:
            out.append(batch(many, base, codec, attributes=APPEND_TIME, max_timestamp=append_time))
        base += many[-1].offset + 1 + draw(st.integers(0, 3))
    return b"".join(out)


def by_kafka_python(data: bytes) -> Optional[list[Row]]:
    """Returns the rows that kafka-python decodes, or None if it fails in any way."""
    out: list[Row] = []
    try:
        found = MemoryRecords(data)
        while found.has_next():
            many: Any = found.next_batch()
            if getattr(many, "is_control_batch", False):
                continue
            if not many.validate_crc():
                return None
            for r in many:
                if not r.validate_crc():
                    return None
                time = -1 if r.timestamp is None else r.timestamp
                out.append((r.offset, time, r.timestamp_type, r.key, r.value, list(r.headers)))
    except Exception:  # noqa: BLE001 - it fails on bad bytes with errors of many kinds
        return None
    return out
