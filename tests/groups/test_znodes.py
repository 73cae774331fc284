"""Content of znodes: round trips. `tests/security/test_hostile.py` has the data of other writers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.documents.packed import SHARD_BYTES
from allocator.errors import ConfigError, GroupNameError
from allocator.protocols.zookeeper.znodes.documents import (
    AssignmentDocument,
    CommandState,
    MemberInfo,
    Paths,
    Seat,
    Waiting,
    in_join_order,
    sequence,
    shard_names,
    split,
)
from allocator.protocols.zookeeper.znodes.following import LoadHistory
from allocator.types import TopicPartition

topics = st.text(alphabet="abc.-_9", min_size=1, max_size=8)
parts = st.frozensets(st.builds(TopicPartition, topics, st.integers(0, 5000)), max_size=60)
members = st.text(min_size=1, max_size=10)
documents = st.builds(
    AssignmentDocument,
    generation=st.integers(0, 10**9),
    revision=st.integers(0, 10**9),
    leader=members,
    strategy=members,
    owners=st.dictionaries(members, parts, max_size=4),
    promised=st.dictionaries(members, parts, max_size=4),
    waiting=st.dictionaries(members, st.builds(Waiting, st.integers(0, 10**9), parts), max_size=4),
    refused=st.dictionaries(members, st.text(), max_size=3),
    left_out=parts,
    commands=st.dictionaries(st.text(min_size=1), st.builds(CommandState, st.text(), st.text()), max_size=3),
    load_history=st.builds(
        LoadHistory,
        st.floats(0, 1e6),
        st.integers(0, 10**13),
        st.lists(st.tuples(st.integers(0, 10**13), parts), max_size=3).map(tuple),
    ),
    moved=st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 99)), max_size=3).map(tuple),
    seats=st.dictionaries(
        members,
        st.builds(
            Seat,
            st.builds(
                MemberInfo,
                members,
                members,
                st.frozensets(topics, max_size=3),
                instance_id=members,
                restart_grace_s=st.floats(0, 86400),
            ),
            st.none() | st.integers(0, 10**13),
        ),
        max_size=4,
    ),
    problem=st.none() | st.text(),
)


@given(documents)
def test_documents_survive_the_round_trip_and_members_decode_their_own_entries(document: AssignmentDocument) -> None:
    data = document.encode()
    assert AssignmentDocument.decode("/x", data) == document
    for name in {*document.owners, "unknown"}:
        read = AssignmentDocument.decode("/x", data, only=name)
        assert (read.generation, read.revision) == (document.generation, document.revision)
        for field in ("owners", "promised", "waiting", "refused"):
            whole = getattr(document, field)
            assert getattr(read, field) == ({name: whole[name]} if name in whole else {})


def test_a_large_document_is_split_and_names_its_leader() -> None:
    data = bytes(SHARD_BYTES * 2 + 1)
    head, shards = split(data, "m-1", 7)
    assert shard_names("/x", head) == list(shards) == ["7-m-1-0", "7-m-1-1", "7-m-1-2"]
    assert b"".join(shards.values()) == data
    assert max(map(len, shards.values())) <= SHARD_BYTES
    assert split(b"x\x9c small", "m-1", 7) == (b"x\x9c small", {})


def test_members_stand_in_join_order_beyond_the_greatest_number_of_32_bits() -> None:
    """ZooKeeper's numbers go on at -2147483648, and are padded to ten characters."""
    numbers = ("2147483646", "2147483647", "-2147483648", "-2147483647", "-1000000000", "-999999999", "-000000001")
    names = [f"m-{'0' * 16}-{number}" for number in numbers]
    assert in_join_order(reversed(names)) == names
    assert sequence(names[2]) == 2**31


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "x" * 250, "tab\there", "\ud800", "\U0001f600", "\uffff"])
def test_a_group_name_that_cannot_be_a_znode_is_refused(name: str) -> None:
    with pytest.raises(GroupNameError, match="cannot be a znode"):
        Paths("/allocator", name)


@pytest.mark.parametrize("root", ["allocator", "/a/", "/a//b", "", "/a/../b", "/.", "/\U0001f600", "/a\n"])
def test_a_root_must_be_an_absolute_path(root: str) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        Paths(root, "g")


def test_a_subscription_too_large_for_a_znode_is_refused() -> None:
    info = MemberInfo("n", "h", frozenset(f"topic-{number:08d}" for number in range(10_000)))
    with pytest.raises(ConfigError, match="subscribe by pattern"):
        info.encode()
