"""A member of kiel 0.9.3 in Python 2.7: processes the values that `consume` returns, then commits.

Autocommit is off, because kiel would commit a batch before it returns it. `consume` returns only values, so this member
overrides the method that decodes them, to return partitions and offsets.
"""

import ctypes
import json
import logging
import os
import signal
import sys

from kiel.clients import GroupedConsumer
from tornado import gen, ioloop


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


LIBC = ctypes.CDLL("libc.so.6", use_errno=True)


def monotonic():
    """Returns CLOCK_MONOTONIC in seconds. Python 2.7 has no function for it."""
    now = Timespec()
    LIBC.clock_gettime(1, ctypes.byref(now))
    return now.seconds + now.nanoseconds / 1e9


class Consumer(GroupedConsumer):
    def deserialize_messages(self, topic_name, partition):
        offsets = [offset for offset, _ in partition.message_set.messages]
        values = GroupedConsumer.deserialize_messages(self, topic_name, partition)
        return [(partition.partition_id, offset) for offset, _ in zip(offsets, values)]


class Member:
    def __init__(self, settings):
        self.settings = settings
        self.topic = str(settings["topic"])
        self.file = os.open(settings["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.mine = set()
        self.stopping = False
        self.consumer = Consumer(
            str(settings["brokers"]).split(","),
            str(settings["group"]),
            str(settings["zookeeper"]).split(","),
            deserializer=lambda value: value,
            autocommit=False,
            max_wait_time=100,
        )
        # kiel has no setting for the session timeout
        self.consumer.allocator.conn._session_timeout = int(settings["session_timeout_s"] * 1000)

    def write(self, what, **event):
        line = dict(event, at=monotonic(), what=what)
        os.write(self.file, json.dumps(line).encode() + b"\n")

    def notice(self):
        """Writes changes of kiel's allocation to the journal, as assignments and revocations."""
        try:
            now = set(self.consumer.allocation[self.topic])
        except KeyError:
            now = set()  # the member owns no partition of the topic
        for what, partitions in (("revoked", self.mine - now), ("own", now - self.mine)):
            if partitions:
                self.write(what, partitions=sorted(partitions))
        self.mine = now

    @gen.coroutine
    def run(self):
        self.write("joined")
        yield self.consumer.connect()
        while not self.stopping:
            try:
                yield self.step()
            except Exception:  # a service continues after any error
                logging.exception("consuming")
                yield gen.sleep(0.2)
        self.write("revoked", partitions=sorted(self.mine))
        yield self.consumer.close()
        self.write("left")

    @gen.coroutine
    def step(self):
        messages = yield self.consumer.consume(self.topic)
        self.notice()
        for partition, offset in messages or ():
            if partition not in self.mine:
                self.mine.add(partition)
                self.write("own", partitions=[partition])
            began = monotonic()
            yield gen.sleep(self.settings["work_s"])
            self.write("did", partition=partition, offset=offset, **{"from": began})
        if messages:
            offsets = {}
            for partition in self.consumer.allocation.get(self.topic, ()):
                offsets[partition] = self.consumer.offsets[self.topic][partition]
            yield self.consumer.commit_offsets()
            self.write("commit", offsets=offsets)
        else:
            yield gen.sleep(0.05)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    member = Member(json.loads(sys.argv[1]))
    loop = ioloop.IOLoop.current()

    def stop(*_):
        member.stopping = True

    signal.signal(signal.SIGTERM, stop)
    loop.run_sync(member.run)
