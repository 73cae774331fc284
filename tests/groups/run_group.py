"""Runs the coordinator of one group protocol for a test."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from allocator.core.client.client import KafkaClient

R = TypeVar("R", bound="RunGroup")


class RunGroup:
    """`async with RunGroup(...) as m`: joins, unless `wait` is False; leaves at the end."""

    def __init__(self, client: KafkaClient, recorder: Any, group: Any, wait: bool) -> None:
        self.client = client
        self.recorder = recorder
        self.group = group
        self._wait = wait

    async def __aenter__(self: R) -> R:
        await self.client.connect(10)
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(self.group.run(self.joined))
        if self._wait:
            await self.joined
        return self

    async def __aexit__(self, *_: object) -> None:
        self.recorder.go.set()
        self.group.leave()
        await self.task
        if self.joined.done() and not self.joined.cancelled():
            self.joined.exception()
        await self.client.close()
