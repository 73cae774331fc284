"""Deprecated name of `allocator.spark.skew`; removed in 0.3."""

from __future__ import annotations

from allocator.deprecated import moved

__getattr__ = moved(__name__, "allocator.spark.skew")
