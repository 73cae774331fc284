"""Gives Spark's driver and Python workers synchronous access to one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from allocator.core.client import KafkaClient
from allocator.spark.options import Options

T = TypeVar("T")


class ClusterLink:
    """Runs a client on an event loop that runs only inside `run`. Close it, or use `with`.

    Guarantee: it starts no thread, and `close` closes the loop.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: KafkaClient | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` and returns its result; `work` may await `client`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    async def client(self) -> KafkaClient:
        """Returns the connected client. Raises BrokersUnavailable."""
        if self._client is None:
            options = self._options
            client = KafkaClient(options.brokers, client_id="allocator-spark", security=options.security)
            await client.connect(options.timeout_s)
            self._client = client
        return self._client

    def close(self) -> None:
        loop, self._loop = self._loop, None
        client, self._client = self._client, None
        if loop is None:
            return
        try:
            if client is not None:
                loop.run_until_complete(client.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def __enter__(self) -> ClusterLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
