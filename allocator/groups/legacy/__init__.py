"""Groups of older libraries, shared with their members while a service moves: kiel 0.9.3, Kafka 0.8, pykafka.

In: a `ZooKeeper` session, partition counts. Out: calls to an `AssignmentListener`.
May touch: the znodes of those libraries, in their layout.

`owners` has what all layouts share: one ephemeral znode for each owned partition. `kiel` and `old_consumer` are the
layouts, `adopt` gives a kiel group to the new layout, `describe` shows such groups without joining them.
"""
