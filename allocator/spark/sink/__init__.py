"""Writes rows to topics, at least once.

In: rows with key, value, headers, topic and partition. Out: records. May touch: the topics by Produce.
"""
