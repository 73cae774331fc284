"""A tornado service that was written for kiel, with one import changed.

Run it as `python -m examples.tornado_service localhost:9092 localhost:2181 orders`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

from tornado import gen, ioloop

from allocator import GroupedConsumer  # was: from kiel.clients import GroupedConsumer


@gen.coroutine
def serve(brokers: str, zookeeper: str, topic: str) -> Generator[Any, Any, None]:
    consumer = GroupedConsumer(brokers=[brokers], group="billing", zk_hosts=[zookeeper], autocommit=False)
    yield consumer.connect()
    try:
        while True:
            messages = yield consumer.consume(topic)
            for message in messages:
                print(message, flush=True)
            yield consumer.commit_offsets()
    finally:
        yield consumer.close()


if __name__ == "__main__":
    ioloop.IOLoop.current().run_sync(lambda: serve(*sys.argv[1:4]))
