"""The plan of a cutover: a TOML file, checked completely before any change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from allocator.core.settings import Flag, Number, Setting, Text, Texts, shared
from allocator.errors import ConfigError
from allocator.migrate.storage import OffsetStore
from allocator.protocols.zookeeper import same_cluster

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KAFKA_PORT, ZOOKEEPER_PORT = 9092, 2181
_TEXT, _NAMES, _SECONDS = Text(), Texts("a list of names"), Number(above=True)
_SIDE = ("brokers", "zookeeper", "storage", "security")
_SECURITY: Setting = shared("security").metadata["setting"]


def _key(name: str, kind: Any, default: Any = dataclasses.MISSING, text: str = "") -> Any:
    """Declares a field that the file sets. `name` is "section.key", `kind` a declared setting or the kind of one."""
    declared = kind if isinstance(kind, Setting) else Setting(kind, default, text)
    return dataclasses.field(
        default=default, metadata={"key": name.split("."), "setting": declared}, repr=not declared.secret
    )


@dataclass(frozen=True)
class Plan:
    """The groups and topics to move, and both clusters. Times are in seconds; docs/migration.md describes the file."""

    path: Path
    groups: tuple[str, ...] = _key("cutover.groups", _NAMES)
    topics: tuple[str, ...] = _key("cutover.topics", _NAMES)
    zookeeper: str = _key("cutover.zookeeper", _TEXT)
    old_brokers: str = _key("old.brokers", _TEXT)
    new_brokers: str = _key("new.brokers", _TEXT)
    root: str = _key("cutover.root", _TEXT, "/allocator")
    mirror: str = _key("cutover.mirror", _TEXT, "allocator-mirror")
    mirror_back: Optional[str] = _key("cutover.mirror_back", _TEXT, None, "group of the mirror back, for a fail-back")
    state_file: Optional[str] = _key("cutover.state", _TEXT, None)
    leave: tuple[str, ...] = _key("cutover.leave", _NAMES, (), "topics that the groups do not read any more")
    audit: bool = _key("cutover.audit", Flag(), True)
    old_zookeeper: Optional[str] = _key("old.zookeeper", _TEXT, None)
    old_storage: str = _key("old.storage", Text(("kafka", "zookeeper")), "kafka")
    old_security: Optional[Mapping[str, Any]] = _key("old.security", _SECURITY, None)
    new_security: Optional[Mapping[str, Any]] = _key("new.security", _SECURITY, None)
    producers: Optional[str] = _key("producers.znode", _TEXT, None)
    freeze_s: float = _key("wait.freeze_s", _SECONDS, 120.0, "for members to finish their records and leave")
    drain_s: float = _key("wait.drain_s", _SECONDS, 600.0, "for the mirror to reach the offsets of the groups")
    verify_s: float = _key("wait.verify_s", _SECONDS, 120.0, "for the groups to commit progress on the new cluster")
    quiet_s: float = _key("wait.quiet_s", _SECONDS, 5.0, "without writes to the old topics")
    producers_s: float = _key("wait.producers_s", _SECONDS, 600.0, "for producers to stop, and the mirror to copy all")
    new_zookeeper: Optional[str] = None
    new_storage: str = "kafka"

    def back(self) -> Plan:
        """Returns the plan of the way back: its old cluster is the new one of this plan."""
        return dataclasses.replace(
            self,
            mirror=self.mirror_back or f"{self.mirror}-back",
            state_file=str(self.state.absolute().with_suffix(".back.json")),
            **{f"old_{name}": getattr(self, f"new_{name}") for name in _SIDE},
            **{f"new_{name}": getattr(self, f"old_{name}") for name in _SIDE},
        )

    def old(self, group: str) -> OffsetStore:
        """Returns the store of the group's offsets on the old cluster."""
        return self._store(group, self.old_brokers, self.old_storage, self.old_zookeeper, self.old_security)

    def new(self, group: str) -> OffsetStore:
        """Returns the store of the group's offsets on the new cluster."""
        return self._store(group, self.new_brokers, self.new_storage, self.new_zookeeper, self.new_security)

    def _store(
        self, group: str, brokers: str, storage: str, ensemble: str | None, security: Mapping[str, Any] | None
    ) -> OffsetStore:
        zookeepers = tuple(filter(None, (self.zookeeper, ensemble)))
        return OffsetStore(brokers, group, storage, zookeepers, self.root, security)

    @property
    def state(self) -> Path:
        """The file with the completed steps, beside the plan unless its path is absolute."""
        return self.path.parent / (self.state_file or f"{self.path.stem}.state.json")

    @property
    def digest(self) -> str:
        """Identifies what the plan moves. Times, passwords and the audit do not count."""
        moved: list[Any] = [sorted(self.groups), sorted(self.topics)]
        moved += [_servers(self.zookeeper, ZOOKEEPER_PORT), self.root, self.mirror]
        ensemble = self.old_zookeeper and _servers(self.old_zookeeper, ZOOKEEPER_PORT)
        old, new = (_servers(brokers, KAFKA_PORT) for brokers in (self.old_brokers, self.new_brokers))
        places = [old, ensemble, self.old_storage, new, self.producers]
        return hashlib.sha256(json.dumps([moved, places]).encode()).hexdigest()


def load_plan(path: Path) -> Plan:
    """Reads and checks the file. Raises one ConfigError that lists every fault."""
    try:
        sections = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    faults: list[str] = []
    declared = {tuple(field.metadata["key"]): field for field in dataclasses.fields(Plan) if field.metadata}
    names = list(dict.fromkeys(section for section, _ in declared))
    for section, given in sections.items():
        if section not in names:
            faults.append(f"[{section}] is not a section; the sections are {', '.join(names)}")
        elif not isinstance(given, dict):
            faults.append(f"{section} must be a section, [{section}]")
        else:
            known = [key for of, key in declared if of == section]
            unknown = [key for key in given if key not in known]
            faults += [f"[{section}] has no setting {key!r}; its settings are {', '.join(known)}" for key in unknown]
    values: dict[str, Any] = {}
    for (section, key), field in declared.items():
        given = sections.get(section)
        value = given.get(key) if isinstance(given, dict) else None
        if value is not None:
            try:
                values[field.name] = field.metadata["setting"].read(value)
            except ValueError as error:
                faults.append(f"[{section}] {key} = {field.metadata['setting'].quoted(value)}: {error}")
        elif field.default is dataclasses.MISSING:
            faults.append(f"[{section}] {key} is missing")
    if not faults and same_cluster(values["old_brokers"], values["new_brokers"]):
        faults.append(f"[old] and [new] share a broker: {values['old_brokers']} and {values['new_brokers']}")
    if faults:
        raise ConfigError(f"{path}: {'; '.join(faults)}")
    return Plan(path, **values)


def _servers(text: str, port: int) -> str:
    """Returns the addresses in one spelling: sorted, in lower case, with ports; a chroot stays at the end."""
    addresses, slash, chroot = text.partition("/")
    found = {each.strip().lower() for each in addresses.split(",")}
    found = {each if re.search(r":\d+$", each) else f"{each}:{port}" for each in found}
    chroot = chroot.strip("/")
    return ",".join(sorted(found)) + (f"/{chroot}" if slash and chroot else "")
