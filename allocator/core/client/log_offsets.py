"""Reads the first and last offsets of partitions, the offset at a time, the lag, and the end of a leader epoch.

Sends ListOffsets, v0 (Kafka 0.8) to v9, and OffsetForLeaderEpoch, v3 (Kafka 2.3) and v4, to the leader of each
partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Optional, Union

from allocator.core.client import protocol
from allocator.core.client.client import KafkaClient
from allocator.core.client.errors import ErrorCode, for_code
from allocator.core.errors import BrokerError, BrokersUnavailable, TopicAuthorizationFailed, TopicNotFound
from allocator.core.settings.table import DEFAULT
from allocator.core.types import EARLIEST, LATEST, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

MAX_VERSION = 9  # newer versions add queries that this module does not use
# Higher: finds a topic that was created a moment ago; lower: reports a mistyped name sooner
MISSING_PATIENCE_S = 5.0
# ListOffsets v5 (Kafka 2.2): a new leader refuses the request until it knows the end of the log (KIP-207)
TRUE_ENDS: Final = 5
# Longest wait for a leader that reports an end below `reached`. Higher: a leader whose replicas return slowly has more
# time; lower: a truncated log is detected sooner
LOWER_END_PATIENCE_S = 5.0
LAG_WITHIN_S = 2.0  # short, because a rebalance waits for the lag

Found = dict[TopicPartition, Optional[OffsetAndTimestamp]]
Committed = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]
LogTime = Union[int, Literal["earliest", "latest"]]
CONSUMER, DEBUGGING = -1, -2  # replica ids of requests that no replica sends
_NAMED: Mapping[object, int] = {"earliest": EARLIEST, "latest": LATEST}


async def list_offsets(
    client: KafkaClient,
    at: Mapping[TopicPartition, LogTime],
    *,
    isolation_level: str = DEFAULT["isolation_level"],
    timeout_s: float = 30.0,
    reached: Mapping[TopicPartition, int] = MappingProxyType({}),
    replica_id: int = CONSUMER,
    or_end: bool = False,
) -> Found:
    """Returns the offset of each partition at "earliest", "latest" (the next to be written) or a time in epoch ms.

    At a time, it is the offset of the first record that is not older, or None without one; with `or_end`, the end that
    the log had before the times were looked up, so that no record that is written meanwhile is skipped. Brokers before
    0.10.1 know only the times of log segments: the offset is then the start of a segment at or before that record, with
    timestamp -1. With "read_committed", "latest" is the last stable offset (from 0.11 on).

    `reached` has offsets up to which the logs were read. Before Kafka 2.2 a new leader reports a lower end for a
    moment, so an offset below it is requested again for up to 5 s. With `replica_id` DEBUGGING, "latest" is the end of
    the leader's log, which is never lower: it counts records that other replicas do not have yet.

    Retries for `timeout_s` while leaders move, and for 5 s if the brokers lack a topic or partition, which may be new.
    Raises `TopicNotFound`, `TopicAuthorizationFailed`, or `BrokerError` with a partition and the cause.
    """
    ends: Found = {}
    if or_end and (timed := [tp for tp, when in at.items() if isinstance(when, int) and when >= 0]):
        latest = dict.fromkeys(timed, LATEST)
        ends = await list_offsets(client, latest, isolation_level=isolation_level, timeout_s=timeout_s)
    started = time.monotonic()
    found: Found = {}
    version = client.api_version(protocol.ListOffsetsRequest)
    lower_s = min(timeout_s, LOWER_END_PATIENCE_S) if version is None or version < TRUE_ENDS else 0.0
    while True:
        causes: dict[TopicPartition, BrokerError] = {}
        lower: Found = {}
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, when in at.items():
            if tp in found:
                continue
            leader = client.leader(tp)
            if leader is None:
                causes[tp] = _why_leaderless(client, tp)
            else:
                by_leader[leader][tp] = when if isinstance(when, int) else _NAMED[when]
        left_s = max(0.1, timeout_s - (time.monotonic() - started))
        requests = (
            _request_offsets(client, leader, at_leader, isolation_level, left_s, replica_id)
            for leader, at_leader in by_leader.items()
        )
        for results in await asyncio.gather(*requests):
            for tp, result in results.items():
                if isinstance(result, BrokerError):
                    causes[tp] = result
                elif result is not None and result.offset < reached.get(tp, 0):
                    lower[tp] = result
                else:
                    found[tp] = result
        if lower and time.monotonic() - started >= lower_s:
            found.update(lower)
            lower = {}
        if not causes and not lower:
            return {tp: there or ends.get(tp) for tp, there in found.items()}
        for error in causes.values():
            if not error.retriable:
                raise error
        elapsed = time.monotonic() - started
        if elapsed > min(timeout_s, MISSING_PATIENCE_S):
            unknown = sorted({tp.topic for tp in causes if client.partitions(tp.topic) is None})
            if unknown:
                raise TopicNotFound(unknown)
            for tp, error in causes.items():
                if tp.partition not in (client.partitions(tp.topic) or ()):
                    raise error
        if causes and elapsed >= timeout_s:
            raise next(iter(causes.values()))
        await asyncio.sleep(client.retry_backoff_s)
        with contextlib.suppress(BrokersUnavailable):  # the leaders may return within the timeout
            await client.refresh({tp.topic for tp in (*causes, *lower)})


def _why_leaderless(client: KafkaClient, tp: TopicPartition) -> BrokerError:
    numbers = client.partitions(tp.topic)
    if numbers is None and client.hides(tp.topic):
        return TopicAuthorizationFailed(tp.topic, "describe")
    if numbers is None:
        return for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp.topic}:{tp.partition}")
    if tp.partition in numbers:
        return BrokerError(f"{tp.topic}:{tp.partition} has no leader", retriable=True)
    return BrokerError(
        f"{tp.topic!r} has no partition {tp.partition}; it has {len(numbers)}, from 0 on", retriable=True
    )


async def _request_offsets(
    client: KafkaClient,
    leader: int,
    at: Mapping[TopicPartition, int],
    isolation_level: str,
    timeout_s: float,
    replica_id: int,
) -> dict[TopicPartition, Union[OffsetAndTimestamp, BrokerError, None]]:
    """Returns the offset or the error of each partition from one leader."""
    topics: dict[str, list[Any]] = defaultdict(list)
    request = protocol.ListOffsetsRequest
    for tp, when in at.items():
        topics[tp.topic].append(
            request.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=_current_epoch(client, tp),
                timestamp=when,
                max_num_offsets=1,
            )
        )
    message = request(
        replica_id=replica_id,
        isolation_level=int(isolation_level == "read_committed"),
        topics=[request.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
        max_version=MAX_VERSION,
    )
    results: dict[TopicPartition, Union[OffsetAndTimestamp, BrokerError, None]] = {tp: _left_out(tp) for tp in at}
    try:
        response = await client.send(leader, message, timeout_s)
        with client.reading(leader, request):
            before_all = _read_offsets(response, at, results)
    except BrokerError as exc:
        return dict.fromkeys(at, exc)
    if before_all:
        results.update(await _request_offsets(client, leader, before_all, isolation_level, timeout_s, replica_id))
    return results


def _read_offsets(
    response: Any,
    at: Mapping[TopicPartition, int],
    results: dict[TopicPartition, Union[OffsetAndTimestamp, BrokerError, None]],
) -> dict[TopicPartition, int]:
    """Fills `results`. Returns where to look instead for partitions whose log has no segment that is old enough."""
    before_all = {}
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if tp not in at:
                continue  # nobody requested it; the requested ones count as left out
            if part.error_code:
                results[tp] = for_code(part.error_code, f"{tp.topic}:{tp.partition}")
            elif response.API_VERSION >= 1:
                epoch = part.leader_epoch if part.leader_epoch >= 0 else None
                results[tp] = None if part.offset < 0 else OffsetAndTimestamp(part.offset, part.timestamp, epoch)
            elif part.old_style_offsets:
                results[tp] = OffsetAndTimestamp(part.old_style_offsets[0], -1, None)
            elif at[tp] >= 0:
                # no segment is that old, so the record, if it exists, is in the first segment
                before_all[tp] = EARLIEST
    return before_all


def _current_epoch(client: KafkaClient, tp: TopicPartition) -> int:
    epoch = client.leader_epoch(tp)
    return -1 if epoch is None else epoch


def _left_out(tp: TopicPartition) -> BrokerError:
    return BrokerError(f"{tp.topic}:{tp.partition} is missing in the response", retriable=True)


async def lag(
    client: KafkaClient, committed: Committed, reset: object, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """Returns the number of offsets from the committed offset to the end of the log, where both are known.

    Without a committed offset it counts from where `reset` begins: the complete log for "earliest", 0 for "latest".
    Otherwise the partition is left out, like a partition without a leader. Raises BrokerError, NoOffsetsError.
    """
    asked = [partition for partition in partitions if client.leader(partition) is not None]
    if not asked:
        return {}
    ends = await list_offsets(client, dict.fromkeys(asked, LATEST), timeout_s=LAG_WITHIN_S)
    begins = {partition: found.offset for partition, found in (await committed(asked)).items()}
    new = [partition for partition in asked if partition not in begins]
    if new and reset in ("earliest", "latest"):
        found = ends
        if reset == "earliest":
            found = await list_offsets(client, dict.fromkeys(new, EARLIEST), timeout_s=LAG_WITHIN_S)
        begins.update({p: there.offset for p in new if (there := found[p]) is not None})
    return {
        partition: float(max(0, there.offset - begins[partition]))
        for partition in asked
        if (there := ends[partition]) is not None and partition in begins
    }


# -- OffsetForLeaderEpoch (KIP-320) -----------------------------------------------------------------------------------

# older versions need rights on the cluster, which consumers lack
FOR_CONSUMERS: Final = 3


class EpochEnd(NamedTuple):
    """The last epoch in the log that is not above the requested one, and the offset after its last record.

    -1 and -1 if there is none.
    """

    epoch: int
    offset: int


def is_supported(client: KafkaClient) -> bool:
    version = client.api_version(protocol.OffsetForLeaderEpochRequest)
    return version is not None and version >= FOR_CONSUMERS


async def ends_of_epochs(
    client: KafkaClient, leader: int, epochs: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, Union[EpochEnd, BrokerError]]:
    """Returns the end of an epoch or the error for each partition. Raises `BrokerError`, `Closed`."""
    request = protocol.OffsetForLeaderEpochRequest
    of_topic = request.OffsetForLeaderTopic
    topics: dict[str, list[Any]] = defaultdict(list)
    for tp, epoch in epochs.items():
        current = _current_epoch(client, tp)
        topics[tp.topic].append(
            of_topic.OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=current, leader_epoch=epoch)
        )
    message = request(
        replica_id=-1,
        topics=[of_topic(topic=name, partitions=parts) for name, parts in topics.items()],
        min_version=FOR_CONSUMERS,
    )
    response = await client.send(leader, message, timeout_s)
    found: dict[TopicPartition, Union[EpochEnd, BrokerError]] = {tp: _left_out(tp) for tp in epochs}
    with client.reading(leader, request):
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, part.partition)
                if tp not in epochs:
                    continue
                if part.error_code:
                    found[tp] = for_code(part.error_code, f"{tp.topic}:{tp.partition}")
                else:
                    found[tp] = EpochEnd(part.leader_epoch, part.end_offset)
    return found
