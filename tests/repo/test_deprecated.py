"""Former names of modules and methods: they work until 0.3, and their warnings give the new names."""

from __future__ import annotations

import importlib

import pytest

from allocator import Consumer
from allocator.types import TopicPartition


@pytest.mark.parametrize(
    ("former", "now", "name"),
    [
        ("allocator.assign", "allocator.assignors", "GroupView"),
        ("allocator.assign.lag_aware", "allocator.assignors.lag_aware", "lag_aware"),
        ("allocator.spark.skew_report", "allocator.spark.skew", "read_loads"),
    ],
)
def test_a_former_name_gives_the_same_thing_and_warns(former: str, now: str, name: str) -> None:
    module = importlib.import_module(former)
    with pytest.warns(DeprecationWarning, match=rf"^import {name} from {now}: {former} is removed in 0\.3$"):
        thing = getattr(module, name)
    assert thing is getattr(importlib.import_module(now), name)
    with pytest.raises(AttributeError):
        module.__path_that_nobody_has__  # noqa: B018


def test_share_is_the_frozenset_that_assignors_return() -> None:
    module = importlib.import_module("allocator.assign")
    with pytest.warns(DeprecationWarning, match=r"allocator\.assign\.Share is removed in 0\.3$"):
        assert module.Share is frozenset


def test_commit_soon_calls_commit_async_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(Consumer, "commit_async", lambda _, *arguments: calls.append(arguments))
    consumer = Consumer("orders", brokers="b:9092", group="g", membership="kafka")
    offsets = {TopicPartition("orders", 0): 7}
    text = r"^call commit_async: Consumer\.commit_soon is removed in 0\.3$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        consumer.commit_soon(offsets, print)
    assert calls == [(offsets, print)]
    assert warned[0].filename == __file__
