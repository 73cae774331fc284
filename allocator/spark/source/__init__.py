"""The PySpark data source: batches, streams, and a stream as a member of a group.

It fetches topics as the options of `format("allocator")` say, and yields the records as Arrow batches. If an option
names a group, it commits that group's offsets. If the stream is a member, it also writes the group's znodes.
"""
