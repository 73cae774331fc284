"""Archives as tables in an object store, on moto's server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.spark_records import FakeTopic
from tests.spark.tables import DeltaTables, IcebergTables, load_catalog, use_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

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
    pytest.importorskip("moto.server", reason="moto is not installed")
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


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_in_an_object_store_has_each_record_once(
    format: str, spark: SparkSession, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format == "delta":
        tables: Any = DeltaTables(bucket)
    else:
        tables = IcebergTables(tmp_path, monkeypatch)
        use_catalog(monkeypatch, warehouse=bucket, s3__endpoint=os.environ["AWS_ENDPOINT_URL"])
        tables.catalog = load_catalog("lake")
    for count in (20, 50):
        tables.archive(FakeTopic([count, 5]), offsets_per_commit=20, spark=spark)
    assert tables.offsets() == {0: list(range(50)), 1: list(range(5))}
