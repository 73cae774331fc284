"""kazoo's SetPartitioner, which divides the partitions, and a kafka-python consumer, which reads them."""

from __future__ import annotations

import threading

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from kazoo.client import KazooClient

from ..journal import Journal
from .base import Threads

__all__ = ["Partitioners"]


class Partitioners(Threads):
    def member(self, name: str, journal: Journal, stop: threading.Event) -> None:
        settings = self.settings
        zk = KazooClient(settings.zookeeper, timeout=settings.session_timeout_s)
        zk.start(timeout=30)
        consumer = KafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,  # only for the committed offsets; it joins no Kafka group
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
            max_poll_records=10_000,
        )
        partitioner = zk.SetPartitioner(
            f"/set-partitioner/{settings.group}", set(settings.all), identifier=name, time_boundary=settings.settle_s
        )
        mine: list[TopicPartition] = []
        while not stop.is_set():
            if partitioner.failed:
                raise RuntimeError("SetPartitioner is in state FAILURE")
            if partitioner.release:
                self._give_up(consumer, journal, mine)
                mine = []
                partitioner.release_set()
            elif partitioner.acquired:
                if not mine:
                    mine = [TopicPartition(settings.topic, number) for number in partitioner]
                    consumer.assign(mine)
                    journal.own(p.partition for p in mine)
                for partition, records in consumer.poll(int(settings.poll_s * 1000)).items():
                    if records:
                        journal.got(partition.partition)
            else:
                partitioner.wait_for_acquire(0.1)
        self.leaves(name)
        self._give_up(consumer, journal, mine)
        partitioner.finish()
        zk.stop()
        zk.close()
        consumer.close()

    def _give_up(self, consumer: KafkaConsumer, journal: Journal, mine: list[TopicPartition]) -> None:
        if mine:
            consumer.commit(dict.fromkeys(mine, OffsetAndMetadata(0, "", -1)))
            journal.drop(p.partition for p in mine)
