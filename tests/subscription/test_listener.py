"""Listeners: required methods, and their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import aiokafka
import pytest
from kafka.consumer import subscription_state as kafka_python

from allocator import Consumer
from allocator.core.membership import HoldingListener
from allocator.core.subscription import RebalanceListener, Tenure, Tenures
from allocator.core.subscription.listener import RebalanceEvent
from allocator.operate.switching import SwitchingConsumer
from allocator.types import TopicPartition

PARTS = frozenset({TopicPartition("a", 0), TopicPartition("a", 1)})
Calls = list[tuple[str, Collection[TopicPartition]]]


class Plain(RebalanceListener):
    def __init__(self) -> None:
        self.calls: Calls = []

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> object:
        self.calls.append(("revoked", partitions))
        return None

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> object:
        self.calls.append(("assigned", partitions))
        return None


class Awaited(Plain):
    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", partitions))

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("assigned", partitions))


def of_another_client(kind: type[Plain], base: type[Any]) -> type[Any]:
    """A listener without `on_partitions_lost`, with the other methods of `kind`."""
    names = ("__init__", "on_partitions_revoked", "on_partitions_assigned")
    return type(f"{kind.__name__}{base.__module__}", (base,), {name: getattr(kind, name) for name in names})


OTHERS = (object, kafka_python.ConsumerRebalanceListener, kafka_python.AsyncConsumerRebalanceListener)
WITHOUT_LOST = [
    Plain,
    Awaited,
    *(of_another_client(k, b) for k in (Plain, Awaited) for b in (*OTHERS, aiokafka.ConsumerRebalanceListener)),
]


def hearing(listener: Any) -> HoldingListener:
    return HoldingListener(Tenures(Tenure), listener)


async def hear_all(listener: Any) -> None:
    for event in (RebalanceEvent.ASSIGNED, RebalanceEvent.REVOKED, RebalanceEvent.LOST):
        await hearing(listener).notify(event, PARTS)


@pytest.mark.parametrize("kind", WITHOUT_LOST)
async def test_a_listener_without_on_partitions_lost_gets_revoked_instead(kind: type[Any]) -> None:
    listener = kind()
    await hear_all(listener)
    assert listener.calls == [("assigned", PARTS), ("revoked", PARTS), ("revoked", PARTS)]


@pytest.mark.parametrize("base", [Plain, Awaited])
async def test_a_listener_may_distinguish_lost_from_revoked(base: type[Plain]) -> None:
    class WithLost(base):  # type: ignore[misc,valid-type]
        def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
            self.calls.append(("lost", partitions))

    listener = WithLost()
    await hear_all(listener)
    assert listener.calls == [("assigned", PARTS), ("revoked", PARTS), ("lost", PARTS)]


async def test_an_error_or_cancellation_in_a_listener_is_logged_and_the_rebalance_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(RebalanceListener):
        def on_partitions_assigned(self, partitions: object) -> None:
            raise ZeroDivisionError("a bug of the user's")

        async def on_partitions_revoked(self, partitions: object) -> None:
            flushing = asyncio.ensure_future(asyncio.sleep(60))
            flushing.cancel()
            await flushing  # raises CancelledError, although no task cancels the listener

        def on_partitions_lost(self, partitions: object) -> None:
            raise asyncio.CancelledError

    await hear_all(Broken())
    assert [record.getMessage().split(" of the listener")[0].rpartition(".")[2] for record in caplog.records] == [
        "on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost",
    ]  # fmt: skip


async def test_a_listener_is_cancelled_with_the_task_that_notifies_it() -> None:
    ended = asyncio.Event()

    class Slow(RebalanceListener):
        async def on_partitions_revoked(self, partitions: object) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    notifying = asyncio.ensure_future(hearing(Slow()).notify(RebalanceEvent.REVOKED, PARTS))
    for _ in range(5):
        await asyncio.sleep(0)
    notifying.cancel()
    await asyncio.wait({notifying}, timeout=30)
    assert notifying.cancelled()
    assert ended.is_set()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (print, "listener"),
        (object(), "no on_partitions"),
        (Plain, "Plain is a class; give an instance"),
        (type("Half", (), {"on_partitions_revoked": print})(), "Half object .* has no on_partitions_assigned; derive"),
    ],
)
def test_an_object_that_is_no_listener_is_rejected_before_anything_changes(wrong: Any, why: str) -> None:
    where = {"brokers": "127.0.0.1:1", "group": "g", "zookeeper": "127.0.0.1:1"}
    for kind in (Consumer, SwitchingConsumer):
        with pytest.raises(TypeError, match=why):
            kind("a", listener=wrong, **where)
    consumer = Consumer("a", listener=Plain(), **where)
    with pytest.raises(TypeError, match=why):
        consumer.subscribe("b", listener=wrong)
    assert consumer.subscription() == {"a"}
