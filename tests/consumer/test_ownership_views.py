"""Every public view of a consumer says the same about a partition, at each step of a move."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from real_service import Service

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.errors import CommitFailed, NotOwned
from allocator.testing import LocalCluster, wait_until_async

MEMBERSHIPS = ["zookeeper", "kafka", "fixed", "kiel"]
GROUPS = ["zookeeper", "kafka"]


class Standing(enum.Enum):
    """What all views together say of one partition."""

    OURS = "this member goes on reading it"
    DRAINING = "this member still owns it, and gets no more of its records"
    FOREIGN = "this member does not own it"


def refused(call: Callable[[], Any]) -> bool:
    """Whether the call raises NotOwned."""
    try:
        call()
    except NotOwned:
        return True
    return False


async def position(consumer: Consumer, partition: TopicPartition) -> int | None:
    """The position; None if it is not known yet. Raises NotOwned."""
    asked = asyncio.ensure_future(consumer.position(partition))
    await asyncio.sleep(0)
    if not asked.done():
        asked.cancel()
        await asyncio.wait({asked})
        return None
    return asked.result()


async def standing(consumer: Consumer, partition: TopicPartition, *, commits: bool = True) -> Standing:
    """Calls every view of the partition, and fails if two of them disagree.

    `commits`: whether the lease is valid, so that commits are accepted.
    """
    before, assigned = consumer.paused(), partition in consumer.assignment()
    owned = {
        "fence": partial(consumer.fence, partition),
        "high_watermark": partial(consumer.high_watermark, partition),
        "topic_id": partial(consumer.topic_id, partition),
        "pause": partial(consumer.pause, partition),
        "resume": partial(consumer.resume, partition),
    }
    refusals = {name: refused(call) for name, call in owned.items()}
    if partition in before:
        consumer.pause(partition)
    try:
        at = await position(consumer, partition)
        refusals["position"] = False
    except NotOwned:
        refusals["position"] = True
    if not refusals["position"] and at is not None:
        refusals["seek"] = refused(partial(consumer.seek, partition, at))
    if commits:
        try:
            # the callback keeps the consumer from logging the error of a lost identity
            consumer.commit_async({partition: 0}, lambda offsets, error: None)
            refusals["commit"] = False
        except NotOwned:
            refusals["commit"] = True
    assert len(set(refusals.values())) == 1, f"owned by some views only: {refusals}"
    if refusals["fence"]:
        assert not assigned
        assert partition not in consumer.paused()
        assert partition not in consumer.lag()
        assert partition not in consumer.unreachable()
        return Standing.FOREIGN
    return Standing.OURS if assigned else Standing.DRAINING


class Asked(RebalanceListener):
    """Calls every view while its callbacks run."""

    def __init__(self) -> None:
        self.consumer: Consumer
        self.told: list[tuple[str, frozenset[TopicPartition], set[Standing]]] = []

    async def _ask(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        found = {await standing(self.consumer, each, commits=what != "lost") for each in partitions}
        self.told.append((what, partitions, found))

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._ask("assigned", partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._ask("revoked", partitions)

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self._ask("lost", partitions)

    def found(self, what: str) -> set[Standing]:
        return set().union(*(found for each, _, found in self.told if each == what))


class Moves(Service):
    """A topic of two partitions with records, and the members of one group."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, membership: str) -> None:
        super().__init__(cluster, topic, group, membership, 2)
        self.every = set(self.partitions)
        if membership == "fixed":
            self.topics = ()

    def asked(self, **options: Any) -> tuple[Consumer, Asked]:
        asked = Asked()
        asked.consumer = self.consumer(listener=asked, settle_s=0.3, **{"auto_commit_interval_s": 600.0, **options})
        return asked.consumer, asked

    def take_all(self, consumer: Consumer) -> None:
        """Assigns both partitions by hand, where no group does."""
        if self.membership == "fixed":
            consumer.assign(self.every)

    async def all_are(self, wanted: Standing, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            assert await standing(consumer, partition) is wanted, partition


@pytest.fixture
def moves(
    request: pytest.FixtureRequest, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> Moves:
    return Moves(kafka_cluster, topic_factory(2), group, request.param)


def each(*memberships: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("moves", memberships, indirect=True)


async def holds(consumer: Consumer, partitions: set[TopicPartition], timeout_s: float = 60) -> None:
    await wait_until_async(
        lambda: consumer.assignment() == partitions, timeout_s, lambda: f"{partitions}, not {consumer.assignment()}"
    )


async def released(consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
    await wait_until_async(lambda: all(refused(partial(consumer.fence, p)) for p in partitions), 30, "the release")


async def in_hand(consumer: Consumer, partitions: set[TopicPartition]) -> None:
    """Returns with records of all these partitions in the reader's hands."""
    await wait_until_async(lambda: consumer.lag().keys() >= partitions, 30, "the ends of the logs")
    while True:
        for partition in partitions:
            consumer.seek(partition, 0)
        if (await consumer.getmany(5)).keys() == partitions:
            return


@each(*MEMBERSHIPS)
async def test_all_views_agree_at_each_step_of_a_move(moves: Moves) -> None:
    await moves.produce(0, 200)
    (one, asked), (two, asked_too) = moves.asked(), moves.asked()
    every = moves.every
    async with one:
        moves.take_all(one)
        await holds(one, every)
        await moves.all_are(Standing.OURS, one, every)
        await in_hand(one, every)
        before = {partition: one.fence(partition) for partition in every}
        # a pause of the user's must not outlast the ownership
        one.pause(*every)
        async with two:
            await moves.all_are(Standing.FOREIGN, two, every - two.assignment())
            if moves.membership == "fixed":
                one.assign([min(every)])
            await wait_until_async(lambda: len(one.assignment()) < 2, 60, "a revocation")
            leaving = every - one.assignment()
            await moves.all_are(Standing.DRAINING, one, leaving)
            for partition in leaving:
                one.seek(partition, 0)
                one.resume(partition)
                assert await standing(one, partition) is Standing.DRAINING, "a seek ended the drain"
            # asking for more is done with the records in hand, and ends the drain
            batch = await one.getbatch(1)
            assert batch is None or (batch.topic, batch.partition) not in leaving
            if moves.membership == "fixed":
                await released(one, leaving)
                two.assign(leaving)
            await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 1, 60, "one each")
            (moved,), (kept,) = two.assignment(), one.assignment()
            await moves.all_are(Standing.FOREIGN, one, {moved})
            await moves.all_are(Standing.OURS, one, {kept})
            await moves.all_are(Standing.OURS, two, {moved})
            await moves.all_are(Standing.FOREIGN, two, {kept})
            if moves.membership in GROUPS:
                assert two.fence(moved) > before[moved]
        moves.take_all(one)
        await holds(one, every)
        await moves.all_are(Standing.OURS, one, every)
        assert moved not in one.paused(), "it came back with the pause of an earlier ownership"
        one.seek(moved, 3)
        assert await position(one, moved) == 3
    await moves.all_are(Standing.FOREIGN, one, every)
    for listener in (asked, asked_too):
        assert listener.found("assigned") == {Standing.OURS}
        assert listener.found("revoked") == {Standing.DRAINING}
        assert listener.found("lost") == set()


@each(*MEMBERSHIPS)
async def test_all_views_agree_while_a_handler_keeps_a_partition(moves: Moves) -> None:
    await moves.produce(0, 200)
    (one, asked), (two, _) = moves.asked(auto_commit_interval_s=None), moves.asked()
    every, go_on, began = moves.every, asyncio.Event(), set()

    async def handle(record: Any) -> None:
        began.add((record.topic, record.partition))
        await go_on.wait()

    async with one:
        moves.take_all(one)
        await holds(one, every)
        work = asyncio.ensure_future(one.process(handle))
        await wait_until_async(lambda: began == every, 30, "a call for each partition")
        async with two:
            if moves.membership == "fixed":
                one.assign([min(every)])
            await wait_until_async(lambda: len(one.assignment()) < 2, 60, "a revocation")
            leaving = every - one.assignment()
            await moves.all_are(Standing.DRAINING, one, leaving)
            go_on.set()
            if moves.membership == "fixed":
                await released(one, leaving)
                two.assign(leaving)
            await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 1, 60, "one each")
            await moves.all_are(Standing.FOREIGN, one, two.assignment())
            await moves.all_are(Standing.OURS, two, two.assignment())
        work.cancel()
        await asyncio.wait({work})
    assert asked.found("revoked") == {Standing.DRAINING}


@each(*GROUPS)
async def test_all_views_agree_after_a_loss_and_a_return(moves: Moves) -> None:
    await moves.produce(0, 200)
    one, asked = moves.asked(max_poll_interval_s=1.5)
    every = moves.every
    async with one:
        await in_hand(one, every)
        stale = {partition: one.fence(partition) for partition in every}
        # no task polls, so the member leaves and loses its partitions
        await wait_until_async(lambda: any(what == "lost" for what, *_ in asked.told), 30, "the loss")
        assert asked.found("lost") == {Standing.FOREIGN}
        assert not one.may_act()
        await moves.all_are(Standing.FOREIGN, one, every)
        for partition in every:
            with pytest.raises((NotOwned, CommitFailed)):
                await one.commit({partition: 1})
        while one.assignment() != every:
            await one.getbatch(0.1)
        await moves.all_are(Standing.OURS, one, every)
        if moves.membership == "zookeeper":
            assert all(one.fence(partition) > fence for partition, fence in stale.items())
        one.seek(min(every), 7)
        assert await position(one, min(every)) == 7
