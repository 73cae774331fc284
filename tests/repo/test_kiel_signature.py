"""Signatures of kiel 0.9.3, so that a service only needs another import."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from allocator import GroupedConsumer, KielProducer, SingleConsumer

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


@pytest.mark.parametrize(
    ("kind", "name"),
    [(GroupedConsumer, name) for name in METHODS]
    + [(SingleConsumer, name) for name in ("connect", "consume", "determine_offsets", "wind_down", "close")],
)
def test_methods_take_what_kiels_take(kind: Any, name: str) -> None:
    assert defaults(getattr(kind, name), inspect.Parameter.POSITIONAL_OR_KEYWORD) == METHODS[name]


def test_attributes_that_services_read_are_there() -> None:
    consumer = GroupedConsumer(["localhost:9092"], "group", ["localhost:2181"])
    for name in ("autocommit", "closing", "deserializer", "group_name", "name", "synced_offsets", "topics_to_commit"):
        assert hasattr(consumer, name), name
    for name in ("allocation", "coordinator_id", "offsets"):
        assert isinstance(getattr(GroupedConsumer, name), property), name


def test_single_consumers_constructor_takes_what_kiels_takes() -> None:
    taken = {
        k: v for k, v in CONSTRUCTOR.items() if k not in ("group", "zk_hosts", "partition_allocator", "autocommit")
    }
    positional = defaults(SingleConsumer.__init__, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert list(positional.items()) == list(taken.items())
    assert NONE not in defaults(SingleConsumer.__init__, inspect.Parameter.KEYWORD_ONLY).values()
    assert (SingleConsumer.BEGINNING, SingleConsumer.END) == (-2, -1)


def test_the_producer_takes_what_kiels_takes() -> None:
    taken = {
        "brokers": NONE,
        "serializer": None,
        "key_maker": None,
        "partitioner": None,
        "batch_size": 1,
        "compression": None,
        "required_acks": -1,
        "ack_timeout": 500,
    }
    positional = defaults(KielProducer.__init__, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert list(positional.items()) == list(taken.items())
    assert NONE not in defaults(KielProducer.__init__, inspect.Parameter.KEYWORD_ONLY).values()
    methods: dict[str, dict[str, Any]] = {"produce": {"topic": NONE, "message": NONE}}
    for name in ("connect", "produce", "flush", "wind_down", "close"):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert defaults(getattr(KielProducer, name), kind) == methods.get(name, {})
    assert isinstance(KielProducer.unsent_count, property)


def test_names_have_one_colon_behind_the_host() -> None:
    """Allocator functions of kiel's users take the host of a member from its name."""
    for consumer in (GroupedConsumer(["localhost"], "group", ["localhost"]), SingleConsumer(["localhost"])):
        host, rest = consumer.name.split(":")
        assert (host, rest.split("-")[0]) == (socket.gethostname(), str(os.getpid()))


def test_every_name_that_the_how_to_gives_can_be_imported() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "kiel.md").read_text()
    names = re.findall(r"^\| `kiel\.[\w.]+` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert len(names) == 8
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_attribute_of_the_allocator_that_the_how_to_names_is_there() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "kiel.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `allocator` |")]
    named = set(re.findall(r"`(\w+)`", row.split("|")[3])) - {"AttributeError"}
    allocator = GroupedConsumer(["localhost:9092"], "group", ["localhost:2181"]).allocator
    public = {name for name in (*vars(allocator), *vars(type(allocator))) if not name.startswith("_")}
    assert named == public
