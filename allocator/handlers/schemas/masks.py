"""Hides the values of fields by their paths. No I/O.

If a mask cannot be applied, it hides more, not less: it masks a key, value or header that is not a JSON object or array
(text, other bytes, an unknown schema) as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from allocator.core.settings import MASK
from allocator.errors import ConfigError

PARTS = ("key", "value", "headers")
MAX_VALUES = 200_000  # maximum checked in a record. Higher: slower; lower: more records are hidden as a whole
MAX_DEPTH = 100  # maximum levels checked. Higher: closer to Python's recursion limit; lower: more values are hidden
_DEEP = ""
"""A step through any number of levels."""
_ANY = "*"
Steps = tuple[str, ...]
# .name, ..name, .*, ['name'], [*] or [3]; a path passes through lists without a step for them
_STEP = re.compile(r"""(\.\.?)([^.\[\]'"\s]+)|\[(?:'([^']+)'|"([^"]+)"|\*|[0-9]+)\]""")


# headers of dead letters that contain an error's message or stack: of this library, Spring Kafka, Kafka Connect
_QUOTES = re.compile(r"allocator\.error|.*exception[-.](?:message|stacktrace)", re.IGNORECASE | re.DOTALL)


def _parsed(text: str) -> tuple[str, Steps]:
    """Returns the part ("key", "value" or "headers") and the steps of a path; without steps it masks the whole part.

    Reads "value.card.number", "$.card.number" (`$` is the value), "value..email", "headers.token" or "key". Raises
    ConfigError.
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
                f"mask {text!r} is not a path: {rest[at:]!r} is not a step; "
                "steps are .name, ..name (at any depth), .*, [*] and ['a name']"
            )
        dots, *names = found.groups()
        if dots == "..":
            steps.append(_DEEP)
        steps += [name.casefold() for name in names if name]
        at = found.end()
    return part, tuple(steps)


class Masks:
    """The masks of a server or a command. The case of field names does not matter."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Parses the masks. Raises ConfigError for an invalid one."""
        self.texts = tuple(texts)
        self._paths: dict[str, list[Steps]] = {part: [] for part in PARTS}
        for part, steps in map(_parsed, self.texts):
            self._paths[part].append(steps)

    def __bool__(self) -> bool:
        return bool(self.texts)

    def cover(self, part: str) -> bool:
        """Returns whether a part has masks. Its undecoded bytes must not be shown then."""
        return bool(self._paths[part])

    @property
    def parts(self) -> list[str]:
        """The parts ("key", "value", "headers") with masks."""
        return list(filter(self.cover, PARTS))

    def apply(self, part: str, value: Any) -> Any:
        """Returns the value with "***" in masked fields; null stays null.

        Also hides a value without fields or with more than `MAX_VALUES`, everything deeper than `MAX_DEPTH`, and a text
        or number where a mask expects fields (it may contain JSON).
        """
        paths = self._paths[part]
        if not paths or value is None:
            return value
        if () in paths or not isinstance(value, (dict, list)):
            return MASK
        try:
            return _masked(value, tuple(dict.fromkeys(paths)), iter(range(MAX_VALUES)))
        except _TooMuch:
            return MASK

    def hides_header(self, name: str) -> bool:
        """Returns whether the value of a header is masked. A path into a header masks all of it.

        With any mask, the error in a dead letter is hidden too, because its text may contain any part of the record.
        """
        if self.texts and _QUOTES.fullmatch(name):
            return True
        return any(
            not steps or steps[0] in (_ANY, _DEEP) or steps[0] == name.casefold() for steps in self._paths["headers"]
        )


class _TooMuch(Exception):
    """A record has more than `MAX_VALUES` values."""


def _masked(value: Any, paths: tuple[Steps, ...], left: Iterator[int], depth: int = 0) -> Any:
    """Masks one value. Consumes an element of `left` for each checked value, and raises _TooMuch when none is left."""
    if next(left, None) is None:
        raise _TooMuch
    if depth > MAX_DEPTH:
        return MASK
    if isinstance(value, list):
        return [_masked(each, paths, left, depth + 1) for each in value]
    if not isinstance(value, dict):
        return MASK if _may_hide(value, paths) else value
    found = {}
    for name, inner in value.items():
        below = _below(paths, str(name).casefold())
        found[name] = MASK if () in below else _masked(inner, below, left, depth + 1) if below else inner
    return found


@lru_cache(maxsize=1000)
def _below(paths: tuple[Steps, ...], name: str) -> tuple[Steps, ...]:
    """Returns the paths that apply below the field `name`; an empty path masks the field.

    Equal paths are merged, so their number is bounded by the steps of the masks.
    """
    return tuple(dict.fromkeys(rest for steps in paths for rest in _after(steps, name)))


def _after(steps: Steps, name: str) -> list[Steps]:
    """Returns what remains of a path below the field `name`, once for each way to match. An empty path masks the
    field."""
    if steps[0] == _DEEP:
        return [steps, *_after(steps[1:], name)]
    return [steps[1:]] if steps[0] in (_ANY, name) else []


def _may_hide(value: Any, paths: tuple[Steps, ...]) -> bool:
    """Returns whether a value without fields may contain a masked field, such as JSON within text."""
    if value is None:
        return False
    if any(steps[0] != _DEEP for steps in paths):
        return True  # hide the whole value if a mask names a field in it
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
        return False
    text = value.casefold()
    names = {step for steps in paths for step in steps if step != _DEEP}
    return _ANY in names or "\\u" in text or any(name in text for name in names)
