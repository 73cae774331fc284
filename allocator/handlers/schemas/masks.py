"""Hides the values of fields by their paths. No I/O.

If a mask cannot be applied, it hides more, not less: it masks a key or value that is not a JSON object or array (text,
other bytes, an unknown schema) as a whole. Headers and the texts of errors may quote any part of a record, so a single
mask hides them all, except the headers that name places.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from allocator.core.settings import MASK
from allocator.core.text import base64_contents
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


# headers in which this library, Spring Kafka, Kafka Connect and Kafka Streams (KIP-1034) name the place of a record and
# the class of an error; every other header may have a copy of a key, a value or a message
_PLACES = re.compile(
    r"allocator\.(?:topic|partition|offset|timestamp|group|attempts|retries|due|redrives|first_timestamp|null_value)"
    r"|kafka_dlt-(?:original-[a-z-]+|exception-(?:cause-)?fqcn)"
    r"|__connect\.errors\.(?:topic|partition|offset|connector\.name|task\.id|stage|(?:exception\.)?class\.name)"
    r"|__streams\.errors\.(?:topic|partition|offset)"
)
_PLACE = re.compile(rb"[\w$.<>:-]{0,250}|.{4}|.{8}", re.DOTALL)
"""A name or a number, as text or in 4 or 8 bytes."""
_SHOWN = "!headers."
"""Start of a text that shows a header."""
_DOCUMENT = re.compile(r"[\"'{}\[\]:=<]")
"""A character of a document, which the name of a field does not have."""
_ESCAPED = re.compile(r"%u[0-9a-f]{4}")
"""A character as `escape` of JavaScript writes it."""
MAX_ENCODINGS = 3  # maximum times that a text is encoded, one in the other. Higher: slower


class Base64(str):
    """Bytes of a record as text. Their content is not known, so a mask at any depth hides them."""


def _parsed(text: str) -> tuple[str, Steps]:
    """Returns the part ("key", "value" or "headers") and the steps of a path; without steps it masks the whole part.

    Reads "value.card.number", "$.card.number" (`$` is the value), "value..email", "headers.token" or "key". Raises
    ConfigError.
    """
    part, rest = re.fullmatch(r"([a-z$]*)(.*)", text.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    part = "value" if part == "$" else part
    if part not in PARTS:
        raise ConfigError(
            f"mask {text!r} must begin with key, value, headers or $; write value.card.number for a field, "
            "and !headers.NAME to show a header"
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
    """The masks of a server or a command. The case of field names does not matter.

    "!headers.NAME" is no mask: it shows a header that the masks would hide only because they do not know it.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Parses the masks. Raises ConfigError for an invalid one."""
        self.texts = tuple(texts)
        self._paths: dict[str, list[Steps]] = {part: [] for part in PARTS}
        self._known = set()
        for text in self.texts:
            if text.startswith(_SHOWN):
                self._known.add(text[len(_SHOWN) :].casefold())
            else:
                part, steps = _parsed(text)
                self._paths[part].append(steps)

    @classmethod
    def everything(cls) -> Masks:
        """Returns masks that hide all keys, values, headers and errors."""
        return cls(PARTS)

    def __bool__(self) -> bool:
        return any(self._paths.values())

    def cover(self, part: str) -> bool:
        """Returns whether masks hide anything in a part. Its undecoded bytes must not be shown then."""
        return bool(self) if part == "headers" else bool(self._paths[part])

    @property
    def parts(self) -> list[str]:
        """The parts ("key", "value", "headers") in which masks hide something."""
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

    def hides_header(self, name: str, data: bytes) -> bool:
        """Returns whether the value of a header is masked. A path into a header masks all of it.

        With any mask, only headers that name places are shown, and those of "!headers.NAME".
        """
        if any(
            not steps or steps[0] in (_ANY, _DEEP) or steps[0] == name.casefold() for steps in self._paths["headers"]
        ):
            return True
        known = name.casefold() in self._known or (_PLACES.fullmatch(name) and _PLACE.fullmatch(data))
        return bool(self) and not known


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
        below, is_document = _below(paths, str(name).casefold()), _is_document(paths, str(name))
        hidden = is_document or () in below
        found[MASK if is_document else name] = (
            MASK if hidden else _masked(inner, below, left, depth + 1) if below else inner
        )
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
    """Returns whether a value without fields may contain a masked field, such as JSON within text or bytes."""
    if value is None:
        return False
    if any(steps[0] != _DEEP for steps in paths):
        return True  # hide the whole value if a mask names a field in it
    if isinstance(value, Base64):
        return True
    if not isinstance(value, str):
        return False
    return _mentions(value, _field_names(paths))


@lru_cache(maxsize=1000)
def _is_document(paths: tuple[Steps, ...], name: str) -> bool:
    """Returns whether the name of a field may itself be a document with a field that is masked at any depth."""
    names = _field_names(steps for steps in paths if steps[0] == _DEEP)
    return bool(names) and _mentions(name, names, in_documents=True)


def _field_names(paths: Iterable[Steps]) -> Collection[str]:
    return {step for steps in paths for step in steps if step != _DEEP}


def _mentions(text: str, names: Collection[str], *, in_documents: bool = False) -> bool:
    """Returns whether text, plain or encoded, may be a document with a field of these names.

    With `in_documents`, a name that stands alone does not count.
    """
    return any(
        _has_field(content.casefold(), names)
        for content in _contents(text, MAX_ENCODINGS)
        if not in_documents or _DOCUMENT.search(content)
    )


def _contents(text: str, encodings: int) -> Iterator[str]:
    """Yields the text, and what is encoded in it as base64 or with percent signs, up to `encodings` times."""
    yield text
    if encodings:
        if "%" in text:  # such as the body of a form, where each name that is not ASCII is encoded
            content = unquote_plus(text)
            yield from _contents(content, encodings - 1)
            if "\ufffd" in content:  # not UTF-8; a form has the encoding of its page
                yield unquote_plus(text, "cp1252", "replace")
        for content in base64_contents(text):
            # a wrong start of the encoding rarely gives ASCII
            yield from _contents(content, encodings - 1 if content.isascii() else 0)


def _has_field(text: str, names: Collection[str]) -> bool:
    if _ANY in names and text.lstrip().startswith(("{", "[", '"')):
        return True
    return "\\u" in text or bool(_ESCAPED.search(text)) or any(name in text for name in names if name != _ANY)
