"""Derives the effects of a response about one partition. Does not apply them: the fetch loop does."""

from __future__ import annotations

import logging
from typing import NamedTuple, Optional, Union

from allocator.core.client.errors import Reaction, error_of, reaction_to_fetch
from allocator.core.client.fetch_messages import BOUNDED, FetchedPartition, Wanted
from allocator.core.errors import AllocatorError, BrokerError, CorruptRecordError, RecordTooLarge
from allocator.core.fetch.buffer import Chunk, Failure, OutOfRange, PartitionBuffer
from allocator.core.fetch.decode import scan

log = logging.getLogger(__name__)

# requests for corrupt records before the error is raised: they may be damaged on the way, and not in the log
CORRUPT_TRIES = 3


class Effects(NamedTuple):
    """The effects of a response about one partition, or of a missing response."""

    served: bool = False
    """The broker served the partition, so earlier failures have ended."""
    chunk: Optional[Chunk] = None
    """The records to buffer."""
    stop: Optional[Union[OutOfRange, Failure]] = None
    """Reason to stop fetching. Takes effect after the records before it are delivered."""
    need: int = 0
    """Bytes of the next request, because a record batch did not fit (brokers before 0.10.1); 0: as usual."""
    recreated: bool = False
    """The topic was deleted and recreated: its new records do not continue the earlier ones."""
    leave_replica: bool = False
    """Fetch from the leader again, not from its preferred replica."""
    refresh: bool = False
    """Refresh the metadata of the topic: its leader may have moved."""
    back_off: bool = False
    """Pause before the next fetch, longer after each failure in a row."""
    validate: bool = False
    """Compare the position with the log of the leader (KIP-320)."""
    refusal: Optional[AllocatorError] = None
    """An error that an operator must fix. `take` raises it until the broker serves the partition."""


SERVED = Effects(served=True)
RETRY = Effects(back_off=True)
REFRESH = Effects(back_off=True, refresh=True)
VALIDATE = Effects(back_off=True, refresh=True, validate=True)
EFFECTS = {Reaction.RETRY: RETRY, Reaction.REFRESH: REFRESH, Reaction.REFIND: REFRESH, Reaction.VALIDATE: VALIDATE}
# the leader may have records that the replica lacks, so only its errors count
LEAVE_REPLICA = Effects(leave_replica=True, refresh=True)


def effects_of(
    part: FetchedPartition,
    buffer: PartitionBuffer,
    wanted: Wanted,
    version: int,
    *,
    from_replica: bool,
    record_bytes: int,
) -> Effects:
    """Returns the effects of a response about `buffer` to the request `wanted`.

    `from_replica`: the broker is the preferred replica and not the leader. `record_bytes`: the largest request to a
    broker before 0.10.1.
    """
    if not part.code:
        return _effects_of_records(part, buffer, wanted, version, record_bytes) if part.records else SERVED
    if from_replica:
        return LEAVE_REPLICA
    reaction = reaction_to_fetch(part.code)
    if reaction in EFFECTS:
        return EFFECTS[reaction]
    if reaction is Reaction.RESET:
        return Effects(stop=OutOfRange(wanted.offset))
    error = error_of(part.code, buffer.tp, wanted.offset)
    if isinstance(error, CorruptRecordError):
        return _effects_of_corrupt(error, buffer)
    return Effects(refusal=error) if reaction is Reaction.RAISE else Effects(stop=Failure(error))


def effects_of_failure(error: BrokerError, *, from_replica: bool) -> Effects:
    """Returns the effects on a partition of a request without a response."""
    if from_replica:
        return LEAVE_REPLICA
    return REFRESH if error.retriable else REFRESH._replace(refusal=error)


def _effects_of_records(
    part: FetchedPartition, buffer: PartitionBuffer, wanted: Wanted, version: int, record_bytes: int
) -> Effects:
    tp, offset = buffer.tp, wanted.offset
    found = scan(part.records, topic=tp.topic, partition=tp.partition, start=offset, aborted=part.aborted)
    if found.wanted is not None and found.error is None:
        return _effects_of_incomplete(found.wanted, len(found.data), buffer, wanted, version, record_bytes)
    if buffer.precedes(found):
        return Effects(served=True, recreated=True)
    chunk = Chunk(found, offset, part.high_watermark) if found.next_offset > offset else None
    if chunk is not None:
        return Effects(True, chunk)  # if the records behind it are corrupt, the next request begins with them
    why = "the broker sent only records from before this offset"
    error = found.error or CorruptRecordError(tp.topic, tp.partition, offset, why)
    if error.next_offset is not None and error.next_offset > part.high_watermark:
        # it is from the header of the batch, which may be what is corrupt
        error = CorruptRecordError(tp.topic, tp.partition, error.offset, error.why)
    return _effects_of_corrupt(error, buffer)


def _effects_of_corrupt(error: AllocatorError, buffer: PartitionBuffer) -> Effects:
    if buffer.failures + 1 < CORRUPT_TRIES:
        log.warning("fetching again: %s", error)
        return RETRY
    return Effects(served=True, stop=Failure(error))


def _effects_of_incomplete(
    length: int, received: int, buffer: PartitionBuffer, wanted: Wanted, version: int, record_bytes: int
) -> Effects:
    """Returns the effects of a response without a complete record batch.

    `length`: the length of the first batch, or 0 if the length field is incomplete too.
    """
    tp = buffer.tp
    if version >= BOUNDED:
        # these brokers send the first batch whole regardless of the limits, so its length field is wrong
        why = f"a record batch of {length} bytes, of which {received} arrived"
        return _effects_of_corrupt(CorruptRecordError(tp.topic, tp.partition, wanted.offset, why), buffer)
    if max(length, wanted.size + 1) > record_bytes:
        size = f"{length} bytes" if length else f"more than {wanted.size} bytes"
        limit = f"the most to request from this broker, {record_bytes}"
        why = f"a message of {size}, above {limit}; raise prefetch_bytes to its size, or seek past it"
        return Effects(served=True, stop=Failure(RecordTooLarge(tp.topic, tp.partition, wanted.offset, why)))
    return Effects(served=True, need=min(max(length, 2 * wanted.size), record_bytes))
