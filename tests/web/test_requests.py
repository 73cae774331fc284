"""Requests are checked by their classes: errors name the field, its value, and what it may be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from allocator.errors import ConfigError
from allocator.web.actions import POSTS
from allocator.web.requests import LettersRequest, NewCommand, PlanRequest, RecordsQuery, SettleRequest, Times, checked

PAGE = Path(__file__).parents[2] / "docs" / "web-api.md"
PIN = {"kind": "pin", "arguments": {}}


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (NewCommand, {"kind": "pin"}, "the request: missing required field arguments: The arguments of this "),
        (NewCommand, {**PIN, "arguments": []}, '"arguments" must be an object, not []: The arguments of this kind '),
        (NewCommand, {**PIN, "hours": float("nan")}, '"hours" must be a number above 0.0, not nan: Hours until the '),
        (PlanRequest, {"add": "new"}, "\"add\" must be a list, not 'new': Like this option of "),
        (PlanRequest, {"commands": [{**PIN, "at": 1}]}, "commands[0]: contains unknown field at"),
        (Times, {"from": "1e400"}, "\"from\" must be a number that is not too large, not '1e400': "),
        (LettersRequest, {"settled": "\ud800"}, r"'\ud800' is no valid text: it has half of a surrogate pair"),
        (SettleRequest, {"letters": "\ud800"}, r"'\ud800' is no valid text"),
        (PlanRequest, {"commands": [{**PIN, "\ud800": 1}]}, r"'\ud800' is no valid text"),
        (RecordsQuery, {"isolation_level": "all"}, "must be one of read_committed, read_uncommitted, not 'all'"),
        (RecordsQuery, {"offset": "1"}, "'offset' is not a known field; known: partition, from, before, limit, key, "),
    ],
)
def test_a_wrong_request_is_refused_with_its_field_its_value_and_the_allowed_values(
    kind: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(kind, given, strict=kind not in (Times, RecordsQuery))
    assert message in str(raised.value)


def test_each_example_of_the_page_is_a_request_of_its_kind() -> None:
    rows = re.findall(r"^\| `POST /api/groups/\{group\}/([^`]+)`[^|]*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    examples = [(name, text) for name, cell in rows for text in re.findall(r"`(\{\".*?\})`(?=[,;. ]|$)", cell)]
    assert len(examples) >= 9
    for name, text in examples:
        checked(POSTS[name].body, json.loads(text))
