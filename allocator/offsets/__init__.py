"""Kafka's group coordinator: membership of a group by its own protocol, and committed offsets.

In: a connected `KafkaClient`, a group, offsets, a `Participant`. Out: offsets, generations, or an error naming what
was refused and why. It may use `wire` only; it knows nothing of who owns a partition, so whether a commit is still
allowed is decided above it.

`find` finds the coordinator and finds it again, and `reactions` says what each error code calls for.
`messages` knows the versions of the requests about offsets, `commits` has them wait for each other, and `offsets` puts
them together.
`group_messages` knows those of a group's members, `phases` where a member may stand, `heartbeat` when it says that it
lives, and `group` puts them together; `consumer_protocol` has the bytes that consumers pass through it to each other.
The next-generation protocol (KIP-848) stands beside that: `next_settings`, `next_phases` and `next_messages`, which
`next_group` puts together.
"""
