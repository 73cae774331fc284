"""Compares the mirror with Kafka's MirrorMaker, and with consuming and producing alone.

`python -m bench.mirror --help`; docs/performance.md has the method and the results.
"""
