"""Compares how fast decoders of several clients read the same records, without a broker.

`python -m bench.decode --help`; docs/performance.md has the method and the results.
"""
