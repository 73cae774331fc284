"""What Kafka's own groups cost: joining, rebalancing, committing; ours beside the other clients, on the same broker.

`python -m bench.group --help`; what came out is in docs/performance.md.
"""
