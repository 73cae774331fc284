"""Operator commands that the members and the leader of a group obey.

In: see the packages inside.
Out: their faces.
"""
