"""The room of the Kafka connection: requests to brokers, and the known state of the cluster.

In: addresses, settings, requests of `kafka.protocol`. Out: responses, snapshots of the cluster, and errors of
`allocator.errors`. This room knows nothing about groups or consumption. Each object ends its own tasks in `close`.

`client.KafkaClient` knows the cluster and sends requests. `pool.ConnectionPool` keeps the connections and detects
broker versions. `connection.BrokerConnection` is one connection. `log_offsets` asks leaders for the first and last
offsets of partitions. kafka-python provides schemas, SASL mechanisms and proxies;
`tests/client/test_kafka_internals.py` lists the parts in use.
"""
