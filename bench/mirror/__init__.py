"""Compares the mirror with Kafka's MirrorMaker, and with consuming and producing alone.

`python -m bench.mirror --help`; what came out is in docs/performance.md.
"""
