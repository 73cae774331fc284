"""Compares how long groups of several clients take to recover after a member joined, left or crashed.

`python -m bench.rebalance --help`; docs/performance.md has the method and the results.
"""
