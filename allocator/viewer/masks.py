"""Masks: paths of fields whose values are hidden. Pure.

If a mask cannot be applied, more is hidden, not less: a key, value or header that is not a JSON object or array (text,
other bytes, an unknown schema) is masked as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from allocator.errors import ConfigError
from allocator.settings import MASK

__all__ = ["Mask", "Masks", "check_mask"]

PARTS = ("key", "value", "headers")
_DEEP = ""
"""A step over any number of levels."""
_ANY = "*"
# .name, ..name, .*, ['name'], [*] or [3]; a path passes through lists without a step for them
_STEP = re.compile(r"""(\.\.?)([^.\[\]'"\s]+)|\[(?:'([^']+)'|"([^"]+)"|\*|[0-9]+)\]""")


@dataclass(frozen=True)
class Mask:
    """One path. `part` is "key", "value" or "headers"; a path without steps masks the whole part."""

    part: str
    steps: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Reads "value.card.number", "$.card.number" (`$` is the value), "value..email", "headers.token" or "key".

        Raises ConfigError.
        """
        part, rest = re.fullmatch(r"([a-z$]*)(.*)", text.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
        part = "value" if part == "$" else part
        if part not in PARTS:
            raise ConfigError(
                f"mask {text!r} must begin with key, value, headers or $; write value.card.number for a field"
            )
        steps, at = [], 0
        while at < len(rest):
            found = _STEP.match(rest, at)
            if found is None:
                raise ConfigError(
                    f"mask {text!r} is not a path: {rest[at:]!r} is no step; "
                    "steps are .name, ..name (at any depth), .*, [*] and ['a name']"
                )
            dots, name, quoted, double = found.groups()
            if dots == "..":
                steps.append(_DEEP)
            if name or quoted or double:
                steps.append((name or quoted or double).casefold())
            at = found.end()
        return cls(part, tuple(steps))


def check_mask(text: str) -> None:
    """Raises ValueError (a ConfigError) for a text that is no mask. A check for settings."""
    Mask.parse(text)


class Masks:
    """The masks of a server or a command. Names of fields are compared without regard to case."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raises ConfigError."""
        self.texts = tuple(texts)
        self._paths: dict[str, list[tuple[str, ...]]] = {part: [] for part in PARTS}
        for mask in map(Mask.parse, self.texts):
            self._paths[mask.part].append(mask.steps)

    def __bool__(self) -> bool:
        return bool(self.texts)

    def cover(self, part: str) -> bool:
        """Whether a part has masks. If so, its undecoded bytes must not be shown."""
        return bool(self._paths[part])

    @property
    def parts(self) -> list[str]:
        """The parts that have masks."""
        return [part for part in PARTS if self._paths[part]]

    def apply(self, part: str, value: Any) -> Any:
        """The value with "***" in masked fields. A value without fields is masked as a whole; null stays null."""
        paths = self._paths[part]
        if not paths or value is None:
            return value
        if () in paths or not isinstance(value, (dict, list)):
            return MASK
        return _masked(value, paths)

    def hides_header(self, name: str) -> bool:
        """Whether the value of a header is masked. A path into a header masks all of it."""
        return any(
            not steps or steps[0] in (_ANY, _DEEP) or steps[0] == name.casefold() for steps in self._paths["headers"]
        )


def _masked(value: Any, paths: list[tuple[str, ...]]) -> Any:
    if isinstance(value, list):
        return [_masked(each, paths) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, inner in value.items():
        left = [rest for steps in paths for rest in _after(steps, str(name).casefold())]
        found[name] = MASK if () in left else _masked(inner, left) if left else inner
    return found


def _after(steps: tuple[str, ...], name: str) -> list[tuple[str, ...]]:
    """The rest of a path below the field `name`; an empty path masks the field."""
    if steps[0] == _DEEP:
        return [steps, *_after(steps[1:], name)]
    return [steps[1:]] if steps[0] in (_ANY, name) else []
