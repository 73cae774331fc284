"""A driver whose processes are killed at chosen steps: stepping_jobs.py MASTER stream|archive ..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from allocator.spark import session
from tests.spark import stepping
from tests.spark.spark_settings import CLUSTER


def stream(spark: Any, directory: str, options: str) -> None:
    """Writes the rows of each micro-batch to a directory of its own, until the test says that it has all."""
    spark.dataSource.register(stepping.SteppingSource)
    rows = spark.readStream.format("allocator").options(**json.loads(options)).load()

    def write(frame: Any, number: int) -> None:
        columns = frame.select("partition", "offset")
        columns.write.mode("overwrite").parquet(f"{directory}/rows/batch={number}")
        stepping.step("sink")

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.start()
    while not Path(directory, "complete").exists():
        query.processAllAvailable()
    query.stop()


def archive(spark: Any, directory: str, format: str, brokers: str, topic: str) -> None:
    # not at the top: a stream needs neither, and starts often
    import pytest

    from tests.spark.tables import DeltaTables, IcebergTables, ParquetFiles

    def renamed(event: str, arguments: tuple[Any, ...]) -> None:
        # a commit of a Parquet archive links its manifest, and then renames the directory of its files
        if event in ("os.link", "os.rename") and directory in str(arguments[0]):
            stepping.step(event)

    sys.addaudithook(renamed)
    tables: Any = {
        "parquet": lambda: ParquetFiles(Path(directory), spark),
        "delta": lambda: DeltaTables(directory),
        "iceberg": lambda: IcebergTables(Path(directory), pytest.MonkeyPatch()),
    }[format]()
    tables.topic = topic

    def mark(rows: Any) -> Any:
        rows = rows.drop("headers")
        return rows.mapInArrow(lambda batches: stepping.each_batch("read", batches), rows.schema)

    tables.archive(
        stepping.SteppingTopic(brokers, topic),
        transform=mark,
        offsets_per_commit=80,
        progress=lambda done, _: done and stepping.step("committed"),
        spark=spark,
    )
    print("RESULT", json.dumps(tables.offsets()), flush=True)


if __name__ == "__main__":
    master, job, *arguments = sys.argv[1:]
    stepping.as_driver()
    {"stream": stream, "archive": archive}[job](session(job, master, CLUSTER), *arguments)
