"""Writes rows to topics, at least once.

Each row becomes a record: its columns are key, value, headers, topic and partition.
"""
