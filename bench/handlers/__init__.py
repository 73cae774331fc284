"""Measures the throughput of a slow handler, the repeated records after a crash, and the cost of the engine.

`python -m bench.handlers --help`; docs/performance.md has the method and the results.
"""
