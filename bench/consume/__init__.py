"""Compares the speed and the cost of reading a topic with other clients, on the same broker.

`python -m bench.consume --help`; docs/performance.md has the method and the results.
"""
