"""Helpers for the tests of both consumers with kiel's interface."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from allocator.testing import wait_until_async


def closing(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Closes the consumers of `scene` at the end of the test, in its loop."""

    @functools.wraps(test)
    async def closed(scene: Any, **fixtures: Any) -> None:
        try:
            await test(scene=scene, **fixtures)
        finally:
            for consumer in scene.consumers:
                await consumer.close()

    return closed


async def consume_values(consumer: Any, topic: str, count: int, start: Any = None) -> list[Any]:
    """Consumes until there are `count` values."""
    values: list[Any] = []

    async def enough() -> bool:
        values.extend(await consumer.consume(topic, start) or [])
        return len(values) >= count

    await wait_until_async(enough, 30, lambda: f"{len(values)} of {count} values")
    return values
