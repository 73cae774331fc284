"""Compares the speed of decoders on the same bytes, without a broker.

`python -m bench.decode --help`; what is measured and what came out is in docs/performance.md.
"""
