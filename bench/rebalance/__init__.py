"""Compares how long groups of several clients take to recover after a member joins, leaves or crashes.

`python -m bench.rebalance --help`; docs/performance.md has the method and the results.
"""
