"""Writes rows to topics, at least once.

In: rows with key, value, headers, topic, partition, timestamp. Out: records. May touch: the topics by Produce.
"""
