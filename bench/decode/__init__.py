"""How fast record sets are decoded, with no broker; ours beside the decoders of others, on the same bytes.

`python -m bench.decode --help`; what is measured and what came out is in docs/performance.md.
"""
