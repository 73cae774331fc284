"""The room of the Kafka connection: requests to brokers, and what is known about the cluster.

In: addresses, settings, requests of `kafka.protocol`. Out: responses, snapshots of the cluster, and errors of
`allocator.errors`. It knows nothing of groups or of what is consumed, and starts no task that its objects do not end
in `close`.

`client.KafkaClient` knows the cluster and sends requests, `pool.ConnectionPool` keeps the connections and finds the
version of the brokers, and `connection.BrokerConnection` is one connection. `log_offsets` asks leaders where partitions
begin and end. kafka-python gives schemas, SASL mechanisms and proxies: `tests/client/test_kafka_internals.py` names
them.
"""
