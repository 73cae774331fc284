"""A member in its own process, which a test can kill; it commits after it has handled the values.

    python allocator_member.py '{"topic": ..., and the arguments of Consumer}'

Prints its actions on standard output, one JSON object in each line. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

from allocator import Consumer, GroupedConsumer, RebalanceListener, TopicPartition
from allocator.core.consumer import membership_from


def report(**what: Any) -> None:
    sys.stdout.write(json.dumps({**what, "t": time.time()}) + "\n")
    sys.stdout.flush()


class PrintingListener(RebalanceListener):
    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        report(what="begin", partitions=sorted(p.partition for p in partitions))

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        report(what="end", partitions=sorted(p.partition for p in partitions))


async def run_grouped(topic: str, options: dict[str, Any]) -> None:
    """The service for kiel, with allocator's GroupedConsumer."""
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    brokers, zookeeper = options.pop("brokers").split(","), options.pop("zookeeper").split(",")
    consumer = GroupedConsumer(brokers, options.pop("group"), zookeeper, autocommit=False, max_wait_time=200, **options)
    await consumer.connect()
    held = None
    while not stop.done():
        now = consumer.allocation.get(topic, [])
        if now != held:
            held = now
            report(what="holds", partitions=now)
        values = await consumer.consume(topic)
        if values:
            report(what="got", values=values)
        await consumer.commit_offsets()
    await consumer.close()
    report(what="left")


async def run(topic: str, options: dict[str, Any]) -> None:
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    consumer = Consumer(topic, listener=PrintingListener(), auto_commit_interval_s=0.2, max_wait_s=0.1, **options)
    async with consumer:
        report(what="joined", name=consumer.member_id)
        while not stop.done():
            batch = await consumer.getbatch(0.2)
            if batch is not None:
                report(what="got", partition=batch.partition, values=[json.loads(record.value) for record in batch])
    report(what="left")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    arguments = json.loads(sys.argv[1])
    arguments["membership"] = membership_from(arguments["membership"], arguments.pop("joins"))
    service = run_grouped if arguments.pop("grouped", False) else run
    asyncio.run(service(arguments.pop("topic"), arguments))
