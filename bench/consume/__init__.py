"""How fast a topic is read, and at what cost; ours beside others, on the same topic of the same broker.

`python -m bench.consume --help`; what is measured and what came out is in docs/performance.md.
"""
