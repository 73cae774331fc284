"""A tornado service that counts the orders of each customer, and serves the counts over HTTP.

    python -m examples.web_service --brokers localhost:9092 --zookeeper localhost:2181 --port 8000
    curl http://localhost:8000/customers/ada        {"customer": "ada", "orders": 3}
    curl http://localhost:8000/ready                200 while the lease of this process is valid, else 503

One event loop reads and serves. If you start several processes, each counts the customers of its own partitions.
Records are keyed by customer, so all records of a customer are in one partition. When a partition is revoked, its
counts are dropped, and the new owner counts from the first record, because counts in memory have no committed offset.
So the example seeks, and does not commit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections import Counter

from tornado.web import Application, RequestHandler

from allocator import Consumer, RebalanceListener, TopicPartition


class Counts(RebalanceListener):
    """Orders by customer, in the owned partitions."""

    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, Counter[str]] = {}
        self.consumer: Consumer | None = None

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        assert self.consumer is not None
        for partition in partitions:
            self.by_partition[partition] = Counter()
            self.consumer.seek(partition, 0)  # if it is deleted, `auto_offset_reset` chooses the oldest record

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            del self.by_partition[partition]

    def of(self, customer: str) -> int:
        return sum(counter[customer] for counter in self.by_partition.values())


class Customer(RequestHandler):
    def initialize(self, counts: Counts) -> None:
        self.counts = counts

    def get(self, name: str) -> None:
        self.write({"customer": name, "orders": self.counts.of(name)})


class Ready(RequestHandler):
    def initialize(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def get(self) -> None:
        # without ZooKeeper the lease expires, and another member may own the partitions
        ready = self.consumer.may_act()
        self.set_status(200 if ready else 503)
        self.write({"ready": ready, "partitions": len(self.consumer.assignment())})


async def count(consumer: Consumer, counts: Counts) -> None:
    async for batch in consumer:
        counter = counts.by_partition[TopicPartition(batch.topic, batch.partition)]
        counter.update((record.key or b"").decode() for record in batch)


async def serve(options: argparse.Namespace) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    counts = Counts()
    consumer = Consumer(
        options.topic,
        brokers=options.brokers,
        zookeeper=options.zookeeper,
        group=options.group,
        listener=counts,
        auto_commit_interval_s=None,
    )
    routes = [(r"/customers/(\w[\w.-]*)", Customer, {"counts": counts}), (r"/ready", Ready, {"consumer": consumer})]
    counts.consumer = consumer
    async with consumer:
        server = Application(routes).listen(options.port, options.address)
        print(f"listening on {options.address}:{options.port}", flush=True)
        counting, stopping = asyncio.ensure_future(count(consumer, counts)), asyncio.ensure_future(asked.wait())
        try:
            # a signal or an error of the consumer ends the wait
            done, _ = await asyncio.wait({counting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            server.stop()
            await server.close_all_connections()
            for task in (counting, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--zookeeper", default="localhost:2181")
    parser.add_argument("--group", default="order-counts")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
