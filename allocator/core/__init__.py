"""A member of a group that reads its partitions. Imports nothing outside this package.

In: see the packages inside.
Out: their faces.
"""
