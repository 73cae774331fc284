"""Registry of the membership classes by name. `allocator` registers the classes of `allocator.protocols`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES: dict[str, str] = {}


def register(name: str, place: str) -> None:
    """Registers the class at `place` ("package.module:class") as membership `name`. It is imported on use."""
    _PLACES[name] = place


def options_of(name: str) -> Any:
    """Returns the class, a `MembershipOptions`. Raises KeyError for a name that is not registered."""
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)


def known_memberships() -> tuple[str, ...]:
    return tuple(_PLACES)
