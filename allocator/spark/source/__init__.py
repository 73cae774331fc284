"""The PySpark data source: batches, streams, and a stream as a member of a group.

In: options of `format("allocator")`. Out: rows, as Arrow batches; commits of the group, if an option names one. May
touch: topics (it fetches), the committed offsets of that group, and its znodes if the stream is a member.
"""
