"""Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

In: a connected `KafkaClient` and assignors. Out: calls to an assignment listener, generations, the member identity.
May touch: the group on its coordinator; no record and no offset.
"""
