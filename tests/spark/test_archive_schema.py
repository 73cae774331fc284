"""Decoded columns of keys and values beside the original bytes."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from spark_records import Row, frame

from allocator.errors import ConfigError
from allocator.spark.archive.schema import decoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "state", "type": ["null", {"type": "enum", "name": "State", "symbols": ["new", "paid"]}]},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
    ],
}
ORDER = {
    "id": 7,
    "state": "paid",
    "before": "new",
    "tags": {"a": ["x", "y"]},
    "at": datetime(2024, 1, 2, tzinfo=timezone.utc),
    "amount": Decimal("12.50"),
}


def encoded(order: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), order)
    return out.getvalue()


def test_avro_and_json_are_decoded_and_other_bytes_are_null(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(SCHEMA))
    data = encoded(ORDER)
    log = [Row(b'{"n": 1, "s": ["a"]}', data), Row(b"no json", data[:-3]), Row(None, None), Row(b"{}", data + b"x")]
    rows = frame(spark, [("t", [log])])
    found = decoder("json:n int, s array<string>", f"avro:{path}")(rows).orderBy("offset").collect()
    assert bytes(found[0].value) == data
    value = found[0].value_decoded.asDict()
    at = value.pop("at")
    assert at.astimezone(timezone.utc) == ORDER["at"]
    assert value == {key: part for key, part in ORDER.items() if key != "at"}
    assert [row.value_decoded for row in found[1:]] == [None, None, None]
    assert found[0].key_decoded.asDict() == {"n": 1, "s": ["a"]}
    assert found[2].key_decoded is None
    framed = frame(spark, [("t", [[Row(b"k\xff", b"\0\0\0\0\7" + data), Row(b"k", data)]])])
    first, second = decoder("string", f"confluent-avro:{path}")(framed).orderBy("offset").collect()
    assert (first.key_decoded, second.key_decoded) == (None, "k")
    assert first.value_decoded.id == 7
    assert second.value_decoded is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("jsn:a int", "one of string"),
        ("json:", "one of string"),
        ("json:a itn", "DDL"),
        ("avro:/nowhere.avsc", "/nowhere.avsc"),
    ],
)
def test_an_invalid_schema_is_refused(spark: SparkSession, spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        decoder(value=spec)
