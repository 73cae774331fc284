"""Writes records and record batches to Kafka, in order and each once.

In: records or batches, and a connected `KafkaClient`. Out: the offsets at which a broker stored them, or an error that
names the partition. `BatchSender` sends batches; `RecordWriter` and `TransactionalWriter` build on it. `Producer` is
the face of `RecordWriter` for users, with a client of its own. `create_topic` and `add_partitions` prepare the topics
to write to.
"""

from __future__ import annotations

from kafka import errors  # imports `kafka` first, see `protocol.load`

from allocator.producer.columns import ColumnsToSend
from allocator.producer.consumer_transaction import ConsumerTransactions
from allocator.producer.encoding import (
    SMALL_BYTES,
    BatchTooLarge,
    Encoded,
    encode,
    encode_headers,
    halves,
    merged,
    written,
)
from allocator.producer.intake import Intake, TakenRecord
from allocator.producer.partitioner import Partitions, by_key
from allocator.producer.producer import Producer
from allocator.producer.sender import BatchSender, PartitionQueue, SequenceLost
from allocator.producer.topics import add_partitions, create_topic, result_error
from allocator.producer.transaction import NewRecord, RefusedByTopic, TooLargeForTopic, TransactionalWriter
from allocator.producer.writer import RECORD_REFUSED, RecordWriter
