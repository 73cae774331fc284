"""What people and their monitoring see of a consumer.

In: the public surface of `consumer`. Out: metrics for Prometheus. May touch: nothing that changes a group.
"""
