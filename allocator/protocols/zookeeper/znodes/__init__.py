"""The znodes of a group on ZooKeeper: their paths, their documents, and how these are read and checked.

In: bytes of znodes. Out: frozen objects. All content is checked when it is read, because another program may have
written it.
"""
