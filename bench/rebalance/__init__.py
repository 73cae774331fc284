"""Measures how long a group takes to recover after a member joined, left or crashed, beside other clients.

`python -m bench.rebalance --help`; docs/performance.md has the method and the results.
"""
