"""The room of the Kafka connection: requests to brokers, and the known state of the cluster.

In: addresses, settings, requests of `kafka.protocol`. Out: responses, snapshots of the cluster, and errors of
`allocator.errors`. This room knows nothing about groups or consumption. Each object ends its own tasks in `close`.

`client.KafkaClient` knows the cluster and sends requests. `pool.ConnectionPool` keeps the connections and detects
broker versions. `connection.BrokerConnection` is one connection. `log_offsets` asks leaders for the first and last
offsets of partitions. kafka-python provides schemas, SASL mechanisms and proxies;
`tests/client/test_kafka_internals.py` lists the parts in use.
"""

from __future__ import annotations

from allocator.core.client.client import KafkaClient
from allocator.core.client.configs import describe_configs
from allocator.core.client.errors import ErrorCode, Reaction, for_code, reaction_to
from allocator.core.client.log_offsets import ends_of_epochs, list_offsets
from allocator.core.client.metadata import Metadata
from allocator.core.client.security import KEYS, check_security, mechanism_faults

__all__ = [
    "KEYS",
    "ErrorCode",
    "KafkaClient",
    "Metadata",
    "Reaction",
    "check_security",
    "describe_configs",
    "ends_of_epochs",
    "for_code",
    "list_offsets",
    "mechanism_faults",
    "reaction_to",
]
