"""ZooKeeper on the running asyncio loop, through kazoo.

It turns addresses, a session timeout and znode paths into awaitables, session states, and errors of `allocator.errors`.
It runs kazoo and its threads, and does not know groups.
"""
