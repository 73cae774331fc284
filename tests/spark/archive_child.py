"""A process that archives a generated topic, to be killed: DIRECTORY SIZE,SIZE,... OFFSETS_PER_COMMIT."""

from __future__ import annotations

import sys

from allocator.spark import session
from allocator.spark.archive import archive
from tests.spark.spark_records import FakeTopic
from tests.spark.spark_settings import CHEAP, LOCAL

if __name__ == "__main__":
    directory, sizes, most = sys.argv[1:]
    spark = session("child", "local[1]", {**LOCAL, **CHEAP, "spark.local.dir": f"{directory}-scratch"})
    archive(FakeTopic([int(size) for size in sizes.split(",")]), directory, offsets_per_commit=int(most), spark=spark)
