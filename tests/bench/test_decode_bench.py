"""Every decoder of the decode bench reads its data; nothing is timed."""

from __future__ import annotations

import pytest

from bench.decode.__main__ import run
from bench.decode.data import sample
from bench.decode.decoders import CONTENDERS


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("magic", [1, 2])
def test_every_contender_reads_every_record(codec: str, magic: int) -> None:
    if magic == 1 and codec == "zstd":
        pytest.skip("zstd came with v2")
    data = sample(100, codec, magic=magic, set_bytes=50_000)
    found, rows = run(data, 0.0)
    lacking = [name for name in CONTENDERS if not any(f"| {name} |" in row for row in rows)]
    assert set(found) == {"limit", *CONTENDERS} - set(lacking)
    assert all("kafka-python" in name or CONTENDERS[name] is None for name in lacking), lacking
    assert any("| aiokafka, records |" in row for row in rows)
