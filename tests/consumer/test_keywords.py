"""Wrong keyword arguments of consumers are reported with the value and the allowed ones."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from typing import Any, Final

import pytest

from allocator import (
    Allocation,
    Consumer,
    ConsumerGroupConfig,
    Fixed,
    GroupedConsumer,
    Kafka,
    Kiel,
    OldConsumers,
    Pykafka,
    SingleConsumer,
    SwitchingConsumer,
    ZooKeeper,
)
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.dead_letters import DeadLetterQueue

GOOD: Final[dict[str, Any]] = {"brokers": "b:1", "group": "g", "zookeeper": "z:1"}
# wrong values of every kind; values that are valid for an argument are left out
WRONG: Final = [-1, 0, 1.5, math.nan, math.inf, 1e300, 2**70, True, "x", b"x", ["x"], {"x": 1}, object(), ("a", 1)]
# these errors have their own texts, which the tests of their packages check
OTHERS: Final = {"topics", "assignor", "listener", "key_deserializer", "value_deserializer", "sink"}
KEYWORDS: Final = set(inspect.signature(Consumer).parameters) - OTHERS
MEMBERSHIPS: Final = (ZooKeeper, Kafka, Kiel, OldConsumers, Pykafka)
OF_MEMBERSHIPS: Final = [(kind, each.name) for kind in MEMBERSHIPS for each in dataclasses.fields(kind)]


def rejection(**settings: Any) -> str:
    with pytest.raises(AllocatorError) as refused:
        Consumer("t", **{**GOOD, **settings})
    return str(refused.value)


@pytest.mark.parametrize(("kind", "name"), [*((Consumer, name) for name in sorted(KEYWORDS)), *OF_MEMBERSHIPS])
def test_a_value_of_the_wrong_type_is_named_and_nothing_else_is_raised(kind: Any, name: str) -> None:
    refused = 0
    for value in WRONG:
        try:
            kind(**{name: value}) if kind is not Consumer else Consumer("t", **{**GOOD, name: value})
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 500
            assert name in str(error) or "ZooKeeper option" in str(error), value
            assert kind is Consumer or str(error).startswith(f"{kind.__name__}: {name}")
    assert refused >= len(WRONG) / 2


def test_all_faults_are_reported_at_once_without_secrets() -> None:
    text = rejection(rack=5, weight=-1, offsets="disk")
    assert [part.partition(" =")[0] for part in re.split("; ", text)] == ["weight", "rack", "offsets"]
    with pytest.raises(ConfigError) as refused:
        ZooKeeper(session_timeout_s="10", root=5)  # type: ignore[arg-type]
    parts = re.split("; ", str(refused.value))
    assert [part.partition(" =")[0] for part in parts] == ["ZooKeeper: root", "session_timeout_s"]
    assert "hunter2" not in rejection(security="hunter2")
    with pytest.raises(ConfigError) as refused:
        ZooKeeper(zookeeper_options=["hunter2"])  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["group", "client_id", "rack"])
def test_a_name_that_no_request_can_carry_is_rejected(name: str) -> None:
    assert f"{name} = 'a\\ud800'" in rejection(**{name: "a\ud800"})
    Consumer("t", **{**GOOD, name: "ü"})


def test_a_second_ensemble_is_rejected() -> None:
    text = rejection(membership=ZooKeeper("z:2"))
    assert text == "zookeeper = 'z:1' with ZooKeeper('z:2'): give the ensemble once"
    text = rejection(zookeeper=None, membership=ZooKeeper(root="/x"))
    assert text == "zookeeper not set with membership = 'zookeeper': this membership needs it"
    for membership in ("zookeeper", "kafka", ZooKeeper(root="/x"), Kafka(), Fixed(), Kiel()):
        Consumer("t", **GOOD, membership=membership)
        SwitchingConsumer("t", **GOOD, membership=membership)
    SwitchingConsumer("t", **{**GOOD, "zookeeper": ZooKeeper("z:1", root="/x")}, membership="kafka")
    with pytest.raises(ConfigError, match=r"'z:1' with ZooKeeper\('z:2'\): give the ensemble once"):
        SwitchingConsumer("t", **GOOD, membership=ZooKeeper("z:2"))


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (Consumer, {"bootstrap_servers": "x", "group_id": "g"}, ["it is called brokers", "it is called group"]),
        (Consumer, {**GOOD, "session_timeout_s": 9}, ["membership=ZooKeeper(session_timeout_s=...); Kafka, Kiel, Old"]),
        (Consumer, {**GOOD, "partitions": []}, ["give it to the membership: membership=Fixed(partitions=...)"]),
        (SwitchingConsumer, {**GOOD, "root": "/x"}, ["give it to the membership: membership=ZooKeeper(root=...)"]),
        (Kafka, {"session_timeout_ms": 9}, ["it is called session_timeout_s, in seconds"]),
        (Consumer, {**GOOD, "fetch.wait.max.ms": 5}, ["it is called max_wait_s, in seconds"]),
        (Consumer, {**GOOD, "ssl_cafile": "ca.pem"}, ["security={'ssl_cafile': ...}"]),
        (Consumer, {**GOOD, "wieght": 2}, ["'wieght' (did you mean weight?)"]),
        (Consumer, {**GOOD, "topic": "a"}, ["""'topic' (give topics without a name: Consumer("a", "b", ...))"""]),
        (Consumer, {**GOOD, "topics": ["a"]}, ["""'topics' (give topics without a name: Consumer("a", "b", ...))"""]),
        (GroupedConsumer, {"bootstrap_servers": "x", "zookeeper_hosts": "z"}, ["called brokers", "called zk_hosts"]),
        (SingleConsumer, {"bootstrap_servers": "x", "max_partition_fetch_bytes": 1}, ["brokers", "called max_bytes"]),
        (ConsumerGroupConfig, {"bootstrap_servers": "x", "topics": ["t"]}, ["it is called brokers"]),
        (Allocation, {"zookeeper_hosts": "z", "group_id": "g"}, ["it is called zookeeper", "it is called group"]),
        (DeadLetterQueue, {"topic": "t", "bootstrap_servers": "b"}, ["it is called brokers"]),
    ],
)
def test_an_argument_of_another_client_is_rejected_with_the_name_here(
    kind: Any, given: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(TypeError) as refused:
        kind(**given)
    assert str(refused.value).startswith(f"{kind.__name__} has no argument ")
    for each in named:
        assert each in str(refused.value)
