"""How many records a slow handler gets through, what is repeated after a crash, and what the engine costs.

`python -m bench.handlers --help`; what is measured and what came out is in docs/performance.md.
"""
