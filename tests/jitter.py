"""Random delays of responses: `pytest --jitter SEED`, or `--jitter SEED:SECONDS` for delays of up to so many seconds.

Servers on the tests' machine answer at once and in turn, so many an order of events never comes up. With this, two of
five answers wait, most for up to 60 ms, some for up to 400. What ZooKeeper says stays in order, as a session promises,
but reaches one client late and another at once; requests to brokers may pass each other. Every test should hold all the
same, unless it measures tenths of a second.

With seconds, one request in ten and each fourth new connection wait for up to that long, as over a slow line. A test
that gives a member a shorter session, or waits for less, does not hold then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from allocator.core.client.client import KafkaClient
from allocator.core.client.connection import BrokerConnection
from allocator.core.zookeeper.client import ZooKeeperClient

__all__ = ["install"]


def install(option: str) -> None:
    """For all clients of this process, to its end. `option`: SEED or SEED:SECONDS."""
    seed, _, longest = option.partition(":")
    rng, longest_s = random.Random(int(seed)), float(longest or 0.0)

    def wait_s() -> float:
        chance = rng.random()
        return 0.0 if chance < 0.6 else rng.uniform(0, 0.06 if chance < 0.93 else 0.4)

    def far_s(chance: float) -> float:
        return rng.uniform(0, longest_s) if longest_s and rng.random() < chance else 0.0

    # -> when the last thing said reaches the client
    told: WeakKeyDictionary[ZooKeeperClient, float] = WeakKeyDictionary()

    def post(client: ZooKeeperClient, function: Callable[..., None], *args: Any) -> None:
        def later() -> None:
            loop = asyncio.get_running_loop()
            # never two at one time: the loop would not keep their order
            told[client] = at = max(told.get(client, 0.0) + 1e-6, loop.time() + wait_s())
            loop.call_at(at, function, *args)

        heard(client, later)

    async def slow_exchange(client: KafkaClient, broker_id: Any, request: Any, deadline: float) -> Any:
        await asyncio.sleep(wait_s())
        answer = await exchange(client, broker_id, request, deadline)
        await asyncio.sleep(wait_s() + far_s(0.1))
        return answer

    def buffer_updated(connection: BrokerConnection, count: int) -> None:
        """Bytes of a connection that is not ready wait in its socket, so its broker seems slow."""
        if connection.connected or connection.closed or not (pause_s := far_s(0.25)):
            received(connection, count)
            return
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()

        def resume() -> None:
            if not connection.closed:
                received(connection, count)
                transport.resume_reading()

        connection._loop.call_later(pause_s, resume)

    heard, exchange, received = ZooKeeperClient._post, KafkaClient._exchange, BrokerConnection.buffer_updated
    BrokerConnection.buffer_updated = buffer_updated  # type: ignore[method-assign]
    ZooKeeperClient._post = post  # type: ignore[method-assign]
    KafkaClient._exchange = slow_exchange  # type: ignore[method-assign]
