"""One producer: record batches to partitions, in order, each batch once.

In: record batches or records, and a connected `KafkaClient`. Out: the offsets at which the broker stored them, or an
error that names the partition. May touch: the brokers by Produce and InitProducerId.
"""

from __future__ import annotations

from allocator.producer.columns import ColumnsToSend
from allocator.producer.encoding import Encoded, encode, encode_headers
from allocator.producer.partitioner import Partitioner
from allocator.producer.producer import DeliveryFailed, Producer, append
from allocator.producer.transaction import NewRecord, TooLargeForTopic, TransactionalWriter

__all__ = [
    "ColumnsToSend",
    "DeliveryFailed",
    "Encoded",
    "NewRecord",
    "Partitioner",
    "Producer",
    "TooLargeForTopic",
    "TransactionalWriter",
    "append",
    "encode",
    "encode_headers",
]
