"""Deprecated name of `allocator.spark.skew`; removed in 0.3."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"import {name} from allocator.spark.skew: allocator.spark.skew_report is removed in 0.3"
    warnings.warn(message, DeprecationWarning, 2)
    return getattr(import_module("allocator.spark.skew"), name)
