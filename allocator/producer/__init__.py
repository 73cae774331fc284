"""One producer: record batches to partitions, in order, each batch once.

In: record batches or records, and a connected `KafkaClient`. Out: the offsets at which the broker stored them, or an
error that names the partition. May touch: the brokers by Produce and InitProducerId.
"""
