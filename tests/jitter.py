"""Random delays of responses: `pytest --jitter SEED`.

Servers on the tests' machine answer at once and in turn, so many an order of events never comes up. With this, two of
five answers wait, most for up to 60 ms, some for up to 400. What ZooKeeper says stays in order, as a session promises,
but reaches one client late and another at once; requests to brokers may pass each other. Every test should hold all the
same, unless it measures tenths of a second.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from allocator.client.client import KafkaClient
from allocator.zookeeper.client import ZooKeeper

__all__ = ["install"]


def install(seed: int) -> None:
    """For all clients of this process, to its end."""
    rng = random.Random(seed)

    def wait_s() -> float:
        chance = rng.random()
        return 0.0 if chance < 0.6 else rng.uniform(0, 0.06 if chance < 0.93 else 0.4)

    told: WeakKeyDictionary[ZooKeeper, float] = WeakKeyDictionary()  # -> when the last thing said reaches the client

    def post(client: ZooKeeper, function: Callable[..., None], *args: Any) -> None:
        def later() -> None:
            loop = asyncio.get_running_loop()
            # never two at one time: the loop would not keep their order
            told[client] = at = max(told.get(client, 0.0) + 1e-6, loop.time() + wait_s())
            loop.call_at(at, function, *args)

        heard(client, later)

    async def slow_exchange(client: KafkaClient, broker_id: Any, request: Any, deadline: float) -> Any:
        await asyncio.sleep(wait_s())
        answer = await exchange(client, broker_id, request, deadline)
        await asyncio.sleep(wait_s())
        return answer

    heard, exchange = ZooKeeper._post, KafkaClient._exchange
    ZooKeeper._post = post  # type: ignore[method-assign]
    KafkaClient._exchange = slow_exchange  # type: ignore[method-assign]
