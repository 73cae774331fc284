"""Groups shared with members of older libraries during an upgrade: kiel 0.9.3, Kafka 0.8, pykafka.

In: a `ZooKeeper` session, partition counts. Out: calls to an `AssignmentListener`.
May touch: the znodes of those libraries, in their layout.

`owners` is common to all layouts: one ephemeral znode for each owned partition. `kiel` and `old_consumer` are the
layouts, `adopt` moves a kiel group to the new layout, `describe` shows such groups without joining them.
"""
