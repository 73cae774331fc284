"""Assigns any named resources (queues, shards, customers) to the members of a group, without Kafka.

In: a group in ZooKeeper, the names of the resources (`sources`), an assignor. Out: calls to the user's functions, and
`Allocation.hold`. May touch: the znodes of the group, and the children of a znode that names the resources.

A resource is a topic of one partition for `groups`: its name is in the claims and in the assignment. So members agree
on what they own even while they see different lists of resources. `assignor` shows the built-in functions one topic
with a partition for each resource.
"""

from __future__ import annotations

from allocator.resources.allocation import Allocation, Hold, OnResources, ResourceLoad
from allocator.resources.sources import ChildrenOf, ResourceNames

__all__ = ["Allocation", "ChildrenOf", "Hold", "OnResources", "ResourceLoad", "ResourceNames"]
