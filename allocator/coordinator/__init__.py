"""Kafka's group coordinator, for what it keeps: committed offsets.

In: a connected `KafkaClient`, a group, offsets. Out: offsets, or an error naming partitions and reasons. It may use
`wire` only; it knows nothing of who owns a partition, so whether a commit is still allowed is decided above it.

`find` finds the coordinator and finds it again, `reactions` says what each error code calls for, `messages` knows the
versions of the requests, `offsets` puts them together.
"""
