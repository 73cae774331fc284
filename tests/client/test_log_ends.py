"""The ends of logs from leaders that report them too low for a moment, as before Kafka 2.2."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse

from allocator.core.client import KafkaClient, list_offsets, log_offsets
from allocator.types import TopicPartition
from tests.client.fake_broker import MODERN, FakeBroker
from tests.constants import SetConstant

LIST_OFFSETS = 2
HERE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Leader:
    """Responds with the next of `ends` for partition 0, and keeps the last one; partition 1 ends at 7."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)
        self.requested: list[list[int]] = []

    def __call__(self, request: Any) -> Any:
        numbers = [part.partition_index for topic in request.topics for part in topic.partitions]
        self.requested.append(numbers)
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
        parts = [
            of_topic.ListOffsetsPartitionResponse(
                partition_index=number,
                error_code=0,
                old_style_offsets=[],
                timestamp=-1,
                offset=7 if number else self._next(),
                leader_epoch=0,
            )
            for number in numbers
        ]
        topics = [of_topic(name="t", partitions=parts)]
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics, version=request.API_VERSION)

    def _next(self) -> int:
        return self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]


async def ends(leader: Leader, newest: int) -> dict[TopicPartition, int]:
    async with FakeBroker({LIST_OFFSETS: leader}, versions={**MODERN, LIST_OFFSETS: (0, newest)}) as broker:
        broker.topics["t"] = [1, 1]
        async with KafkaClient(broker.address) as client:
            client.follow(["t"])
            await client.refresh()
            found = await list_offsets(client, {HERE: "latest", OTHER: "latest"}, reached={HERE: 50, OTHER: 7})
    return {tp: there.offset for tp, there in found.items() if there is not None}


async def test_an_end_below_what_was_read_is_requested_again() -> None:
    leader = Leader(48, 49, 53)
    assert await ends(leader, newest=4) == {HERE: 53, OTHER: 7}
    assert leader.requested == [[0, 1], [0], [0]]


async def test_a_log_that_stays_shorter_was_truncated(set_constant: SetConstant) -> None:
    set_constant(log_offsets, LOWER_END_PATIENCE_S=0.3)
    assert await ends(Leader(48), newest=4) == {HERE: 48, OTHER: 7}


async def test_the_end_that_a_newer_broker_reports_is_true() -> None:
    leader = Leader(48, 53)
    assert await ends(leader, newest=5) == {HERE: 48, OTHER: 7}
    assert leader.requested == [[0, 1]]
