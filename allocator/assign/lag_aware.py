"""Deprecated name of `allocator.assignors.lag_aware`; removed in 0.3."""

from __future__ import annotations

from allocator.deprecated import moved

__getattr__ = moved(__name__, "allocator.assignors.lag_aware")
