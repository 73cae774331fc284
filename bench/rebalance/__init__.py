"""How long a group takes to go on after a member came, left or died; ours beside others, on the same servers.

`python -m bench.rebalance --help`; what is measured and what came out is in docs/performance.md.
"""
