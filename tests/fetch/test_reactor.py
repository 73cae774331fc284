"""What the response about one partition causes, for all error codes, versions and records."""

from __future__ import annotations

from typing import Any

import pytest
from fetch_encode import R, batch
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.client.errors import ErrorCode
from allocator.core.client.fetch_messages import FetchedPartition, Wanted
from allocator.core.fetch.buffer import ByteBudget, Failure, OutOfRange, PartitionBuffer
from allocator.core.fetch.reactor import LEAVE_REPLICA, REFRESH, RETRY, SERVED, VALIDATE, effects_of, effects_of_failure
from allocator.errors import BrokerError, CorruptRecordError, RecordTooLarge, TopicAuthorizationFailed
from allocator.types import OffsetAndMetadata, TopicPartition

TP = TopicPartition("t", 3)
RECORD_BYTES = 10_000


def buffer_at(offset: int, epoch: int = -1) -> PartitionBuffer:
    budget = ByteBudget(prefetch_bytes=100_000, max_partition_bytes=1000)
    return PartitionBuffer(TP, 1, OffsetAndMetadata(offset, "", epoch), budget)


def react(
    records: bytes = b"",
    code: int = 0,
    *,
    offset: int = 5,
    size: int = 1000,
    epoch: int = -1,
    version: int = 12,
    from_replica: bool = False,
) -> Any:
    buffer = buffer_at(offset, epoch)
    before = dict(vars(buffer))
    effects = effects_of(
        FetchedPartition(TP.topic, TP.partition, code, 100, 100, -1, [], records),
        buffer,
        Wanted(offset, size, -1, None),
        version,
        from_replica=from_replica,
        record_bytes=RECORD_BYTES,
    )
    assert vars(buffer) == before, "it changes nothing"
    return effects


@given(
    code=st.one_of(st.sampled_from([0, *ErrorCode]), st.integers(-5, 200)),
    from_replica=st.booleans(),
    version=st.integers(0, 16),
    records=st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda base, count, cut: batch([R(n) for n in range(count)], base)[:cut],
            st.integers(0, 10),
            st.integers(1, 10),
            st.integers(0, 400),
        ),
    ),
)
def test_every_response_has_one_outcome(code: int, from_replica: bool, version: int, records: bytes) -> None:
    effects = react(records, code, from_replica=from_replica, version=version)
    if effects.served:
        assert code == 0
        assert effects._replace(chunk=None, stop=None, need=0, recreated=False) == SERVED
    else:
        assert code != 0
        assert effects.chunk is None
        assert effects.need == 0
        # the partition is left alone, after a pause, at another broker, until an operator acted or until a seek
        ways = [effects.leave_replica, effects.back_off, effects.refusal is not None, effects.stop is not None]
        assert ways.count(True) == 1
        assert effects.leave_replica == from_replica, "its leader may do better"
    if effects.chunk is not None:
        assert effects.chunk.start == 5
        assert effects.chunk.found.next_offset > 5, "it brings the consumer further"
    elif effects.served and records:
        assert effects.stop is not None or effects.need or effects.recreated, "or the same request would follow"
    if effects.need:
        assert 1000 < effects.need <= RECORD_BYTES, "the next request is larger"


@pytest.mark.parametrize(
    ("code", "effects"),
    [
        (0, SERVED),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, REFRESH),
        (ErrorCode.UNKNOWN_SERVER_ERROR, RETRY),
        (ErrorCode.FENCED_LEADER_EPOCH, VALIDATE),
    ],
)
def test_errors_that_pass_are_retried(code: int, effects: Any) -> None:
    assert react(code=code) == effects
    assert react(code=code, from_replica=True) == (LEAVE_REPLICA if code else SERVED)


def test_errors_that_last_stop_the_partition_or_are_reported() -> None:
    stopped = react(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert isinstance(stopped.stop, OutOfRange)
    assert stopped.stop.offset == 5
    assert isinstance(react(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED).refusal, TopicAuthorizationFailed)
    failed = react(code=ErrorCode.CORRUPT_MESSAGE).stop
    assert isinstance(failed, Failure)
    assert isinstance(failed.error, CorruptRecordError)


def test_records_before_damaged_ones_are_kept() -> None:
    good, bad = batch([R(0)], 5), bytearray(batch([R(0)], 6))
    bad[-1] ^= 0xFF
    effects = react(good + bytes(bad))
    assert effects.chunk.found.next_offset == 6
    assert isinstance(effects.stop.error, CorruptRecordError)
    only_old = react(batch([R(0)], 2))
    assert only_old.chunk is None
    assert "from before this offset" in str(only_old.stop.error)


def test_records_of_an_older_epoch_are_of_another_topic() -> None:
    assert react(batch([R(0)], 5, epoch=3), epoch=4).recreated
    assert not react(batch([R(0)], 5, epoch=4), epoch=4).recreated


def test_a_batch_that_did_not_fit_is_requested_whole_or_reported() -> None:
    raw = batch([R(0, bytes(5000))], 5)
    assert react(raw[:1000], version=2).need == len(raw)
    assert react(raw[:5], version=2, size=5).need == 10, "its length is not known yet"
    larger = react(batch([R(0, bytes(RECORD_BYTES))], 5)[:1000], version=2)
    assert isinstance(larger.stop.error, RecordTooLarge)
    assert isinstance(react(raw[:1000]).stop.error, CorruptRecordError), "such brokers send the first one whole"


@pytest.mark.parametrize("retriable", [True, False])
def test_without_a_response_there_is_a_pause(retriable: bool) -> None:
    error = BrokerError("gone", retriable=retriable)
    assert effects_of_failure(error, from_replica=True) == LEAVE_REPLICA
    effects = effects_of_failure(error, from_replica=False)
    assert effects == REFRESH._replace(refusal=None if retriable else error)
