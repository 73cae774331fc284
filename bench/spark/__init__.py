"""Measures reading a topic into Spark: `python -m bench.spark`, and `--help` for its settings.

Beside it: what Spark's Python sources can do at most (the same Arrow batches, made in memory), the same records from
Parquet, and Spark's own Kafka connector where its jars can be had.
"""
