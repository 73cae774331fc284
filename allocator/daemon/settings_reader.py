"""Reads a settings file and the environment variables that override it, and reports every fault at once.

A section is a frozen dataclass whose fields are created by `setting` and `shared`. An invalid value is a fault and is
never corrected.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allocator.core.settings import Faults, Setting, Texts


class SettingsReader:
    """Reads the sections of one file, once."""

    def __init__(self, sections: Mapping[str, type[Any]], source: str, prefix: str) -> None:
        self.sections = sections
        self.prefix = prefix
        self.faults = Faults(source)
        self._shown: dict[str, str] = {}

    def read(self, document: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
        """Returns section name -> instance. Adds faults to `faults`; a faulty setting has its default, or None."""
        self._unknown_sections(document)
        self._unknown_variables(environ)
        return {
            name: self._section(name, section, document.get(name, {}), environ)
            for name, section in self.sections.items()
        }

    def fault(self, keys: Sequence[str], why: str) -> None:
        """Adds a fault of several settings, unless one of them has its own fault."""
        if not self.faults.keys.intersection(keys):
            self.faults.add(keys[0], f"{' with '.join(self._shown.get(key, f'{key} not set') for key in keys)}: {why}")

    def _section(self, name: str, section: type[Any], given: Any, environ: Mapping[str, str]) -> Any:
        fields = {field.name: field for field in dataclasses.fields(section)}
        if not isinstance(given, Mapping):
            # the value is not quoted: it may contain a secret
            self.faults.add(name, f"{name} must be a table, written [{name}]")
            given = {}
        for key in given:
            if key not in fields:
                self._unknown_key(name, key, fields)
        values = {}
        for key, field in fields.items():
            value = self._value(f"{name}.{key}", field, given.get(key), environ.get(self._variable(name, key), ""))
            if value is not dataclasses.MISSING:
                values[key] = value
        return section(**values)

    def _value(self, key: str, field: dataclasses.Field[Any], given: Any, text: str) -> Any:
        setting: Setting = field.metadata["setting"]
        variable = self._variable(*key.split("."))
        if given is None and not text:
            if field.default is not dataclasses.MISSING:
                unset = f"{key} not set" + (f" (nor {variable})" if setting.secret else "")
                self._shown[key] = unset if field.default is None else f"{key} = {_toml(field.default)}"
                return dataclasses.MISSING
            self.faults.add(key, f"{key} is missing: must be {setting.kind.allowed} (or set {variable})")
            return None
        raw = text or given
        shown = setting.quoted(raw, _toml)
        self._shown[key] = f"{key} = {shown}" + (f" (from {variable})" if text else "")
        try:
            return setting.parse(text) if text else setting.read(given)
        except ValueError as error:
            why = str(error)
            if text and isinstance(setting.kind, Texts):
                why += "; separate several by commas"
            if text.startswith("tcp://"):
                why += "; Kubernetes sets this variable for a Service of such a name: set enableServiceLinks: false"
            if text:
                self.faults.add(key, f"({key}) = {shown}: {why}", where=f"environment: {variable}")
            else:
                self.faults.add(key, f"{key} = {shown}: {why}")
            return None if field.default is dataclasses.MISSING else field.default

    def _unknown_key(self, name: str, key: str, fields: Mapping[str, Any]) -> None:
        hint = self._hint(key, fields, name + ".{}", f"[{name}] has {', '.join(fields)}")
        self.faults.add(f"{name}.{key}", f"{name}.{key} is not a setting; {hint}")

    def _unknown_sections(self, document: Mapping[str, Any]) -> None:
        for name in [each for each in document if each not in self.sections]:
            is_section = isinstance(document[name], Mapping)
            what = f"[{name}] is not a section" if is_section else f"{name} is in no section"
            hint = self._hint(name, self.sections, "[{}]", f"the sections are {', '.join(self.sections)}")
            self.faults.add(name, f"{what}; {hint}")

    def _hint(self, name: str, known: Iterable[str], form: str, otherwise: str) -> str:
        """Suggests the similar name in `known`, or a setting of another section; else returns `otherwise`."""
        # compare in lower case with underscores, so that `Min-Bytes` is similar to `min_bytes`
        near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 1)
        found = [form.format(each) for each in near]
        found += (f"{section}.{name}" for section, kind in self.sections.items() if name in _names(kind))
        return f"did you mean {found[0]}?" if found else otherwise

    def _unknown_variables(self, environ: Mapping[str, str]) -> None:
        known = [self._variable(name, key) for name, section in self.sections.items() for key in _names(section)]
        for variable in sorted(environ):
            if variable in known or not variable.startswith(f"{self.prefix}_"):
                continue
            # ignore names that resemble no setting: container platforms set other variables with this prefix
            near = difflib.get_close_matches(variable, known, 1, cutoff=0.85)
            if near:
                self.faults.add(variable, f"{variable} is not a setting; did you mean {near[0]}?", where="environment")

    def _variable(self, section: str, key: str) -> str:
        return f"{self.prefix}_{section}_{key}".upper()


def _names(section: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _toml(value: Any) -> str:
    """Returns a value as it is written in the file."""
    if isinstance(value, tuple):
        value = list(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
