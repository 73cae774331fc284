"""Exclusive ownership through ZooKeeper: at most one member owns a partition at any instant.

In: a `ZooKeeper` session, partition counts and assignors. Out: calls to an `AssignmentListener`; `may_act`, the lease.
May touch: the znodes below `<root>/<group>`; no record and no offset.

`membership` is the entrance: what each member does. `leader` is what the oldest member does besides. `plan` decides, as
a pure function, when a partition changes its owner. `znodes` has the data, `store` reads and writes it.
"""
