"""The wire: the only room that touches kafka-python's internals and kazoo's threads.

In: addresses, settings, requests of `kafka.protocol`. Out: asyncio awaitables, snapshots of the cluster, and errors of
`allocator.errors`. It knows nothing of groups or of what is consumed, and starts no task that its objects do not end
in `close`.

`kafka.KafkaClient` (requests, metadata, versions) runs kafka-python's connection manager on the asyncio loop itself
(`net`, `kafka_link`, `kafka_manager`); `list_offsets` asks leaders where partitions begin and end; `zookeeper` bridges
kazoo. `tests/client/test_kafka_internals.py` names every internal of kafka-python that is relied on.
"""
