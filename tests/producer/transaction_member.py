"""A member process that writes a result for each record, in transactions, and may stop itself at a chosen request.

    python transaction_member.py '{"out": ..., "stop": ["EndTxn", "before", "freeze", 2], "consumer": {...}}'

Prints one word a line for each event.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from allocator import Consumer, Produce, Producer
from allocator.core.client import KafkaClient
from allocator.core.consumer import membership_from
from allocator.errors import AllocatorError, BrokerError


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def stop_at(request: str, when: str, how: str, count: int) -> None:
    """Freezes or kills this process before it sends the `count`-th request of this name, or after the response.

    "cut" closes the connection instead, as soon as the request is on its way, or when its response is there; the caller
    gets neither.
    """
    send, sent, stopped = KafkaClient.send, 0, False

    async def stopping(self: Any, node: int, message: Any, *rest: Any, **more: Any) -> Any:
        nonlocal sent, stopped
        if not type(message).__name__.startswith(request):
            return await send(self, node, message, *rest, **more)
        sent += 1
        number = sent  # the transactions of several partitions send at the same time
        if how == "cut" and number >= count and not stopped:
            stopped = True
            going = asyncio.ensure_future(send(self, node, message, *rest, **more))
            if when == "after":
                await asyncio.wait({going})
            else:
                await asyncio.sleep(0)  # the request goes out if the connection is open
            self.hang_up(node, type(message))
            say("stops")
            await asyncio.wait({going})
            going.exception()  # marks it as retrieved
            raise BrokerError("the connection was cut", retriable=True)
        response = await send(self, node, message, *rest, **more) if when == "after" else None
        if number >= count and not stopped:
            stopped = True
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP if how == "freeze" else signal.SIGKILL)
        return await send(self, node, message, *rest, **more) if when == "before" else response

    KafkaClient.send = stopping  # type: ignore[method-assign]


async def main(out: str, stop: Any, consumer: dict[str, Any], mode: str = "block") -> None:
    if stop is not None:
        stop_at(*stop)
    consumer["membership"] = membership_from(consumer.pop("membership"), consumer.pop("joins"))
    brokers = consumer["brokers"]
    async with (
        Producer(brokers=brokers, linger_s=0.0) as producer,
        Consumer(*consumer.pop("topics"), auto_commit_interval_s=None, transactions=producer, **consumer) as member,
    ):
        if mode == "process":

            async def handle(record: Any) -> Produce:
                return Produce(out, record.value, key=record.key)

            await member.process(handle, results="exactly-once", ordering="key")
            return
        while True:
            try:
                batch = await member.getbatch()
                assert batch is not None
                async with producer.transaction(member) as transaction:
                    for record in batch:
                        await transaction.send(out, record.value, record.key)
                say("committed")
            except AllocatorError as error:
                if not error.retriable:
                    say(f"failed {error!r}")
                    raise
                say("again")
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
