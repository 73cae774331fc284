"""Other constants of a module, for one test."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

__all__ = ["SetConstant"]


class SetConstant:
    """`set_constant(module, NAME=value)` until the test ends: limits and pauses that are too large to wait for.

    The module must have the constant, of the same type.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, module: ModuleType, **constants: Any) -> None:
        for name, value in constants.items():
            now = getattr(module, name)
            assert name.isupper(), f"{name} is no constant"
            assert isinstance(value, type(now)), f"{module.__name__}.{name} is {now!r}, which {value!r} cannot replace"
            self._monkeypatch.setattr(module, name, value)
