"""Fetch requests and answers on the wire (https://kafka.apache.org/protocol#The_Messages_Fetch), v0 to v12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka.protocol.consumer import FetchRequest

from allocator.types import TopicPartition

__all__ = ["BOUNDED", "MAX_VERSION", "FetchRequest", "Part", "compose", "parts_of"]

# v13 names topics by id, which the metadata of older brokers lacks
MAX_VERSION: Final = 12
# from here on an answer has an upper bound, and a record larger than that comes all the same (KIP-74)
BOUNDED: Final = 3

_Topic: Final = FetchRequest.FetchTopic
_Partition: Final = _Topic.FetchPartition


class Part(NamedTuple):
    """One partition of an answer. `aborted` is (producer id, first offset) of each aborted transaction."""

    tp: TopicPartition
    code: int
    high_watermark: int
    records: bytes
    aborted: list[tuple[int, int]]


def compose(
    asked: Mapping[TopicPartition, tuple[int, int]],
    leader_epochs: Mapping[TopicPartition, int],
    *,
    max_wait_s: float,
    min_bytes: int,
    max_bytes: int,
    committed_only: bool,
) -> Any:
    """A request for {partition: (offset, most bytes)}, in the order in which the broker is to fill the answer."""
    topics: dict[str, list[Any]] = {}
    for tp, (offset, size) in asked.items():
        topics.setdefault(tp.topic, []).append(
            _Partition(
                partition=tp.partition,
                current_leader_epoch=leader_epochs.get(tp, -1),
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=size,
            )
        )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=int(max_wait_s * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if committed_only else 0,
        session_id=0,
        session_epoch=-1,
        topics=[_Topic(topic=name, partitions=parts) for name, parts in topics.items()],
        forgotten_topics_data=[],
        rack_id="",
        max_version=MAX_VERSION,
    )


def parts_of(response: Any, asked: Sequence[TopicPartition]) -> Iterator[Part]:
    """The partitions of an answer. An error of the whole answer (v7 on) is that of each partition asked for."""
    version = response.API_VERSION
    if version >= 7 and response.error_code:
        for tp in asked:
            yield Part(tp, response.error_code, -1, b"", [])
        return
    for topic in response.responses:
        for part in topic.partitions:
            aborted = (part.aborted_transactions or []) if version >= 4 else []
            yield Part(
                TopicPartition(topic.topic, part.partition_index),
                part.error_code,
                part.high_watermark,
                part.records or b"",
                [(a.producer_id, a.first_offset) for a in aborted],
            )
