"""Requests are checked by their classes: errors name the field, its value, and what it may be."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.errors import ConfigError
from allocator.web.requests import NewOrder, PlanRequest, RecordsQuery, ResetRequest, Times, checked

PIN = {"kind": "pin", "arguments": {}}


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (NewOrder, {"kind": "pin"}, "the request: missing required field arguments: The arguments of this "),
        (NewOrder, {**PIN, "arguments": []}, '"arguments" must be an object, not []: The arguments of this kind '),
        (NewOrder, {**PIN, "hours": float("nan")}, '"hours" must be a number above 0.0, not nan: Hours until the '),
        (PlanRequest, {"add": "new"}, "\"add\" must be a list, not 'new': Like this option of "),
        (PlanRequest, {"orders": [{**PIN, "at": 1}]}, "orders[0]: contains unknown field at"),
        (ResetRequest, {"to": True, "topics": []}, '"to" must be a whole number or a text, not True: earliest, latest'),
        (RecordsQuery, {"isolation_level": "all"}, "must be one of read_committed, read_uncommitted, not 'all'"),
        (RecordsQuery, {"limit": "1001"}, '"limit" must be a whole number at most 1000, not '),
        (RecordsQuery, {"offset": "1"}, "'offset' is not a known field; known: partition, from, before, limit, key, "),
        (Times, {"from": "soon"}, "\"from\" must be a number or null, not 'soon': Epoch seconds; by default an hour"),
    ],
)
def test_a_wrong_request_is_refused_with_its_field_its_value_and_the_allowed_values(
    kind: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(kind, given, strict=kind in (NewOrder, PlanRequest, ResetRequest))
    assert message in str(raised.value)


def test_arguments_of_a_url_are_converted_to_their_types() -> None:
    query = checked(
        RecordsQuery, {"partition": "3", "from": "17", "key": "null", "every_partition": "true"}, strict=False
    )
    assert (query.partition, query.from_, query.key, query.every_partition) == (3, "17", "null", True)
    assert checked(Times, {"from": "1e3", "unknown": "1"}, strict=False).from_ == 1000
