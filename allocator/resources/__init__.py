"""Assigns any named resources (queues, shards, customers) to the members of a group, without Kafka.

In: a group in ZooKeeper, the names of the resources (`sources`), an assignor. Out: calls to the user's functions, and
`Allocation.hold`. Effects: the znodes of the group. A znode whose children name the resources is only read.

For the membership, a resource is a topic with one partition, so claims and assignments contain its name. Members agree
on their resources even while they read different lists of names. For built-in assignors, `assignor` combines all
resources into one topic with a partition for each resource.
"""

from __future__ import annotations

from allocator.resources.allocation import Allocation, Hold, OnResources, ResourceLoad
from allocator.resources.sources import ChildrenOf, ResourceNames

__all__ = ["Allocation", "ChildrenOf", "Hold", "OnResources", "ResourceLoad", "ResourceNames"]
