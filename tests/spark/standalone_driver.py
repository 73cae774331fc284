"""A driver for the standalone cluster: reads a topic slowly, and prints what it found as JSON.

standalone_driver.py MASTER BROKERS TOPIC DIRECTORY
"""

from __future__ import annotations

import json
import sys

from spark_settings import STANDALONE

from allocator.spark import session


def main(master: str, brokers: str, topic: str, directory: str) -> None:
    spark = session("standalone", master, STANDALONE)

    def slowly(batches):  # type: ignore[no-untyped-def]
        import os
        import pathlib
        import time

        for batch in batches:
            pathlib.Path(directory, f"task-{os.getpid()}-{time.monotonic_ns()}").touch()
            time.sleep(0.5)
            yield batch

    options = {"brokers": brokers, "topics": topic, "max_records_per_partition": "500"}
    frame = spark.read.format("allocator").options(**options).load().select("partition", "offset")
    rows = frame.mapInArrow(slowly, "partition int, offset bigint").collect()
    print("RESULT " + json.dumps(sorted((row.partition, row.offset) for row in rows)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
