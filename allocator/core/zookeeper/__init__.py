"""ZooKeeper on the running asyncio loop, through kazoo.

In: addresses, a session timeout, znode paths. Out: awaitables, session states, and errors of `allocator.errors`.
May touch: kazoo and its threads. It does not know groups.
"""
