"""Runs the fuzz targets on seeds, on all inputs that ever failed, and on variations of these.

`make fuzz` runs longer, guided by coverage.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.core.fetch import decode_plain as plain
from allocator.documents.checked import InvalidZnode
from allocator.protocols.kafka_classic.consumer_protocol import (
    Malformed,
    MemberAssignment,
    StickyUserData,
    Subscription,
)
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, shard_names
from tests.fuzz.fuzz_targets import SEEDS, TARGETS, decoded, known


@pytest.mark.parametrize("target", TARGETS)
def test_known_inputs_break_no_target(target: str) -> None:
    for data in known(target):
        TARGETS[target](data)


def test_the_seeds_are_valid_inputs() -> None:
    """From invalid inputs, the fuzzer makes no progress."""
    for data in SEEDS["records"]:
        assert len([row for row in decoded(plain, data) if isinstance(row, tuple) and len(row) == 6]) == 3
    for data in SEEDS["znodes"]:
        read = (kind.decode for kind in (AssignmentDocument, Claim, MemberInfo))
        assert any(accepted(one, "/z", raw) for one in (*read, shard_names) for raw in (data, zlib.compress(data)))
    for data in SEEDS["protocol"]:
        assert any(accepted(kind.decode, data) for kind in (Subscription, MemberAssignment, StickyUserData))


def accepted(read: Callable[..., object], *arguments: object) -> bool:
    try:
        return read(*arguments) is not None
    except (Malformed, InvalidZnode):
        return False


@st.composite
def changed(draw: st.DrawFn, target: str) -> bytes:
    """A known input with up to four changes: bytes replaced, inserted, repeated or deleted."""
    data = bytearray(draw(st.sampled_from(known(target))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        piece = draw(st.sampled_from([b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]))
        data[at : at + length] = draw(st.one_of(st.just(piece), st.binary(max_size=8), st.just(bytes(data[at:])[:40])))
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=200)
@given(data=st.data())
def test_a_changed_input_breaks_nothing(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(changed(target)))
