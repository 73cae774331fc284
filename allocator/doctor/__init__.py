"""The doctor: looks at a cluster and a group, and reports findings with a remedy each.

In: a connected `KafkaClient`, a `ZooKeeper` session, the name of a group. Out: `Finding`s.
May touch: nothing. It reads brokers and znodes and writes to neither.
"""
