"""Archives as tables in an object store, on moto's server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_records import Made

from allocator.spark.archive import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
catalog = pytest.importorskip("pyiceberg.catalog", reason="the extra `iceberg` is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

# prints its port, and ends with its standard input
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def bucket(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """s3://lake on a server of its own; the driver and the Python workers know where it is."""
    import boto3

    # a process of its own: deltalake holds Python's lock while it waits for a response
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    workers = spark.sparkContext.environment
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(workers, name, value)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="lake")
    yield "s3://lake"
    server.communicate()


def test_a_delta_table(spark: SparkSession, bucket: str) -> None:
    for count in (20, 50):
        archive(Made([count, 5]), bucket, format="delta", offsets_per_commit=20, spark=spark)
    rows = deltalake.DeltaTable(f"{bucket}/topic=made").to_pyarrow_table(columns=["partition", "offset"])
    assert sorted(map(tuple, (row.values() for row in rows.to_pylist()))) == [
        *((0, offset) for offset in range(50)),
        *((1, offset) for offset in range(5)),
    ]


def test_an_iceberg_table(spark: SparkSession, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", bucket)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setattr(catalog, "_ENV_CONFIG", type(catalog._ENV_CONFIG)())
    for count in (20, 50):
        archive(Made([count, 5]), "lake.raw", format="iceberg", offsets_per_commit=20, spark=spark)
    table = catalog.load_catalog("lake").load_table("raw.made")
    assert table.location().startswith(bucket)
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow()
    assert sorted(map(tuple, (row.values() for row in rows.to_pylist()))) == [
        *((0, offset) for offset in range(50)),
        *((1, offset) for offset in range(5)),
    ]
