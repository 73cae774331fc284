"""Compares how fast several clients read a topic from the same broker, and how much CPU that takes.

`python -m bench.consume --help`; docs/performance.md has the method and the results.
"""
