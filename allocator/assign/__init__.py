"""Deprecated name of `allocator.assignors`; removed in 0.3.

In: an import. Out: the same names, with a DeprecationWarning. Touches nothing.
"""

from __future__ import annotations

from allocator.deprecated import moved

__getattr__ = moved(__name__, "allocator.assignors", {"Share": (frozenset, "assignors return frozensets")})
