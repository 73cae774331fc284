"""Compares the speed of decoders on the same bytes, without a broker.

`python -m bench.decode --help`; docs/performance.md has the method and the results.
"""
