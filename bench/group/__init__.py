"""Compares how fast several clients join, rebalance and commit in Kafka's own groups, on the same broker.

`python -m bench.group --help`; docs/performance.md has the method and the results.
"""
