"""Measures rebalances of a group with many members, and their cost for ZooKeeper."""
