"""One program for kiel 0.9.3 (Python 2.7) and for allocator: it produces with the client that the first argument names.

    python kiel_producer.py kiel|allocator BROKERS TOPIC

TOPIC has three partitions. Prints a JSON line for each step.
"""

import json
import logging
import sys

from tornado import gen, ioloop

if sys.argv[1] == "kiel":
    from kiel.clients import Producer
else:
    from allocator import KielProducer as Producer

brokers, topic = sys.argv[2:]
ACCENT = b"\xc3\xa9".decode("utf-8")  # unicode in Python 2.7
logging.basicConfig(level=logging.ERROR)


def show(step, what):
    sys.stdout.write(json.dumps([step, what]) + "\n")
    sys.stdout.flush()


def chosen(key, partitions):
    return sorted(partitions)[key % len(partitions)]


@gen.coroutine
def produce():
    first = Producer(brokers.split(","), partitioner=lambda key, partitions: 2)
    yield first.connect()
    show("produce returns", (yield first.produce(topic, {"b": [1, None], "a": ACCENT})))
    show("an unknown topic", (yield first.produce("unknown-" + topic, {"a": 1})))
    show("unsent", first.unsent_count)
    yield first.close()
    show("closed", (yield first.produce(topic, 1)))

    for compression in (None, 1):  # kiel needs another package for snappy
        second = Producer(
            brokers.split(","),
            key_maker=lambda message: message["k"],
            partitioner=chosen,
            batch_size=3,
            compression=compression,
        )
        yield second.connect()
        unsent = []
        for n in range(4):
            yield second.produce(topic, {"k": n})
            unsent.append(second.unsent_count)
        show("unsent", unsent)
        yield second.close()
        show("unsent after close", second.unsent_count)

    third = Producer(brokers.split(","), serializer=lambda message: message, partitioner=lambda key, partitions: 1)
    yield third.connect()
    for message in (None, 5, ACCENT, b"\xff", b""):
        yield third.produce(topic, message)
    yield third.close()


ioloop.IOLoop.current().run_sync(produce)
