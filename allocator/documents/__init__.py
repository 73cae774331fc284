"""Stored JSON objects, of znodes and records: bounds and checks of what strangers may have written.

`checked` checks a document field by field. `packed` compresses, and names many partitions in few bytes. `files` writes
files atomically.
"""

from __future__ import annotations

from allocator.documents.checked import (
    InvalidZnode,
    check_list,
    check_mapping,
    check_number,
    check_real,
    check_text,
    check_texts,
    encode_object,
    optional,
    parse_object,
)
from allocator.documents.files import read_json, refuse_existing, write_file, write_json
from allocator.documents.packed import (
    INFLATED_BYTES,
    MAX_PARTITIONS,
    SHARD_BYTES,
    SMALL_BYTES,
    SMALL_PARTITIONS,
    Counts,
    InflateBudget,
    RangesOfMembers,
    deflate,
    from_ranges,
    inflate,
    quick,
    to_ranges,
)
