"""A process that archives a made topic, to be killed: DIRECTORY SIZE,SIZE,... OFFSETS_PER_COMMIT."""

from __future__ import annotations

import sys

from spark_classes import default_archive, using
from spark_records import Made
from spark_settings import CHEAP, JVM

from allocator.spark import session
from allocator.spark.archive import archive

if __name__ == "__main__":
    directory, sizes, most = sys.argv[1:]
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{JVM} {using(default_archive())}",
        "spark.local.dir": directory + "-scratch",
        "spark.sql.shuffle.partitions": "1",
        **CHEAP,
    }
    spark = session("child", "local[1]", conf)
    archive(Made([int(size) for size in sizes.split(",")]), directory, offsets_per_commit=int(most), spark=spark)
