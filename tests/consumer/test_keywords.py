"""Wrong keyword arguments of consumers are reported with the value and the allowed ones."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any, Final

import pytest

from allocator import Consumer, ConsumerGroupConfig
from allocator.errors import AllocatorError, ConfigError
from allocator.settings import SETTINGS

GOOD: Final[dict[str, Any]] = {"brokers": "b:1", "group": "g", "zookeeper": "z:1"}
# wrong values of every kind; values that are valid for an argument are left out
WRONG: Final = [-1, 0, 1.5, math.nan, math.inf, 1e300, 2**70, True, "x", b"x", ["x"], {"x": 1}, object(), ("a", 1)]
# these errors have their own texts, which the tests of their rooms check
KEYWORDS: Final = {name for name, each in SETTINGS.items() if not each.group_only} - {"topics", "assignor"}
OTHERS: Final = {"topics", "partitions", "assignor", "listener", "key_deserializer", "value_deserializer", "sink"}
SECONDS: Final = ["session_timeout_s", "heartbeat_interval_s", "settle_s", "max_wait_s"]


def said(**settings: Any) -> str:
    with pytest.raises(AllocatorError) as refused:
        Consumer("t", **{**GOOD, **settings})
    return str(refused.value)


def test_every_argument_is_checked_and_knows_whether_it_may_be_none() -> None:
    parameters = inspect.signature(Consumer).parameters
    assert set(parameters) - OTHERS == KEYWORDS
    for name in KEYWORDS - {"brokers", "group"}:
        text = said(**{name: None}) if not SETTINGS[name].accepts_none() else ""
        assert text.startswith(f"{name} = None: must be") == (parameters[name].default is not None) or not text, name


@pytest.mark.parametrize("name", sorted(KEYWORDS))
def test_a_value_of_the_wrong_type_is_named_and_nothing_else_is_raised(name: str) -> None:
    refused = 0
    for value in WRONG:
        try:
            Consumer("t", **{**GOOD, name: value})
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 400
            assert name in str(error) or "ZooKeeper option" in str(error), value
    assert refused >= len(WRONG) / 2


@pytest.mark.parametrize("name", SECONDS)
def test_milliseconds_for_seconds_are_told_so(name: str) -> None:
    text = said(**{name: 10_000})
    assert text.startswith(f"{name} = 10000: must be a number (seconds)")
    assert text.endswith("10000 milliseconds are 10 seconds")


def test_all_of_them_are_told_at_once_and_no_secret_is_shown() -> None:
    text = said(session_timeout_s="10", weight=-1, root=5)
    assert [part.partition(" =")[0] for part in re.split("; ", text)] == ["weight", "session_timeout_s", "root"]
    assert "hunter2" not in said(security="hunter2")
    assert "hunter2" not in said(zookeeper_options=["hunter2"])


def test_a_word_that_is_none_has_the_right_ones_beside_it() -> None:
    with pytest.raises(TypeError, match="session_timeout_ms"):
        Consumer("t", **GOOD, session_timeout_ms=10_000)
    assert "earliest" in said(auto_offset_reset="oldest")
    assert "read_committed" in said(isolation_level="committed")
    assert "must be a name, a function, or a list of them" in said(assignor=5)


@pytest.mark.parametrize("name", ["root", "client_id", "security", "zookeeper_options"])
def test_a_group_names_a_value_of_the_wrong_type(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*must be"):
        ConsumerGroupConfig(**{"group": "g", "brokers": "b:1", "topics": ["t"], "zookeeper": "z:1", name: 5})
