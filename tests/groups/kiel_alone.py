"""One unmodified member of kiel 0.9.3, with rebalances at two critical moments. For Python 2.7.

    python2.7 kiel_alone.py BROKERS ZOOKEEPER GROUP TOPIC

Reads and commits all records, waits for a line on standard input, and reads the newer records. Another member's znode
is created while a response with records is on its way, and deleted during a request for offsets. Prints all values.
"""

import json
import sys

from kazoo.client import KazooClient
from kiel import clients
from tornado import gen, ioloop

brokers, zookeeper, group, topic = sys.argv[1:]
other = KazooClient(zookeeper)
znode = "/kiel/groups/" + group + "/members/another"


@gen.coroutine
def rebalanced(consumer, change):
    before = sorted(consumer.allocation[topic])
    change()
    while sorted(consumer.allocation[topic]) == before or topic in consumer.synced_offsets:
        yield gen.sleep(0.01)


@gen.coroutine
def run():
    consumer = clients.GroupedConsumer([brokers], group, [zookeeper], autocommit=False, max_wait_time=200)
    yield consumer.connect()
    send, moments = consumer.send, []

    @gen.coroutine
    def send_and_rebalance(requests):
        results = yield send(requests)
        kind = type(next(iter(requests.values()))).__name__
        if moments and kind == moments[0][0] and any(results.values()) == (kind == "FetchRequest"):
            yield rebalanced(consumer, moments.pop(0)[1])
        raise gen.Return(results)

    consumer.send = send_and_rebalance
    values = []
    while True:
        some = yield consumer.consume(topic)
        yield consumer.commit_offsets()
        if not some and values:
            break
        values += some
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    moments += [
        ("FetchRequest", lambda: other.create(znode, ephemeral=True)),
        ("OffsetFetchRequest", lambda: other.delete(znode)),
    ]
    for _ in range(10):
        some = yield consumer.consume(topic)
        values += some
        yield consumer.commit_offsets()
    assert not moments
    sys.stdout.write(json.dumps(values) + "\n")
    yield consumer.close()


other.start()
ioloop.IOLoop.instance().run_sync(run)
other.stop()
