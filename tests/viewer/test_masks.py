"""Masks hide their fields, and hide more rather than less if they cannot be applied. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import ConfigError
from allocator.handlers.schemas.decode import Decoder
from allocator.handlers.schemas.masks import Masks

ORDER = {
    "id": 7,
    "card": {"number": "4111", "until": "12/27"},
    "items": [{"sku": "a", "price": 1}, {"sku": "b", "price": 2}],
    "Contact": {"e.mail": "x@y", "home": {"Email": "z@y"}},
}


@pytest.mark.parametrize(
    ("mask", "hidden"),
    [
        ("value.card.number", ["4111"]),
        ("$.card", ["4111", "12/27"]),
        ("value.items[*].price", ["1", "2"]),
        ("value.items.price", ["1", "2"]),
        ("value..email", ["z@y"]),
        ("value.contact['e.mail']", ["x@y"]),
        ("value.card.*", ["4111", "12/27"]),
        ("value..*", ["7", "4111", "12/27", "a", "b", "1", "2", "x@y", "z@y"]),
        ("value", ["7", "4111", "12/27", "a", "b", "1", "2", "x@y", "z@y"]),
        ("key.id", []),
    ],
)
def test_a_path_hides_its_values_and_no_others(mask: str, hidden: list[str]) -> None:
    def leaves(value: Any) -> list[str]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return [str(value)] if inner is None else [leaf for each in inner for leaf in leaves(each)]

    left = leaves(Masks([mask]).apply("value", ORDER))
    assert sorted(set(leaves(ORDER)) - set(left)) == sorted(set(hidden))


@pytest.mark.parametrize("mask", ["", "card.number", "value.", "value card", "value[", "value.a b", "Value.a", "$$.a"])
def test_an_invalid_path_is_refused(mask: str) -> None:
    with pytest.raises(ConfigError, match=r"mask '"):
        Masks([mask])


@pytest.mark.parametrize(
    ("mask", "document"),
    [
        ("value.card.number", {"card": '{"card": "4111"}'}),
        ("value.card.number", {"card": 4111}),
        ("value.card", ["4111"]),
        ("value.card.number", [["4111"], "4111"]),
        ("value..number", {"payload": '{"number": "4111"}'}),
        ("value..number", {"payload": '"{\\"number\\": \\"4111\\"}"'}),
        ("value..number", {"payload": '{"n\\u0075mber": "4111"}'}),
        ("value..*", {"payload": '["4111"]'}),
        ("value..number", {"payload": 'the card has {"number": "4111"}'}),
        ("value..number", {"payload": '<number kind="card">4111</number>'}),
        ("value..number", {"payload": base64.b64encode(b'{"number": "4111"}').decode()}),
        ("value..number", {"payload": base64.urlsafe_b64encode(b'???{"number": "4111"}').decode().rstrip("=")}),
        ("value..number", {"deep": json.loads("[" * 150 + '{"number": "4111"}' + "]" * 150)}),
    ],
)
def test_a_value_to_which_a_mask_cannot_be_applied_is_hidden(mask: str, document: Any) -> None:
    shown = json.dumps(Masks([mask]).apply("value", document))
    assert "4111" not in shown
    assert base64.b64encode(b'{"number": "4111"}').decode() not in shown


INNER = b'{"number": "4111"}'
ENCODED = base64.b64encode(INNER).decode()


@pytest.mark.parametrize(
    "document",
    [
        {"token": f"eyJhbGciOiJub25lIn0.{ENCODED.rstrip('=')}.c2ln"},
        {"token": f"Bearer {ENCODED}"},
        {"token": f"/v1/{ENCODED}"},
        {"url": f"data:application/json;base64,{ENCODED}"},
        {"mail": base64.encodebytes(json.dumps({"pad": "x" * 45, "number": "4111"}).encode()).decode()},
        {"mail": json.dumps({"body": base64.encodebytes(b"x" * 52 + INNER).decode()})},
        {"twice": base64.b64encode(ENCODED.encode()).decode()},
        {"form": "item=1&%6eumber=4111"},
        {"form": "item=1&%256Eumber=4111"},
        {"form": f"payload={quote(INNER.decode().replace('n', '%6e'))}"},
        {"form": base64.b64encode(b"item=1&n%75mber=4111").decode()},
        {"%7B%22n%75mber%22": 1},
        {INNER.decode(): 1},
        {ENCODED: 1},
        {f"Bearer {ENCODED}": {"a": 1}},
    ],
)
def test_a_document_that_is_encoded_in_other_text_or_in_a_name_is_hidden(document: dict[str, Any]) -> None:
    others = {
        "number_of_items": 1,
        "text": "a quiet afternoon, 100% sun",
        "form": "a=%20&b=%6e",
        "url": "https://shop/v1/orders/billing-2026",
    }
    masked, unmasked = Masks(["value..number"]).apply("value", [document, others])
    (value,) = document.values()
    assert masked == ({"***": "***"} if value in (1, {"a": 1}) else dict.fromkeys(document, "***"))
    assert unmasked == others


def test_a_name_that_a_form_encodes_is_hidden() -> None:
    """Forms encode every name that is not ASCII."""
    fields = {"id": 7, "größe": "4111", "€": "š"}
    for text in (*(urlencode(fields, encoding=each) for each in ("utf-8", "cp1252")), "id=7&gr%u00F6%u00DFe=4111"):
        assert Masks(["value..größe"]).apply("value", {"form": text}) == {"form": "***"}
        assert Masks(["value..number"]).apply("value", {"form": text}) == {"form": "***" if "%u" in text else text}


@pytest.mark.parametrize("depth", [499, 991])
def test_a_deeply_nested_record_is_decoded(depth: int) -> None:
    data = b"[" * depth + b'{"secret": "geheim"}' + b"]" * depth
    assert "geheim" not in Decoder(masks=Masks(["value..secret"])).decode("value", data).text


@pytest.mark.parametrize("masks", [["value..a..b"], ["value..a..a..a..b", "value..a..b"], ["value..b"] * 50])
def test_a_mask_that_matches_in_many_ways_does_not_multiply_its_work(masks: list[str]) -> None:
    document: Any = {"b": "geheim"}
    for _ in range(80):  # 2 to the power of 80 ways to reach the field
        document = {"a": document, "x": 1}
    assert "geheim" not in json.dumps(Masks(masks).apply("value", document))


def test_a_value_with_too_many_fields_is_hidden_whole() -> None:
    data = json.dumps({"rows": [0] * 300_000}).encode()
    shown = Decoder(masks=Masks(["value..secret"])).decode("value", data)
    assert (shown.format, shown.value) == ("masked", "***")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abS", max_size=2), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from(["value..secret", "value.a..secret", "value.*.secret", "value.secret"]))
def test_a_masked_field_is_never_shown(document: Any, mask: str) -> None:
    """A secret stands where each of the masks applies, inside any other fields and lists."""
    data = json.dumps({"a": [document, {"secret": "geheim"}], "secret": "geheim", "b": document}).encode()
    shown = Decoder(masks=Masks([mask])).decode("value", data)
    assert shown.format == "json"
    assert ("geheim" not in shown.text) == (mask in ("value..secret", "value.*.secret"))


@pytest.mark.parametrize(
    "data", [b"geheim", b"\x00\x00\x00\x00\x07geheim", b'"geheim"', b'{"secret": "geheim"', b"[" * 100_000 + b"geheim"]
)
def test_a_value_that_cannot_be_decoded_is_masked_as_a_whole(data: bytes) -> None:
    decoder = Decoder(masks=Masks(["value.other", "headers.token", "!headers.trace"]))
    shown = decoder.decode("value", data)
    assert (shown.format, shown.value) == ("masked", "***")
    assert "geheim" not in shown.note
    assert decoder.decode("key", b"c7").value == "c7", "no mask is on keys"
    assert decoder.decode("value", None).format == "null"
    assert decoder.decode_header("Token", b"geheim").value == "***"
    assert decoder.decode_header("trace", b"t1").value == "t1"


@pytest.mark.parametrize(
    "name",
    [
        *("kafka_dlt-exception-message", "kafka_dlt-exception-stacktrace", "kafka_dlt-exception-cause-message"),
        *("allocator.error", "__connect.errors.exception.message", "springDeserializerExceptionValue"),
        *("__streams.errors.exception", "__streams.errors.stacktrace", "__streams.errors.message", "anything", ""),
    ],
)
def test_a_single_mask_hides_every_header_that_it_does_not_know(name: str) -> None:
    for mask in ("value.card", "key", "headers.token"):
        assert Decoder(masks=Masks([mask])).decode_header(name, b"geheim").value == "***"
    assert Decoder(masks=Masks(["!headers.trace"])).decode_header(name, b"shown").value == "shown", "there is no mask"


def test_headers_that_name_places_are_shown_and_others_on_request() -> None:
    decoder = Decoder(masks=Masks(["value.card", "headers.token", "!headers.Trace", "!headers.token"]))
    for name in ("allocator.topic", "kafka_dlt-original-offset", "kafka_dlt-exception-fqcn", "__connect.errors.topic"):
        assert decoder.decode_header(name, b"x").value == "x"
    assert decoder.decode_header("trace", b"t1").value == "t1"
    assert decoder.decode_header("token", b"geheim").value == "***", "a mask counts more"
    assert Masks(["value.card"]).parts == ["value", "headers"]


def test_formats_that_show_the_bytes_are_refused_with_masks() -> None:
    masks = Masks(["value.card"])
    for format in ("text", "hex"):
        with pytest.raises(ConfigError, match="the bytes would show them"):
            Decoder(value=format, masks=masks)
        Decoder(key=format, masks=masks)
    Decoder(masks=masks).check_search()
    with pytest.raises(ConfigError, match="cannot be searched by key"):
        Decoder(masks=Masks(["key.id"])).check_search()
