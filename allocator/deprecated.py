"""Former names of modules and methods: they work until 0.3, with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["moved", "warn_renamed"]


def moved(former: str, now: str, gone: Mapping[str, tuple[Any, str]] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of module `former`: gives the names of module `now`, each with a DeprecationWarning.

    `gone`: names that `now` does not have; for each the value to give, and the reason.
    """
    values = gone or {}

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {former!r} has no attribute {name!r}")
        if name in values:
            value, why = values[name]
            warnings.warn(f"{why}: {former}.{name} is removed in 0.3", DeprecationWarning, 2)
            return value
        warnings.warn(f"import {name} from {now}: {former} is removed in 0.3", DeprecationWarning, 2)
        return getattr(import_module(now), name)

    return get


def warn_renamed(former: str, now: str) -> None:
    """Warns the caller of method `former` that it is called `now`."""
    warnings.warn(f"call {now}: {former} is removed in 0.3", DeprecationWarning, 3)
