"""Deprecated name of `allocator.assignors.lag_aware`; removed in 0.3."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"import {name} from allocator.assignors.lag_aware: allocator.assign.lag_aware is removed in 0.3"
    warnings.warn(message, DeprecationWarning, 2)
    return getattr(import_module("allocator.assignors.lag_aware"), name)
