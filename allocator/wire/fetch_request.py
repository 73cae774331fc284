"""Fetch requests on the wire (https://kafka.apache.org/protocol#The_Messages_Fetch), v0 to v18."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Optional

from kafka.protocol.consumer import FetchRequest

from allocator.types import TopicPartition
from allocator.wire.fetch_answer import NEWEST

__all__ = ["BOUNDED", "BY_NAME", "SESSIONS", "FetchRequest", "Wanted", "compose", "newest_for"]

# from here on an answer has an upper bound, and a record larger than that comes all the same (KIP-74)
BOUNDED: Final = 3
# from here on brokers remember what they were asked for (KIP-227)
SESSIONS: Final = 7
# the newest that names topics; later ones know them by id (KIP-516)
BY_NAME: Final = 12

_Topic: Final = FetchRequest.FetchTopic
_Partition: Final = _Topic.FetchPartition
_Forgotten: Final = FetchRequest.ForgottenTopic


class Wanted(NamedTuple):
    """What is asked of one partition. Without knowing better, `leader_epoch` is -1 and `topic_id` None."""

    offset: int
    size: int
    leader_epoch: int
    topic_id: Optional[uuid.UUID]


def newest_for(wanted: Iterable[Wanted]) -> int:
    """The newest version that can say all of this: brokers older than 2.8 have told no topic's id."""
    return NEWEST if all(each.topic_id is not None for each in wanted) else BY_NAME


def compose(
    asked: Mapping[TopicPartition, Wanted],
    forgotten: Mapping[TopicPartition, Wanted],
    *,
    session: tuple[int, int],
    max_version: int,
    max_wait_s: float,
    min_bytes: int,
    max_bytes: int,
    committed_only: bool,
    rack: str,
) -> Any:
    """A request for `asked`, in the order in which the broker is to fill the answer.

    `session` is (id, epoch) of `fetch_session`; `forgotten` is to be taken out of it.
    """
    topics: dict[tuple[str, Any], list[Any]] = {}
    for tp, wanted in asked.items():
        topics.setdefault((tp.topic, wanted.topic_id), []).append(
            _Partition(
                partition=tp.partition,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=wanted.size,
            )
        )
    gone: dict[tuple[str, Any], list[int]] = {}
    for tp, wanted in forgotten.items():
        gone.setdefault((tp.topic, wanted.topic_id), []).append(tp.partition)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=int(max_wait_s * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if committed_only else 0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[_Topic(topic=name, topic_id=known, partitions=parts) for (name, known), parts in topics.items()],
        forgotten_topics_data=[
            _Forgotten(topic=name, topic_id=known, partitions=parts) for (name, known), parts in gone.items()
        ],
        rack_id=rack,
        max_version=max_version,
    )
