"""Groups of older libraries, shared while a service moves: kiel 0.9.3, consumers of Kafka 0.8, pykafka.

In: a `ZooKeeper` session. Out: calls to an assignment listener.
May touch: the znodes of those libraries, in their layout.
"""
