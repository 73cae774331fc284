"""Reads the fields of a request body, with their types checked. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from allocator.errors import ConfigError

__all__ = ["RequestBody"]


class RequestBody:
    """The fields of a request. Every method raises ConfigError for a value of another type."""

    def __init__(self, given: Mapping[str, Any], *known: str) -> None:
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ConfigError(f"{', '.join(map(repr, unknown))} is not known here; {', '.join(known) or 'nothing'} is")
        self._given = given

    def text(self, name: str) -> str:
        """ "" without the field."""
        value = self._given.get(name, "")
        if not isinstance(value, str):
            raise ConfigError(f'"{name}" must be a text')
        return value

    def text_or_null(self, name: str) -> Optional[str]:
        """None for null, and without the field."""
        return None if self._given.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """False without the field."""
        value = self._given.get(name, False)
        if type(value) is not bool:
            raise ConfigError(f'"{name}" must be true or false')
        return value

    def list(self, name: str, of: type, most: Optional[int] = None) -> list[Any]:
        """At most `most` values of one type; [] without the field."""
        value = self._given.get(name, [])
        long = most is not None and isinstance(value, list) and len(value) > most
        if not isinstance(value, list) or long or not all(isinstance(each, of) for each in value):
            some = "" if most is None else f"at most {most} "
            raise ConfigError(f'"{name}" must be a list of {some}{"texts" if of is str else "objects"}')
        return value

    def confirmed(self, subject: str, name: str) -> bool:
        """Whether to execute the request: "confirm" is `name`. Without it, the server only shows the effect."""
        confirm = self._given.get("confirm")
        if confirm is not None and confirm != name:
            raise ConfigError(
                f'"confirm" must be the name of the {subject}, {name!r}, or be left out to see what would be done'
            )
        return confirm is not None
