"""A member of a group that reads its partitions. Imports nothing outside this package.

Start with `membership.membership`; docs/architecture.md has the order of the packages and the files to read first. Code
outside of `core` imports what the `__init__` of a package here lists.
"""
