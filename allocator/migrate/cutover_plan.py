"""The plan of a cutover: a TOML file, checked completely before any change."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Optional

from allocator.errors import ConfigError
from allocator.migrate.storage import OffsetStore
from allocator.operate import same_cluster

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KAFKA_PORT, ZOOKEEPER_PORT = 9092, 2181
# section -> key -> (type, default); ... means required
_KEYS: Final[Mapping[str, Mapping[str, tuple[type, Any]]]] = {
    "cutover": {
        "groups": (list, ...),
        "topics": (list, ...),
        "zookeeper": (str, ...),
        "root": (str, "/allocator"),
        "state": (str, None),
        "mirror": (str, "allocator-mirror"),
        "audit": (bool, True),
    },
    "old": {"brokers": (str, ...), "zookeeper": (str, None), "storage": (str, "kafka"), "security": (dict, None)},
    "new": {"brokers": (str, ...), "security": (dict, None)},
    "producers": {"znode": (str, None)},
    "wait": {
        "freeze_s": (float, 120.0),  # for members to finish their records and leave
        "drain_s": (float, 600.0),  # for the mirror to reach the offsets of the groups
        "verify_s": (float, 120.0),  # for the groups to commit progress on the new cluster
        "quiet_s": (float, 5.0),  # time without writes to the old topics
        "producers_s": (float, 600.0),  # for producers to stop, and for the mirror to copy all records
    },
}


@dataclass(frozen=True)
class Plan:
    """The groups and topics to move, and both clusters. Times in seconds; docs/migration.md describes the file."""

    path: Path
    digest: str
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    zookeeper: str
    root: str
    state: Path
    mirror: str
    audit: bool
    old_brokers: str
    old_zookeeper: Optional[str]
    old_storage: str
    old_security: Optional[Mapping[str, Any]]
    new_brokers: str
    new_security: Optional[Mapping[str, Any]]
    producers: Optional[str]
    freeze_s: float
    drain_s: float
    verify_s: float
    quiet_s: float
    producers_s: float

    def old(self, group: str) -> OffsetStore:
        """The group's offsets on the old cluster."""
        zookeepers = tuple(filter(None, (self.zookeeper, self.old_zookeeper)))
        return OffsetStore(self.old_brokers, group, self.old_storage, zookeepers, self.root, self.old_security)

    def new(self, group: str) -> OffsetStore:
        """The group's offsets on the new cluster."""
        return OffsetStore(self.new_brokers, group, "kafka", (self.zookeeper,), self.root, self.new_security)


def load_plan(path: Path) -> Plan:
    """Raises one ConfigError that lists every fault."""
    try:
        data = path.read_bytes()
        sections = tomllib.loads(data.decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    faults: list[str] = []
    values: dict[str, dict[str, Any]] = {section: {} for section in _KEYS}
    for section, given in sections.items():
        if section not in _KEYS:
            faults.append(f"[{section}] is not a section; the sections are {', '.join(_KEYS)}")
        elif not isinstance(given, dict):
            faults.append(f"{section} must be a section, [{section}]")
        else:
            faults += [
                f"[{section}] has no setting {key!r}; its settings are {', '.join(_KEYS[section])}"
                for key in given
                if key not in _KEYS[section]
            ]
    for section, keys in _KEYS.items():
        given = sections.get(section, {})
        for key, (kind, default) in keys.items():
            value = given.get(key, default) if isinstance(given, dict) else default
            if value is ...:
                faults.append(f"[{section}] {key} is missing")
            elif value is not None and not _fits(value, kind):
                faults.append(f"[{section}] {key} is {value!r}; it must be {_WORDS[kind]}")
            values[section][key] = value
    if not faults and values["old"]["storage"] not in ("kafka", "zookeeper"):
        faults.append(f"[old] storage is {values['old']['storage']!r}, not 'kafka' or 'zookeeper'")
    if not faults and same_cluster(values["old"]["brokers"], values["new"]["brokers"]):
        faults.append(f"[old] and [new] share a broker: {values['old']['brokers']} and {values['new']['brokers']}")
    if faults:
        raise ConfigError(f"{path}: {'; '.join(faults)}")
    cutover = values["cutover"]
    settings: dict[str, Any] = {
        **cutover,
        "groups": tuple(cutover["groups"]),
        "topics": tuple(cutover["topics"]),
        "state": path.parent / (cutover["state"] or f"{path.stem}.state.json"),
        "producers": values["producers"]["znode"],
        **{f"{side}_{key}": value for side in ("old", "new") for key, value in values[side].items()},
        **{key: float(value) for key, value in values["wait"].items()},
    }
    return Plan(path=path, digest=_digest(values), **settings)


def _digest(values: Mapping[str, Any]) -> str:
    """Of what the plan moves, from where to where. Times, passwords and the audit may change under way."""
    cutover, old, new = values["cutover"], values["old"], values["new"]
    moved: list[Any] = [sorted(cutover["groups"]), sorted(cutover["topics"])]
    moved += [_servers(cutover["zookeeper"], ZOOKEEPER_PORT), cutover["root"], cutover["mirror"]]
    ensemble = old["zookeeper"] and _servers(old["zookeeper"], ZOOKEEPER_PORT)
    brokers = [_servers(each["brokers"], KAFKA_PORT) for each in (old, new)]
    places = [brokers[0], ensemble, old["storage"], brokers[1], values["producers"]["znode"]]
    return hashlib.sha256(json.dumps([moved, places]).encode()).hexdigest()


def _servers(text: str, port: int) -> str:
    """The list of addresses in one spelling: sorted, in lower case, with ports; a chroot stays at the end."""
    addresses, slash, chroot = text.partition("/")
    found = {each.strip().lower() for each in addresses.split(",")}
    found = {each if re.search(r":\d+$", each) else f"{each}:{port}" for each in found}
    chroot = chroot.strip("/")
    return ",".join(sorted(found)) + (f"/{chroot}" if slash and chroot else "")


_WORDS: Final = {
    list: "a list of names, and not empty",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    float: "a positive number of seconds",
}


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    if kind is list:
        return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)
    return isinstance(value, kind) and value != ""
