"""A member with kazoo's SetPartitioner, which divides the partitions, and a kafka-python consumer, which reads them.

A careful user would write this program. It checks before each record that the set is acquired, commits every half
second and before it releases the set, and creates a new partitioner after a failure.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.recipe.partitioner import SetPartitioner
from kazoo.retry import KazooRetry

from bench.faults.journal import Journal
from bench.faults.run import pinned_version

SETTLE_S = 0.1  # SetPartitioner's time_boundary; its default of 30 is longer than most faults


class Member:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.topic = settings["topic"]
        self.journal = Journal(settings["journal"])
        self.stop = threading.Event()
        self.zk = KazooClient(
            settings["zookeeper"],
            timeout=settings["session_timeout_s"],
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
        )
        self.consumer = KafkaConsumer(
            bootstrap_servers=settings["brokers"].split(","),
            group_id=settings["group"],  # only for the committed offsets; it joins no Kafka group
            client_id=settings["name"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            api_version=pinned_version(settings["kafka"]),
        )
        self.mine: list[int] = []
        self.done: dict[int, int] = {}

    def run(self) -> None:
        self.zk.start(timeout=30)
        self.journal.write("joined")
        while not self.stop.is_set():
            try:
                partitioner = SetPartitioner(
                    self.zk,
                    f"/set-partitioner/{self.settings['group']}",
                    set(range(self.settings["partitions"])),
                    identifier=self.settings["name"],
                    time_boundary=SETTLE_S,
                )
                self.serve(partitioner)
            except KazooException as error:
                logging.warning("ZooKeeper: %r", error)
                self.give_up("lost", commit=False)
                time.sleep(0.2)
        self.zk.stop()
        self.zk.close()
        self.consumer.close()
        self.journal.write("left")

    def serve(self, partitioner: SetPartitioner) -> None:
        while not self.stop.is_set():
            if partitioner.failed:
                self.give_up("lost", commit=False)
                return
            if partitioner.release:
                self.give_up("revoked")
                partitioner.release_set()
            elif partitioner.acquired:
                self.read(partitioner)
            else:
                partitioner.wait_for_acquire(0.1)
        self.give_up("revoked")
        partitioner.finish()

    def read(self, partitioner: SetPartitioner) -> None:
        if not self.mine:
            self.mine = list(partitioner)
            self.consumer.assign([TopicPartition(self.topic, number) for number in self.mine])
            self.journal.ownership("own", self.mine)
        committed = time.monotonic()
        while partitioner.acquired and not self.stop.is_set():
            try:
                fetched = self.consumer.poll(50, max_records=50)
            except KafkaError as error:
                logging.warning("Kafka: %r", error)
                time.sleep(0.1)
                continue
            for partition, records in fetched.items():
                for record in records:
                    began = time.monotonic()
                    time.sleep(self.settings["work_s"])
                    ended = time.monotonic()
                    if not partitioner.acquired:
                        return
                    self.journal.did(partition.partition, record.offset, began, ended)
                    self.done[partition.partition] = record.offset + 1
            if time.monotonic() - committed > self.settings["commit_s"]:
                self.commit()
                committed = time.monotonic()

    def commit(self) -> None:
        if not self.done:
            return
        offsets = {TopicPartition(self.topic, p): OffsetAndMetadata(o, "", -1) for p, o in self.done.items()}
        try:
            self.consumer.commit(offsets, timeout_ms=10_000)
        except KafkaError as error:
            self.journal.refused(self.done, error)
            return
        self.journal.commit(self.done)
        self.done = {}

    def give_up(self, what: str, commit: bool = True) -> None:
        if not self.mine:
            return
        if commit:
            self.commit()
        self.journal.ownership(what, self.mine)
        self.mine, self.done = [], {}
        self.consumer.assign([])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    member = Member(json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: member.stop.set())
    member.run()
