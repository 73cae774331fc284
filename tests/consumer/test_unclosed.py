"""A consumer or allocation that was not closed warns when it is collected."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Allocation, Consumer, GroupedConsumer
from allocator.errors import AllocatorError
from allocator.testing import LocalCluster, wait_until


def collected(work: Callable[[], Any], expected: int = 0) -> list[str]:
    """Runs a coroutine in a loop of its own, and returns its ResourceWarnings until it is collected.

    Waits for the `expected` number of them, because a thread of kazoo may still use the object.
    """
    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)

        def found() -> list[str]:
            for each in caught:
                each.source = None  # the transport of a connection, which holds everything that uses it
            gc.collect()
            texts = [str(each.message) for each in caught]
            return [text for text in texts if text.startswith("unclosed ") and "close()" in text]

        asyncio.run(work())
        wait_until(lambda: len(found()) >= expected, 20, lambda: f"the warnings, not {caught}; {held_by()}")
        return found()


def held_by() -> str:
    """Says what still refers to the objects, up to four steps away."""
    lines = []
    for owner in [each for each in gc.get_objects() if isinstance(each, (Allocation, Consumer, GroupedConsumer))]:
        layer: list[Any] = [owner]
        for _ in range(4):
            found = {id(each): each for each in gc.get_referrers(*layer) if not inspect.isframe(each)}
            layer = [each for each in found.values() if each is not layer]
            lines.append(", ".join(sorted({f"{type(each).__name__} {str(each)[:80]}" for each in layer})[:20]))
    return "\n".join(lines)


def test_an_object_that_never_started_or_failed_to_start_does_not_warn() -> None:
    where: dict[str, Any] = {"brokers": "127.0.0.1:1", "zookeeper": "127.0.0.1:1", "group": "g"}

    async def work() -> None:
        Consumer("t", **where)
        for start in (
            Consumer("t", **where, connect_timeout_s=0.2).start,
            GroupedConsumer(["127.0.0.1:1"], "g", ["127.0.0.1:1"], connect_timeout_s=0.2).connect,
            Allocation(["r"], group="g", zookeeper="127.0.0.1:1", connect_timeout_s=0.2).start,
        ):
            with pytest.raises(AllocatorError):
                await start()

    assert collected(work) == []


@pytest.mark.parametrize("kind", ["Consumer", "GroupedConsumer", "Allocation"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_started_and_unclosed_object_warns(kind: str, closed: bool, kafka_cluster: LocalCluster, group: str) -> None:
    async def work() -> None:
        it: Any
        if kind == "Consumer":
            it = Consumer("t", brokers=kafka_cluster.bootstrap, zookeeper=kafka_cluster.zookeeper, group=group)
        elif kind == "GroupedConsumer":
            it = GroupedConsumer(kafka_cluster.bootstrap, group, kafka_cluster.zookeeper)
        else:
            it = Allocation(["r"], group=group, zookeeper=kafka_cluster.zookeeper)
        await (it.connect() if kind == "GroupedConsumer" else it.start())
        if closed:
            await it.close()

    assert [text.split(":")[0] for text in collected(work, int(not closed))] == (
        [] if closed else [f"unclosed {kind} of group {group!r}"]
    )
