"""One service for kiel 0.9.3 (Python 2.7) and for allocator: it imports the consumers that the first argument names.

    python kiel_service.py kiel|allocator BROKERS ZOOKEEPER GROUP TOPIC PAIR

TOPIC has one partition with 1, no value, {, 4 and the offset 0 committed; PAIR has two, with 10 in the first and 11 in
the second, and 0 committed for both. Prints the values that a user gets, a JSON line for each step.
"""

import json
import logging
import sys

from tornado import gen, ioloop

if sys.argv[1] == "kiel":
    from kiel import clients
else:
    import allocator as clients

brokers, zookeeper, group, topic, pair = sys.argv[2:]
TRIES = 100


def show(step, what):
    sys.stdout.write(json.dumps([step, what]) + "\n")
    sys.stdout.flush()


@gen.coroutine
def consume(consumer, name, count, **how):
    values = []
    for _ in range(TRIES):
        values.extend((yield consumer.consume(name, **how)))
        if len(values) >= count:
            break
    raise gen.Return(values)


def first_of_each(*both):
    members, partitions = both
    mapping = {}
    for each in partitions:
        name, number = each.split(":")
        if number == "0":
            mapping.setdefault(members[0], {}).setdefault(name, []).append(0)
    return mapping


@gen.coroutine
def grouped():
    consumer = clients.GroupedConsumer(
        brokers.split(","), group, zookeeper.split(","), autocommit=False, max_wait_time=200
    )
    yield consumer.connect()
    show("allocation when connect returns", [list(consumer.allocation[topic]), sorted(consumer.allocation[pair])])
    show("allocation of the allocator", sorted(consumer.allocator.allocation[pair]))
    show("values that the deserializer takes", (yield consume(consumer, topic, 2)))
    show("offset", consumer.offsets[topic][0])
    show("topics to commit", sorted(consumer.topics_to_commit))
    consumer.synced_offsets.discard(topic)
    show("taken out of synced_offsets", (yield consume(consumer, topic, 2)))
    yield consumer.commit_offsets()
    show("topics to commit after a commit", sorted(consumer.topics_to_commit))
    consumer.synced_offsets.discard(topic)
    show("the same after a commit", (yield consumer.consume(topic)))
    consumer.offsets[topic][0] = 3
    show("an offset that is set", (yield consume(consumer, topic, 1)))
    consumer.deserializer = lambda value: value is None
    consumer.offsets[topic][0] = 0
    show("a deserializer that takes None", (yield consume(consumer, topic, 4)))
    yield consumer.close()


@gen.coroutine
def function():
    consumer = clients.GroupedConsumer(
        brokers.split(","), group + "-function", zookeeper.split(","), None, first_of_each, max_wait_time=200
    )
    yield consumer.connect()
    show("allocation of a function that leaves partitions out", list(consumer.allocation[pair]))
    yield consumer.close()


@gen.coroutine
def single():
    consumer = clients.SingleConsumer(brokers=brokers.split(","), max_wait_time=200)
    yield consumer.connect()
    show("single: allocation", [sorted(consumer.allocation[topic]), sorted(consumer.allocation[pair])])
    show("single: the end", (yield consumer.consume(pair)))
    show("single: offsets", sorted(consumer.offsets[pair].items()))
    consumer.offsets[pair][1] = 0
    show("single: an offset that is set", (yield consume(consumer, pair, 1)))
    begin = clients.SingleConsumer.BEGINNING
    show("single: the beginning", (yield consume(consumer, topic, 2, start=begin)))
    yield consumer.determine_offsets(pair, begin)
    show("single: determined", sorted((yield consume(consumer, pair, 2))))
    show("single: an unknown topic", (yield consumer.consume("no-such-topic")))
    yield consumer.close()
    show("single: closed", (yield consumer.consume(pair)))


@gen.coroutine
def run():
    yield grouped()
    yield function()
    yield single()


logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
ioloop.IOLoop.instance().run_sync(run)
