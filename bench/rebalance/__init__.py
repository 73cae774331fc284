"""Measures how long a group takes to recover after a member joined, left or crashed, beside other clients.

`python -m bench.rebalance --help`; what is measured and what came out is in docs/performance.md.
"""
