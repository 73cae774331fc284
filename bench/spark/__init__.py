"""Measures reading a topic into Spark: `python -m bench.spark`, and `--help` for its settings.

It compares with the upper limit of a Python source (the same Arrow batches from memory), with the same records in
Parquet, and with Spark's own Kafka connector if its jars can be downloaded.
"""
