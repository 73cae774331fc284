"""Compares joining, rebalancing and committing in Kafka's own groups with other clients, on the same broker.

`python -m bench.group --help`; what came out is in docs/performance.md.
"""
