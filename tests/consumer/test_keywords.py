"""Wrong keyword arguments of consumers are reported with the value and the allowed ones."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any, Final

import pytest

from allocator import (
    Allocation,
    Consumer,
    ConsumerGroupConfig,
    GroupedConsumer,
    GroupOrders,
    KafkaGroupOrders,
    SingleConsumer,
    SwitchingConsumer,
)
from allocator.core.settings.spellings import SPELLINGS
from allocator.core.settings.table import SETTINGS
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.dead_letters import DeadLetterQueue

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
            assert len(str(error)) < 500
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


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (Consumer, {"bootstrap_servers": "x", "group_id": "g"}, ["it is called brokers", "it is called group"]),
        (Consumer, {"bootstrap.servers": "x", "group.id": "g"}, ["it is called brokers", "it is called group"]),
        (Consumer, {**GOOD, "session_timeout_ms": 10_000}, ["it is called session_timeout_s, in seconds"]),
        (Consumer, {**GOOD, "enable_auto_commit": False}, ["auto_commit_interval_s, None to commit nothing by itself"]),
        (Consumer, {**GOOD, "fetch.wait.max.ms": 5}, ["it is called max_wait_s, in seconds"]),
        (Consumer, {**GOOD, "max_partition_fetch_bytes": 5}, ["it is called prefetch_bytes"]),
        (Consumer, {**GOOD, "client.id": "c"}, ["it is called client_id"]),
        (Consumer, {**GOOD, "ssl_cafile": "ca.pem"}, ["security={'ssl_cafile': ...}"]),
        (Consumer, {**GOOD, "wieght": 2}, ["'wieght' (did you mean weight?)"]),
        (Consumer, {**GOOD, "nonsense_of_mine": 2}, ["Consumer has no argument 'nonsense_of_mine'"]),
        (SwitchingConsumer, {"bootstrap_servers": "x", "group_id": "g"}, ["it is called brokers", "is called group"]),
        (GroupedConsumer, {"bootstrap_servers": "x", "zookeeper_hosts": "z"}, ["called brokers", "called zk_hosts"]),
        (SingleConsumer, {"bootstrap_servers": "x", "max_partition_fetch_bytes": 1}, ["brokers", "called max_bytes"]),
        (ConsumerGroupConfig, {"bootstrap_servers": "x", "topics": ["t"]}, ["it is called brokers"]),
        (GroupOrders, {"zookeeper_hosts": "z", "group_id": "g"}, ["it is called zookeeper", "it is called group"]),
        (KafkaGroupOrders, {"bootstrap_servers": "b", "group_id": "g"}, ["it is called brokers", "is called group"]),
        (Allocation, {"zookeeper_hosts": "z", "group_id": "g"}, ["it is called zookeeper", "it is called group"]),
        (DeadLetterQueue, {"topic": "t", "bootstrap_servers": "b"}, ["it is called brokers"]),
    ],
)
def test_another_clients_word_for_an_argument_is_answered_with_the_right_one(
    kind: Any, given: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(TypeError) as refused:
        kind(**given)
    assert str(refused.value).startswith(f"{kind.__name__} has no argument ")
    for each in named:
        assert each in str(refused.value)


def test_every_spelling_has_an_argument_that_some_class_takes() -> None:
    kinds = (Consumer, GroupedConsumer, ConsumerGroupConfig, KafkaGroupOrders)
    known = {name for kind in kinds for name in inspect.signature(kind).parameters}
    assert not [word for word, right in SPELLINGS.items() if not set(right) & known]
    assert not set(SPELLINGS) & set(inspect.signature(Consumer).parameters)


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
