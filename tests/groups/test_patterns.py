"""Subscriptions by pattern."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.client import KafkaClient
from allocator.core.settings.patterns import topic_pattern
from allocator.documents.checked import InvalidZnode
from allocator.errors import ConfigError, MissingExtra
from allocator.protocols.zookeeper.znodes.documents import MemberInfo
from allocator.testing import LocalCluster, wait_until_async
from tests.groups.members import History, StaticTopics, TestMember

NAMES = st.text("ab.-_0", min_size=1, max_size=12)
ATOMS = st.sampled_from(["a", "b", "0", r"\.", "-", "_", ".", "[ab]", "[^a]", r"\w", r"\d", r"\W", "(?i:A)"])


REPEATS = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, REPEATS).map(lambda two: f"(?:{two[0]}){two[1]}"),
        inner.map(lambda one: f"({one})"),
    )


WHOLE = st.recursive(ATOMS, nested, max_leaves=8)
PATTERNS = st.tuples(st.sampled_from(["", "^"]), WHOLE, st.sampled_from(["", "$"])).map("".join)


@given(pattern=PATTERNS, names=st.lists(NAMES, max_size=20))
def test_a_pattern_matches_like_pythons_re(pattern: str, names: list[str]) -> None:
    found = [name for name in names if topic_pattern(pattern).matches(name)]
    assert found == [name for name in names if re.match(pattern, name)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(a|a)*!", "(a+)+!", "(a*)*!", "(.*a){30}!", "(a|aa)+!", ".*.*.*.*.*.*.*.*!"])
def test_no_expression_takes_for_ever(pattern: str) -> None:
    """Python's `re` takes 2**200 steps for most of these."""
    assert not any(topic_pattern(pattern).matches("a" * 200 + f"-{number}") for number in range(1_000))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing )"),
        ("(?!__).*", "without lookaround"),
        (r"(a)\1", r"\1"),
        (r"orders\Z", r"\Z"),
        ("((a{1,1000}){1,1000}){1,1000}", "repetition"),
        ("(x?y?z?a?b?c?d?e?){900}|" * 8, "too large"),
        ("\ud800", "surrogates"),
    ],
)
def test_an_unsupported_pattern_is_refused_by_writers_and_readers(pattern: str, why: str) -> None:
    info = MemberInfo("n", "h", pattern=pattern)
    with pytest.raises(ConfigError, match=re.escape(why)):
        info.encode()
    written = MemberInfo("n", "h", pattern="PLACE").encode().decode().replace("PLACE", pattern.replace("\\", "\\\\"))
    with pytest.raises(InvalidZnode):
        MemberInfo.decode("/m", written.encode("utf-8", "surrogatepass"))


def test_without_re2_other_patterns_name_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a pattern of another member: the leader ignores it and continues."""
    written = MemberInfo("n", "h", pattern="orders").encode()
    topic_pattern.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    assert topic_pattern(".*").matches("orders")
    with pytest.raises(MissingExtra, match=r"allocator\[patterns\]"):
        MemberInfo("n", "h", pattern="orders").encode()
    with pytest.raises(InvalidZnode, match=r"allocator\[patterns\]"):
        MemberInfo.decode("/m", written)


@pytest.mark.parametrize("subscription", ["pattern", "missing topic"])
async def test_a_rebalance_waits_for_topics_only_for_a_limited_time(
    kafka_cluster: LocalCluster, zk_chroot: str, group: str, topic_factory: Callable[..., str], subscription: str
) -> None:
    """The leader's broker does not respond, and another member leaves."""
    topic, history = topic_factory(4), History()
    chosen: dict[str, Any] = {"subscribe": (topic, f"{topic}-missing")}
    if subscription == "pattern":
        chosen = {"subscribe": (), "pattern": f"^{topic}$"}
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        leader = TestMember(zk_chroot, group, "leader", client, history, **chosen)  # type: ignore[arg-type]
        other = TestMember(zk_chroot, group, "other", StaticTopics({topic: 4}), history, **chosen)
        async with leader:
            async with other:
                await wait_until_async(lambda: (len(leader.owned), len(other.owned)) == (2, 2), 30, "two each")
                kafka_cluster.brokers[0].pause()
                left_at = time.monotonic()
            try:
                await wait_until_async(lambda: len(leader.owned) == 4, 30, "the takeover")
                assert time.monotonic() - left_at < 10
            finally:
                kafka_cluster.brokers[0].resume()
            assert history.overlaps() == []
