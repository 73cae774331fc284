"""ZooKeeper for the running asyncio loop: kazoo, bridged.

In: addresses, a session timeout, znode paths. Out: awaitables, session states, and errors of `allocator.errors`.
May touch: kazoo and its threads, and no other room. It knows nothing of groups.
"""
