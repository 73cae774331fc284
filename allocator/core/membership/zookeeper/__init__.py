"""Exclusive ownership through ZooKeeper: at most one member owns a partition at any instant.

In: a `ZooKeeper` session, partition counts and assignors. Out: calls to an `AssignmentListener`; `may_act`, the lease.
It writes the znodes below `<root>/<group>`, but no record and no offset.

Start reading at `membership`, the code that each member runs. The oldest member also runs `leader`: it takes a
snapshot of the group (`group_znodes`), decides (`decider`, `decision`), and writes the assignment. `plan` decides, as a
pure function, when a partition changes its owner. The package `znodes` defines, reads and writes the data.
"""
