"""Compares the mirror with Kafka's MirrorMaker, and with its two halves, consuming and producing.

`python -m bench.mirror --help`; docs/performance.md has the method and the results.
"""
