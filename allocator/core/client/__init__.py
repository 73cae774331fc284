"""The Kafka client: requests to brokers, and the known state of the cluster.

It knows nothing about who owns a partition. `client.KafkaClient` knows the cluster and sends requests.
`pool.ConnectionPool` keeps the connections and detects broker versions. `connection.BrokerConnection` opens one
connection, and `requests.RequestStream` has the requests in flight on it. `log_offsets` requests the first and last
offsets of partitions from their leaders. `coordinator.Coordinator` finds the broker that coordinates a group, and
`offset_messages` builds the requests for committed offsets. kafka-python provides schemas and SASL mechanisms;
`tests/client/test_kafka_internals.py` lists the parts in use.
"""

from __future__ import annotations

from allocator.core.client.client import KafkaClient
from allocator.core.client.configs import describe_configs
from allocator.core.client.coordinator import Coordinator
from allocator.core.client.errors import ErrorCode, Reaction, for_code, reaction_to
from allocator.core.client.log_offsets import ends_of_epochs, lag, list_offsets
from allocator.core.client.masking import quoted
from allocator.core.client.metadata import Metadata
from allocator.core.client.offset_messages import Committer, Identity
from allocator.core.client.security import KEYS, check_security, mechanism_faults
