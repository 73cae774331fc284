"""All rules of ConsumerGroupConfig; all faults are reported together, before any I/O."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from allocator import ConsumerGroupConfig
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


def test_all_faults_are_reported_at_once() -> None:
    found = faults(group="", brokers="", topics=[], zookeeper=None, session_timeout_s=-1, start_offset="middle")
    assert [fault.split(" ", 1)[0] for fault in found] == [
        "brokers",
        "session_timeout_s",
        "start_offset",
        "group",
        "topics",
        "zookeeper",
    ]


TIMES = [each.name for each in dataclasses.fields(ConsumerGroupConfig) if each.name.endswith("_s")]


@pytest.mark.parametrize("name", [name for name in TIMES if name != "retention_s"])
def test_times_are_seconds_within_the_limits_of_the_protocol(name: str) -> None:
    for value in (-1, -0.001, (2**31 - 1) / 1000, float("inf"), float("nan"), True, "5", None):
        (fault,) = faults(**{name: value})
        assert fault.startswith(f"{name} = {value!r}: must be a number (seconds), ")
    fitting = {"session_timeout_s": 3600} if name == "heartbeat_interval_s" else {}
    ConsumerGroupConfig(**GOOD, **{name: 1000, **fitting})


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("start_offset", "none", 'must be "earliest" or "latest"'),
        ("membership", "fixed", "must be 'zookeeper' or 'kafka'"),
        ("topics", ["or/ders"], "'or/ders' is not a topic name"),
        ("security", {"sasl_mecanism": "PLAIN"}, "did you mean 'sasl_mechanism'?"),
        ("assignor", ["range", "raange"], "did you mean 'range'?"),
        ("client", "mock", "must be a function of this config"),
    ],
)
def test_an_invalid_value_is_rejected(name: str, value: Any, match: str) -> None:
    (fault,) = faults(**{name: value})
    assert match in fault


def test_each_membership_checks_its_own_settings() -> None:
    assert faults(zookeeper=None) == ["zookeeper not set with membership = 'zookeeper': this membership needs it"]
    config = ConsumerGroupConfig(group="a/b", brokers=["b:9092"], topics=["t"], membership="kafka")
    assert config.zookeeper is None
    (fault,) = faults(membership="kafka", heartbeat_interval_s=20)
    assert "at most half of session_timeout_s" in fault
