"""Decoded columns of keys and values beside the original bytes."""

from __future__ import annotations

import io
import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from allocator.errors import ConfigError
from allocator.spark.archive.schema import decoder
from tests.spark.spark_records import Row, frame

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


def test_json_with_more_than_one_value_is_null(spark: SparkSession) -> None:
    values = [b'{"id": 1}', b' {"id": 1}\n', b'{"id": 1} x', b'{"id": 1}{"id": 2}', b'{"id": 1}, 2', b'{"id": 1}]', b""]
    values.append(b'{"id": 1}, 0] x')
    rows = decoder(value="json:id int")(frame(spark, [("t", [[Row(None, value) for value in values]])]))
    found = [row.value_decoded and row.value_decoded.id for row in rows.orderBy("offset").collect()]
    assert found == [1, 1, None, None, None, None, None, None]


def test_json_numbers_that_are_not_finite_are_decoded_as_by_from_json(spark: SparkSession) -> None:
    """Python's json writes them."""
    numbers = [math.nan, math.inf, -math.inf, 1.5]
    log = [Row(None, json.dumps({"n": number, "other": {"all": [number]}}).encode()) for number in numbers]
    rows = decoder(value="json:n double")(frame(spark, [("t", [[*log, Row(None, b'{"n": NaN} NaN')]])]))
    found = [row.value_decoded and row.value_decoded.n for row in rows.orderBy("offset").collect()]
    assert [str(each) for each in found] == [*map(str, numbers), "None"]


def test_json_with_a_very_long_text_beside_the_fields_is_decoded(spark: SparkSession) -> None:
    """Jackson, which Spark uses, reads no text of more than 20,000,000 characters, but skips it."""
    value = b'{"id": 1, "other": "' + b"a" * 20_000_001 + b'"}'
    [row] = decoder(value="json:id int")(frame(spark, [("t", [[Row(None, value)]])])).collect()
    assert row.value_decoded.id == 1


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_a_value_that_does_not_fit_its_column_is_null_with_the_reason(
    arrow: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Avro's ints and decimals may be larger than their type; the other records of a topic must be archived."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}, {"name": "d", "type": kind}]}
    wide = json.loads(json.dumps(schema).replace('"int"', '"long"').replace('"precision": 4', '"precision": 9'))
    path = tmp_path / "n.avsc"
    path.write_text(json.dumps(schema))

    def data(number: int, amount: str) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(wide), {"n": number, "d": Decimal(amount)})
        return out.getvalue()

    log = [Row(None, data(*each)) for each in ((1, "1.50"), (2**31, "1.50"), (-(2**31), "2.50"), (3, "12345.67"))]
    spark.conf.set("spark.sql.execution.pythonUDF.arrow.enabled", arrow)
    try:
        rows = (
            decoder(value=f"avro:{path}")(frame(spark, [("t", [[*log, Row(None, b"?")]])])).orderBy("offset").collect()
        )
    finally:
        spark.conf.unset("spark.sql.execution.pythonUDF.arrow.enabled")
    found = [row.value_decoded and tuple(row.value_decoded) for row in rows]
    assert found == [(1, Decimal("1.50")), None, (-(2**31), Decimal("2.50")), None, None]
    assert [bool(row.value_decode_error) for row in rows] == [False, True, False, True, True]
    assert "does not fit" in rows[1].value_decode_error


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
