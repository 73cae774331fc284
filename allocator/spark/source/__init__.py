"""The PySpark data source: batches, streams, and a stream as a member of a group.

In: options of `format("allocator")`. Out: rows, as Arrow batches; commits of a group, where one is named.
May touch: the topics by Fetch, the offsets of that group, its znodes where the stream is a member.
"""
