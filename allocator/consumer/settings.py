"""Reading settings: strictly typed, every fault at once, none of them a surprise at run time.

A section is a frozen dataclass whose fields are made by `setting`; a file is a set of sections. Values come from the
file and from the environment, which wins. Nothing is altered on the way: what is not allowed is a fault.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from allocator.errors import ConfigError

__all__ = ["MASK", "Faults", "Flag", "Number", "SettingKind", "SettingsReader", "Text", "Texts", "Whole", "setting"]

MASK = "***"
REQUIRED: Any = dataclasses.MISSING
Check = Callable[[str], "str | None"]


class SettingKind(Protocol):
    """What values a setting takes."""

    @property
    def allowed(self) -> str:
        """As it reads after "must be"."""

    def read(self, value: Any) -> Any:
        """The value from TOML, typed. Raises ValueError with more to say than `allowed`, or with nothing."""

    def parse(self, text: str) -> Any:
        """The TOML value that the text of an environment variable stands for. Raises ValueError."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that is not empty: one of `choices`, or one that `check` (text -> what is wrong) finds nothing in."""

    choices: tuple[str, ...] = ()
    check: Check | None = None
    what: str = "text"

    @property
    def allowed(self) -> str:
        return " or ".join(json.dumps(choice) for choice in self.choices) if self.choices else self.what

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not value or (self.choices and value not in self.choices):
            raise ValueError(_did_you_mean(value, self.choices))
        wrong = self.check(value) if self.check else None
        if wrong:
            raise ValueError(wrong)
        return value

    def parse(self, text: str) -> str:
        return text


@dataclasses.dataclass(frozen=True)
class Texts:
    """A list of texts; one text with commas stands for its parts."""

    what: str = "a list of texts"
    check: Check | None = None

    @property
    def allowed(self) -> str:
        return self.what

    def read(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError
        items = tuple(value)
        if not items or "" in items:
            raise ValueError("it has an empty entry" if items else "it is empty")
        repeated = sorted({item for item in items if items.count(item) > 1})
        if repeated:
            raise ValueError(f"{repeated[0]!r} stands there twice")
        for item in items:
            wrong = self.check(item) if self.check else None
            if wrong:
                raise ValueError(wrong)
        return items

    def parse(self, text: str) -> str:
        return text


@dataclasses.dataclass(frozen=True)
class Number:
    """Seconds and other measures; whole numbers count too."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False
    """`low` itself is not allowed."""
    unit: str = "seconds"

    @property
    def allowed(self) -> str:
        edge = f"more than {self.low:g}" if self.above else f"at least {self.low:g}"
        return f"a number ({self.unit}), {edge}" + (f", at most {self.high:g}" if self.high < math.inf else "")

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError
        if value < self.low or value > self.high or (self.above and value == self.low):
            if self.unit == "seconds" and self.low < value / 1000 <= self.high:
                raise ValueError(f"{value:g} milliseconds are {value / 1000:g} seconds")
            raise ValueError
        return float(value)

    def parse(self, text: str) -> float:
        return float(text)


@dataclasses.dataclass(frozen=True)
class Whole:
    """A whole number: a count, or bytes."""

    low: int = 0
    high: int = 2**31 - 1
    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"a whole number{f' ({self.unit})' if self.unit else ''} from {self.low} to {self.high}"

    def read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError
        return value

    def parse(self, text: str) -> int:
        return int(text)


@dataclasses.dataclass(frozen=True)
class Flag:
    allowed: str = "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"


def setting(kind: SettingKind, default: Any = REQUIRED, *, secret: bool = False) -> Any:
    """A field of a section. Without a default it must be given; a default of None means "not used".

    A secret is left out of `repr`, masked in faults and in `--check`.
    """
    metadata = {"kind": kind, "secret": secret}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


class Faults:
    """All that is wrong, collected."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[str] = []
        self.keys: set[str] = set()
        """The settings that are faulty; checks of several settings together leave them alone."""

    def add(self, key: str, what: str, *, where: str = "") -> None:
        self.keys.add(key)
        self.lines.append(f"{where or self.source}: {what}")

    def raise_if_any(self) -> None:
        if self.lines:
            count = f"{len(self.lines)} faults" if len(self.lines) > 1 else "a fault"
            raise ConfigError("\n  ".join([f"the settings have {count}:", *self.lines]))


class SettingsReader:
    """Reads the sections of one file, once."""

    def __init__(self, sections: Mapping[str, type[Any]], source: str, prefix: str) -> None:
        self.sections = sections
        self.prefix = prefix
        self.faults = Faults(source)
        self._shown: dict[str, str] = {}

    def read(self, document: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
        """Section name -> instance. Faults are in `faults`; a faulty setting stands at its default, or None."""
        self._unknown_sections(document)
        self._unknown_variables(environ)
        return {
            name: self._section(name, section, document.get(name, {}), environ)
            for name, section in self.sections.items()
        }

    def fault(self, keys: Sequence[str], why: str) -> None:
        """Settings that contradict each other, unless one of them is faulty by itself."""
        if not self.faults.keys.intersection(keys):
            self.faults.add(keys[0], f"{' with '.join(self._shown.get(key, f'{key} not set') for key in keys)}: {why}")

    def _section(self, name: str, section: type[Any], given: Any, environ: Mapping[str, str]) -> Any:
        fields = {field.name: field for field in dataclasses.fields(section)}
        if not isinstance(given, Mapping):
            self.faults.add(name, f"{name} = {_toml(given)}: must be a table, written [{name}]")
            given = {}
        for key in given:
            if key not in fields:
                self._unknown_key(name, key, fields)
        values = {}
        for key, field in fields.items():
            value = self._value(f"{name}.{key}", field, given.get(key), environ.get(self._variable(name, key), ""))
            if value is not REQUIRED:
                values[key] = value
        return section(**values)

    def _value(self, key: str, field: dataclasses.Field[Any], given: Any, text: str) -> Any:
        kind: SettingKind = field.metadata["kind"]
        secret: bool = field.metadata["secret"]
        variable = self._variable(*key.split("."))
        if given is None and not text:
            if field.default is not REQUIRED:
                self._shown[key] = f"{key} = {_toml(field.default)}" if field.default is not None else f"{key} not set"
                return REQUIRED
            self.faults.add(key, f"{key} is missing: must be {kind.allowed} (or set {variable})")
            return None
        raw = text or given
        shown = MASK if secret else _toml(raw)
        self._shown[key] = f"{key} = {shown}" + (f" (from {variable})" if text else "")
        try:
            return kind.read(kind.parse(text) if text else given)
        except ValueError as error:
            more = str(error) if error.args and not _is_parse_error(error) else ""
            where = f"environment: {variable}" if text else ""
            name = "" if text else f"{key} "
            if text and isinstance(kind, Texts):
                more = f"{more}; write several with commas between" if more else "write several with commas between"
            if text.startswith("tcp://"):
                more = "Kubernetes sets this variable for a Service of such a name: set enableServiceLinks: false"
            what = f"{name}= {shown}: must be {kind.allowed}" + (f"; {more}" if more and not secret else "")
            self.faults.add(key, f"({key}) {what}" if text else what, where=where)
            return None if field.default is REQUIRED else field.default

    def _unknown_key(self, name: str, key: str, fields: Mapping[str, Any]) -> None:
        near = _near(key, fields)
        elsewhere = [f"{other}.{key}" for other, section in self.sections.items() if key in _names(section)]
        hint = f"{name}.{near[0]}" if near else elsewhere[0] if elsewhere else ""
        self.faults.add(
            f"{name}.{key}",
            f"{name}.{key} is not a setting; "
            + (f"did you mean {hint}?" if hint else f"[{name}] has {', '.join(fields)}"),
        )

    def _unknown_sections(self, document: Mapping[str, Any]) -> None:
        for name, value in document.items():
            if name in self.sections:
                continue
            near = _near(name, self.sections)
            owners = [f"{other}.{name}" for other, section in self.sections.items() if name in _names(section)]
            what = f"[{name}] is not a section" if isinstance(value, Mapping) else f"{name} stands in no section"
            hint = f"[{near[0]}]" if near else owners[0] if owners else ""
            self.faults.add(
                name,
                f"{what}; " + (f"did you mean {hint}?" if hint else f"the sections are {', '.join(self.sections)}"),
            )

    def _unknown_variables(self, environ: Mapping[str, str]) -> None:
        known = [self._variable(name, key) for name, section in self.sections.items() for key in _names(section)]
        for variable in sorted(environ):
            if variable in known or not variable.startswith(f"{self.prefix}_"):
                continue
            # only what looks like a slip: others use the prefix too (container platforms announce services so)
            near = difflib.get_close_matches(variable, known, 1, cutoff=0.85)
            if near:
                self.faults.add(variable, f"{variable} is not a setting; did you mean {near[0]}?", where="environment")

    def _variable(self, section: str, key: str) -> str:
        return f"{self.prefix}_{section}_{key}".upper()


def _names(section: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _near(name: str, names: Iterable[str]) -> list[str]:
    """The one of `names` that is most like `name`, if any is; upper case and hyphens are slips as well."""
    spelt = {each.lower(): each for each in names}
    return [spelt[each] for each in difflib.get_close_matches(name.lower().replace("-", "_"), spelt, 1)]


def _did_you_mean(value: Any, choices: Sequence[str]) -> str:
    near = _near(str(value), choices)
    return f"did you mean {json.dumps(near[0])}?" if near else ""


def _is_parse_error(error: ValueError) -> bool:
    """`int("x")` and `float("x")` say nothing that `allowed` does not say better."""
    return bool(re.match(r"invalid literal|could not convert", str(error)))


def _toml(value: Any) -> str:
    """A value as it would stand in the file."""
    if isinstance(value, tuple):
        value = list(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
