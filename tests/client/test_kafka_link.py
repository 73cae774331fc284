"""Whose turn it is to write to a broker."""

from __future__ import annotations

import asyncio

from background import background

from allocator.client.connection import BrokerSocket
from allocator.testing import wait_until_async


async def test_who_waited_for_a_full_socket_writes_before_who_comes_when_it_has_drained() -> None:
    """A broker refuses the batches of a producer that come out of order."""
    link, order = BrokerSocket("broker", lambda: None), []

    async def write(number: int) -> None:
        await link.drained()
        order.append(number)

    async with background() as tasks:
        link.pause_writing()
        waiting = [tasks.start(write(number), f"{number}") for number in (1, 2, 3)]
        await asyncio.sleep(0)  # all have begun to wait
        waiting[1].cancel()
        link.resume_writing()
        waiting.append(tasks.start(write(4), "4"))
        await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [1, 3, 4]


async def test_what_was_written_first_may_fill_it_again() -> None:
    link, order = BrokerSocket("broker", lambda: None), []

    async def write(number: int) -> None:
        await link.drained()
        order.append(number)
        link.pause_writing()

    async with background() as tasks:
        link.pause_writing()
        for number in (1, 2):
            tasks.start(write(number), f"{number}")
        for number in (1, 2):
            await asyncio.sleep(0)
            link.resume_writing()
            await wait_until_async(lambda than=number: len(order) == than, 30, "one of them")
    assert order == [1, 2]
