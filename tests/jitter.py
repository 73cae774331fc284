"""Random delays of responses: `pytest --jitter SEED`, or `--jitter SEED:SECONDS` for delays of up to so many seconds.

Servers on the tests' machine respond at once and in turn, so many orders of events never occur. With this option, two
of five responses are delayed, most by up to 60 ms, some by up to 400. Responses of ZooKeeper stay in order, as a
session promises, but each client gets them at another time. Requests to brokers may overtake each other. Every test
should pass unless it measures tenths of a second.

With seconds, one request in ten and each fourth new connection are delayed by up to that long, as over a slow line.
Tests with shorter session timeouts or deadlines fail then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from allocator.core.client.client import KafkaClient
from allocator.core.client.connection import BrokerConnection
from allocator.protocols.zookeeper.client.client import ZooKeeperClient

__all__ = ["install"]


def install(option: str) -> None:
    """Delays the responses of all clients of this process. `option`: SEED or SEED:SECONDS."""
    seed, _, longest = option.partition(":")
    rng, longest_s = random.Random(int(seed)), float(longest or 0.0)

    def wait_s() -> float:
        chance = rng.random()
        return 0.0 if chance < 0.6 else rng.uniform(0, 0.06 if chance < 0.93 else 0.4)

    def far_s(chance: float) -> float:
        return rng.uniform(0, longest_s) if longest_s and rng.random() < chance else 0.0

    # when the last response reaches each client
    due: WeakKeyDictionary[ZooKeeperClient, float] = WeakKeyDictionary()

    def post(client: ZooKeeperClient, function: Callable[..., None], *args: Any) -> None:
        def later() -> None:
            loop = asyncio.get_running_loop()
            # never two at one time: the loop would not keep their order
            due[client] = at = max(due.get(client, 0.0) + 1e-6, loop.time() + wait_s())
            loop.call_at(at, function, *args)

        undelayed_post(client, later)

    async def slow_exchange(client: KafkaClient, broker_id: Any, request: Any, deadline: float) -> Any:
        await asyncio.sleep(wait_s())
        response = await exchange(client, broker_id, request, deadline)
        await asyncio.sleep(wait_s() + far_s(0.1))
        return response

    def buffer_updated(connection: BrokerConnection, count: int) -> None:
        """Leaves the bytes of a connection that is not ready in its socket, so that its broker seems slow."""
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

    undelayed_post, exchange = ZooKeeperClient._post, KafkaClient._exchange
    received = BrokerConnection.buffer_updated
    BrokerConnection.buffer_updated = buffer_updated  # type: ignore[method-assign]
    ZooKeeperClient._post = post  # type: ignore[method-assign]
    KafkaClient._exchange = slow_exchange  # type: ignore[method-assign]
