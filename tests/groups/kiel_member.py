"""A service as kiel's users wrote it, for Python 2.7: commits after the values are handled.

    python2.7 kiel_member.py BROKERS ZOOKEEPER GROUP TOPIC

Prints its actions on standard output, one JSON object in each line. Ends with its standard input.
"""

import json
import logging
import sys
import threading
import time

from kiel import clients
from tornado import gen, ioloop

brokers, zookeeper, group, topic = sys.argv[1:]
stop = threading.Event()


def report(**what):
    sys.stdout.write(json.dumps(dict(what, t=time.time())) + "\n")
    sys.stdout.flush()


def wait_for_end():
    sys.stdin.read()
    stop.set()


@gen.coroutine
def run():
    consumer = clients.GroupedConsumer(
        brokers.split(","), group, zookeeper.split(","), autocommit=False, max_wait_time=200
    )
    yield consumer.connect()
    held = None
    report(what="joined", name=consumer.name)
    while not stop.is_set():
        now = sorted(consumer.allocation.get(topic, ()))
        if now != held:
            held = now
            report(what="holds", partitions=now)
        if not now:
            yield gen.sleep(0.05)
            continue
        values = yield consumer.consume(topic)
        if values:
            report(what="got", values=values)
        yield consumer.commit_offsets()
    yield consumer.close()
    report(what="left")


logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
reader = threading.Thread(target=wait_for_end)
reader.daemon = True
reader.start()
ioloop.IOLoop.instance().run_sync(run)
