"""A service written for kiel 0.9.3 calls these with these arguments; changing the import must be all."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from allocator import GroupedConsumer

NONE = inspect.Parameter.empty
CONSTRUCTOR = {
    "brokers": NONE,
    "group": NONE,
    "zk_hosts": NONE,
    "deserializer": None,
    "partition_allocator": None,
    "autocommit": True,
    "max_wait_time": 1000,
    "min_bytes": 1,
    "max_bytes": 1024 * 1024,
}
METHODS: dict[str, dict[str, Any]] = {
    "connect": {},
    "consume": {"topic": NONE, "start": None},
    "determine_coordinator": {},
    "determine_offsets": {"topic": NONE, "start": None},
    "commit_offsets": {"metadata": None},
    "wind_down": {},
    "close": {},
}


def defaults(function: Any, kind: Any) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {each.name: each.default for each in parameters if each.kind is kind}


def test_the_constructor_takes_what_kiels_takes() -> None:
    positional = defaults(GroupedConsumer.__init__, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert list(positional.items()) == list(CONSTRUCTOR.items())
    added = defaults(GroupedConsumer.__init__, inspect.Parameter.KEYWORD_ONLY)
    assert NONE not in added.values()


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_what_kiels_take(name: str) -> None:
    method = getattr(GroupedConsumer, name)
    assert defaults(method, inspect.Parameter.POSITIONAL_OR_KEYWORD) == METHODS[name]


def test_attributes_that_services_read_are_there() -> None:
    consumer = GroupedConsumer(["localhost:9092"], "group", ["localhost:2181"])
    for name in ("autocommit", "closing", "deserializer", "group_name", "name", "synced_offsets", "topics_to_commit"):
        assert hasattr(consumer, name), name
    for name in ("allocation", "coordinator_id", "offsets"):
        assert isinstance(getattr(GroupedConsumer, name), property), name
