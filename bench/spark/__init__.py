"""Measures how fast Spark reads a topic: `python -m bench.spark --help`.

For comparison, it also reads the same Arrow batches from memory (the upper limit of a Python source), the same records
from Parquet, and the topic with Spark's own Kafka connector. The connector's jars are downloaded.
"""
