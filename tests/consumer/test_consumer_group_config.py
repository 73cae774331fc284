"""All rules of ConsumerGroupConfig; all faults are reported together, before any I/O."""

from __future__ import annotations

from typing import Any

import pytest

from allocator import ConsumerGroup, ConsumerGroupConfig
from allocator.errors import AllocatorError, ConfigError

GOOD: dict[str, Any] = {"group": "g", "brokers": "b:9092", "topics": ["t"], "zookeeper": "z:2181"}


def faults(**options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        ConsumerGroupConfig(**{**GOOD, **options})
    assert isinstance(caught.value, AllocatorError)
    first, *lines = str(caught.value).split("\n")
    assert first.startswith("the settings have ")
    assert all(line.startswith("  ConsumerGroupConfig: ") for line in lines)
    return [line.split(": ", 1)[1] for line in lines]


def test_all_faults_are_told_at_once() -> None:
    found = faults(group="", brokers="", topics=[], zookeeper=None, session_timeout_s=-1, start_offset="middle")
    assert [fault.split(" ", 1)[0] for fault in found] == [
        "brokers",
        "session_timeout_s",
        "start_offset",
        "group",
        "topics",
        "zookeeper",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "heartbeat_interval_s",
        "session_timeout_s",
        "rebalance_timeout_s",
        "join_backoff_s",
        "partition_watch_interval_s",
        "timeout_s",
        "connect_timeout_s",
    ],
)
def test_times_are_seconds_within_what_the_protocol_can_say(name: str) -> None:
    for value in (-1, -0.001, (2**31 - 1) / 1000, float("inf"), float("nan"), True, "5", None):
        (fault,) = faults(**{name: value})
        assert fault.startswith(f"{name} = {value!r}: must be a number (seconds), ")
    room = {"session_timeout_s": 3600} if name == "heartbeat_interval_s" else {}
    ConsumerGroupConfig(**GOOD, **{name: 1000, **room})
    if name == "join_backoff_s":
        ConsumerGroupConfig(**GOOD, join_backoff_s=0)  # joins again at once
    else:
        assert faults(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("start_offset", "none", 'must be "earliest" or "latest"'),
        ("membership", "fixed", "must be 'zookeeper' or 'kafka'"),
        ("watch_partition_changes", 1, "must be true or false"),
        ("topics", "orders", "must be a list of texts"),
        ("topics", ["or/ders"], "'or/ders' is not a topic name"),
        ("brokers", "b:port", "'b:port' is not an address"),
        ("security", {"sasl_mecanism": "PLAIN"}, "did you mean 'sasl_mechanism'?"),
        ("group", "a/b", "cannot be a znode"),
        ("assignor", [], "the list is empty; name at least one"),
        ("assignor", ["range", "raange"], "did you mean 'range'?"),
        ("client", "mock", "must be a function of this config"),
    ],
)
def test_what_else_is_refused(name: str, value: Any, match: str) -> None:
    (fault,) = faults(**{name: value})
    assert match in fault


def test_each_membership_needs_what_belongs_to_it() -> None:
    assert faults(zookeeper=None) == ["zookeeper not set with membership = 'zookeeper': this membership needs it"]
    config = ConsumerGroupConfig(group="a/b", brokers=["b:9092"], topics=["t"], membership="kafka")
    assert config.zookeeper is None
    (fault,) = faults(membership="kafka", heartbeat_interval_s=20)
    assert "at most half of session_timeout_s" in fault


async def test_the_constructor_touches_nothing_and_refuses_before_it_could() -> None:
    def client(_: ConsumerGroupConfig) -> Any:
        raise AssertionError("a client was made")

    group = ConsumerGroup(ConsumerGroupConfig(**GOOD, client=client))
    assert repr(group) == "<ConsumerGroup 'g' over zookeeper, not begun>"
    await group.close()
    assert repr(group) == "<ConsumerGroup 'g' over zookeeper, closed>"
