"""Deprecated name of `allocator.assignors`; removed in 0.3.

In: an import. Out: the same names, with a DeprecationWarning. Touches nothing.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Share":
        warnings.warn("assignors return frozensets: allocator.assign.Share is removed in 0.3", DeprecationWarning, 2)
        return frozenset
    warnings.warn(f"import {name} from allocator.assignors: allocator.assign is removed in 0.3", DeprecationWarning, 2)
    return getattr(import_module("allocator.assignors"), name)
