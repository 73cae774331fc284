"""A process that archives one partition to a table without Spark, to be killed: FORMAT LOCATION RECORDS PER_COMMIT."""

from __future__ import annotations

import sys

import pyarrow

from allocator.spark.archive.commits import DataFile, Manifest
from allocator.spark.archive.files import _write_task
from allocator.spark.archive.store import open_store

SCHEMA = pyarrow.schema([("partition", pyarrow.int32()), ("offset", pyarrow.int64())])


def archive_partition(format: str, location: str, records: int, most: int) -> None:
    _, store = open_store(format, location, "orders")
    found = store.live()
    number, at = (found[0].number, found[0].ranges[0][1]) if found else (0, 0)
    while at < records:
        end, number, staged = min(at + most, records), number + 1, store.staged_name()
        batch = pyarrow.record_batch([pyarrow.array([0] * (end - at), pyarrow.int32()), range(at, end)], schema=SCHEMA)
        base = f"{store.location()}/{staged}"  # type: ignore[union-attr]
        (written,) = _write_task([batch], base, SCHEMA, ["partition"] if format == "delta" else [])
        files = tuple(DataFile(**row) for row in written.to_pylist())
        ranges = {0: (at, end)}
        store.commit(Manifest(number, "append", "orders", None, None, ranges, files, staged, "now"))
        at = end


if __name__ == "__main__":
    archive_partition(*sys.argv[1:3], *map(int, sys.argv[3:]))
