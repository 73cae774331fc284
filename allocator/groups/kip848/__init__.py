"""Kafka's next generation of the group protocol (KIP-848): ConsumerGroupHeartbeat; the coordinator assigns.

In: a connected `KafkaClient`. Out: calls to an assignment listener, the member identity and epoch.
May touch: the group on its coordinator; no record and no offset.
"""
