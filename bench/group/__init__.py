"""Compares joining, rebalancing and committing in Kafka's own groups with other clients, on the same broker.

`python -m bench.group --help`; docs/performance.md has the method and the results.
"""
