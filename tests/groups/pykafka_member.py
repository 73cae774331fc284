"""A service as pykafka's users wrote it: commits after the values are handled.

    python pykafka_member.py BROKERS ZOOKEEPER GROUP TOPIC VERSION

Prints its actions on standard output, one JSON object in each line. Ends with its standard input.
"""

import json
import logging
import sys
import threading
import time

from pykafka import KafkaClient

brokers, zookeeper, group, topic, version = sys.argv[1:]
stop = threading.Event()


def report(**what):
    sys.stdout.write(json.dumps(dict(what, t=time.time())) + "\n")
    sys.stdout.flush()


def wait_for_end():
    sys.stdin.read()
    stop.set()


logging.basicConfig(stream=sys.stderr, level=logging.INFO)
threading.Thread(target=wait_for_end, daemon=True).start()
client = KafkaClient(hosts=brokers, zookeeper_hosts=zookeeper, broker_version=version)
consumer = client.topics[topic].get_balanced_consumer(
    group,
    zookeeper_connect=zookeeper,
    zookeeper_connection_timeout_ms=6000,
    consumer_timeout_ms=200,
    rebalance_max_retries=10,
    rebalance_backoff_ms=1000,
)
report(what="joined", name=consumer._consumer_id.decode())
while not stop.is_set():
    message = consumer.consume()
    if message is not None:
        report(what="got", partition=message.partition_id, values=[json.loads(message.value)])
        consumer.commit_offsets()
consumer.stop()
report(what="left")
