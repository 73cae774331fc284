"""Compares the speed and the cost of reading a topic with other clients, on the same broker.

`python -m bench.consume --help`; what is measured and what came out is in docs/performance.md.
"""
