"""Measures the throughput of slow handlers, the records repeated after a crash, and the CPU cost of the engine.

`python -m bench.handlers --help`; docs/performance.md has the method and the results.
"""
