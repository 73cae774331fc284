"""All methods of a consumer agree about a partition at each step of a move."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from real_service import Service, owns

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.errors import NotOwned
from allocator.testing import LocalCluster, wait_until_async


class View(enum.Enum):
    """What all public methods report about one partition."""

    ACTIVE = "this member reads it"
    DRAINING = "this member still owns it, and gets no more of its records"
    FOREIGN = "this member does not own it"


def rejected(call: Callable[[], Any]) -> bool:
    """Whether the call raises NotOwned."""
    try:
        call()
    except NotOwned:
        return True
    return False


async def position(consumer: Consumer, partition: TopicPartition) -> int | None:
    """The position; None if it is not known yet. Raises NotOwned."""
    found = asyncio.ensure_future(consumer.position(partition))
    await asyncio.sleep(0)
    if not found.done():
        found.cancel()
        await asyncio.wait({found})
        return None
    return found.result()


async def view(consumer: Consumer, partition: TopicPartition) -> View:
    """Calls every view of the partition, and fails if two of them disagree."""
    before, assigned = consumer.paused(), partition in consumer.assignment()
    owned = {
        "fence": partial(consumer.fence, partition),
        "high_watermark": partial(consumer.high_watermark, partition),
        "topic_id": partial(consumer.topic_id, partition),
        "pause": partial(consumer.pause, partition),
        "resume": partial(consumer.resume, partition),
    }
    rejections = {name: rejected(call) for name, call in owned.items()}
    if partition in before:
        consumer.pause(partition)
    try:
        at = await position(consumer, partition)
        rejections["position"] = False
    except NotOwned:
        rejections["position"] = True
    if not rejections["position"] and at is not None:
        rejections["seek"] = rejected(partial(consumer.seek, partition, at))
    # the callback keeps the consumer from logging the error of a lost identity
    rejections["commit"] = rejected(partial(consumer.commit_async, {partition: 0}, lambda offsets, error: None))
    assert len(set(rejections.values())) == 1, f"owned by some views only: {rejections}"
    if rejections["fence"]:
        assert not assigned
        assert partition not in consumer.paused()
        assert partition not in consumer.lag()
        assert partition not in consumer.unreachable()
        return View.FOREIGN
    return View.ACTIVE if assigned else View.DRAINING


class Viewing(RebalanceListener):
    """Calls every view while its callbacks run."""

    def __init__(self, service: Service) -> None:
        self.consumer = service.consumer(listener=self, settle_s=0.3, auto_commit_interval_s=600.0)
        self.found: dict[str, set[View]] = {}
        """Callback -> the views of its partitions."""

    async def _view(self, callback: str, partitions: frozenset[TopicPartition]) -> None:
        views = {await view(self.consumer, each) for each in partitions}
        self.found[callback] = self.found.get(callback, set()) | views

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._view("assigned", partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._view("revoked", partitions)


async def views_are(expected: View, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        assert await view(consumer, partition) is expected, partition


async def in_hand(consumer: Consumer, partitions: set[TopicPartition]) -> None:
    """Returns when records of all these partitions are delivered."""
    await wait_until_async(lambda: consumer.lag().keys() >= partitions, 30, "the ends of the logs")
    while True:
        for partition in partitions:
            consumer.seek(partition, 0)
        if (await consumer.getmany(5)).keys() == partitions:
            return


@pytest.mark.parametrize("membership", ["zookeeper", "kafka", "kiel"])
async def test_all_views_agree_at_each_step_of_a_move(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, membership: str
) -> None:
    service = Service(kafka_cluster, topic_factory(2), group, membership, 2)
    await service.produce(0, 200)
    first, second = Viewing(service), Viewing(service)
    one, two, every = first.consumer, second.consumer, set(service.partitions)
    async with one:
        await owns(one, 2)
        await views_are(View.ACTIVE, one, every)
        await in_hand(one, every)
        before = {partition: one.fence(partition) for partition in every}
        one.pause(*every)  # must end with the ownership
        async with two:
            await views_are(View.FOREIGN, two, every - two.assignment())
            await wait_until_async(lambda: len(one.assignment()) < 2, 60, "a revocation")
            leaving = every - one.assignment()
            await views_are(View.DRAINING, one, leaving)
            for partition in leaving:
                one.seek(partition, 0)
                one.resume(partition)
                assert await view(one, partition) is View.DRAINING, "a seek ended the drain"
            # a further request means that the records in hand are done, and ends the drain
            batch = await one.getbatch(1)
            assert batch is None or (batch.topic, batch.partition) not in leaving
            await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 1, 60, "one each")
            (moved,), (kept,) = two.assignment(), one.assignment()
            for consumer, mine, other in ((one, kept, moved), (two, moved, kept)):
                assert await view(consumer, mine) is View.ACTIVE
                assert await view(consumer, other) is View.FOREIGN
            assert membership == "kiel" or two.fence(moved) > before[moved]
        await owns(one, 2)
        await views_are(View.ACTIVE, one, every)
        assert moved not in one.paused(), "the pause of the earlier ownership still applies"
        one.seek(moved, 3)
        assert await position(one, moved) == 3
    await views_are(View.FOREIGN, one, every)
    assert first.found == second.found == {"assigned": {View.ACTIVE}, "revoked": {View.DRAINING}}
