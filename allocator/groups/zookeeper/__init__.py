"""Exclusive ownership through ZooKeeper: at most one member owns a partition at any instant.

In: a `ZooKeeper` session and an assignor. Out: calls to an assignment listener, and `may_act`, the lease.
May touch: the znodes below `<root>/<group>`; no record and no offset.
"""
