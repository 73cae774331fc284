"""The doctor: inspects a cluster and a group, and reports findings with their remedies.

In: a connected `KafkaClient`, a `ZooKeeper` session, the name of a group. Out: `Finding`s.
May touch: nothing. It reads brokers and znodes and writes to neither.
"""
