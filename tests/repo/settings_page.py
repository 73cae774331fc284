"""The tables of docs/reference/settings.md, out of the code; `python -m tests.repo.settings_page` writes the page."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from allocator.compat.group_config import OWN
from allocator.core.memberships import known_memberships, options_of
from allocator.core.settings.table import REQUIRED, SETTINGS, Setting, SettingKind
from allocator.daemon.config import SECTIONS
from allocator.producer.settings import PRODUCING
from allocator.spark import connector
from allocator.spark.options import ONLY, Options

OWNERS: dict[str, list[str]] = {}
"""Setting -> the memberships that have it."""
for kind in map(options_of, known_memberships()):
    for each in dataclasses.fields(kind):
        OWNERS.setdefault(each.name, []).append(f"`{kind.__name__}`")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
INTRODUCTION = """# Settings

<!-- written by `python -m tests.repo.settings_page` out of the code -->

Each setting is declared once, in `allocator/core/settings/table.py`; `Consumer`, `ConsumerGroup`, `GroupedConsumer`,
the daemon and Spark take the same defaults and ranges from there. Times are in seconds. A default of nothing means
that the setting is not used unless given.
"""
MEMBERSHIPS = """## `ZooKeeper`, `Kafka` and the other memberships

Arguments of the object that `Consumer` and `GroupedConsumer` take as `membership`:
`membership=ZooKeeper("z1:2181", session_timeout_s=20)`. The name alone, such as `membership="kafka"`, stands for the
object with its defaults. `zookeeper="z1:2181"` beside it names the ensemble of a membership on ZooKeeper, and other
memberships ignore it. `Fixed([("orders", 0)])` reads chosen partitions instead of topics. `ConsumerGroupConfig` and the
daemon's file have these settings beside the others; those of another membership than the chosen one have no effect
there, so that a service moves by changing `membership` alone.
"""
PRODUCER = ("brokers", "security", "connect_timeout_s")
DAEMON = """## The daemon's file

A TOML file with these sections; `allocator run FILE --check` names every fault at once. Each setting can come from the
environment instead, as `ALLOCATOR_<SECTION>_<SETTING>`: `ALLOCATOR_KAFKA_BROKERS=b1:9092,b2:9092`.
"""
SPARK = """## Options of Spark

For `format("allocator")`. Case, dots and underscores do not matter, and the names of Spark's own connector are
understood.
"""


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        "## `Consumer`, `GroupedConsumer`, `ConsumerGroupConfig`\n",
        _consumers({name: each for name, each in SETTINGS.items() if name not in OWNERS}),
        MEMBERSHIPS,
        _memberships(),
        "`ConsumerGroupConfig` alone:\n",
        _consumers(OWN),
        "## `Producer`\n",
        _consumers({**{name: SETTINGS[name] for name in PRODUCER}, **PRODUCING}),
        DAEMON,
        *_daemon(),
        SPARK,
        _spark(),
    ]
    return "\n".join(parts)


def _consumers(settings: Mapping[str, Setting]) -> str:
    rows = [(f"`{name}`", _default(each.default), _values(each.kind), each.text) for name, each in settings.items()]
    return _table(("setting", "default", "values", "meaning"), rows)


def _memberships() -> str:
    rows = [
        (f"`{name}`", ", ".join(OWNERS[name]), _default(each.default), _values(each.kind), each.text)
        for name, each in SETTINGS.items()
        if name in OWNERS
    ]
    return _table(("setting", "of", "default", "values", "meaning"), rows)


def _daemon() -> Iterator[str]:
    for name, section in SECTIONS.items():
        about = (inspect.getdoc(section) or "").partition(": ")[2]
        yield f"### [{name}]\n\n{about[:1].upper()}{about[1:]}\n"
        rows = [
            (
                f"`{field.name}`",
                _default(field.default),
                _values(field.metadata["setting"].kind),
                field.metadata["setting"].text,
            )
            for field in dataclasses.fields(section)
        ]
        yield _table(("setting", "default", "values", "meaning"), rows)


def _spark() -> str:
    rows = []
    for field in dataclasses.fields(Options):
        if "setting" not in field.metadata:
            continue
        names = [name for name, own in connector.NAMES.items() if own == field.name]
        needed = field.default is REQUIRED
        rows.append(
            (
                f"`{field.name}`",
                ", ".join(f"`{name}`" for name in names),
                "required" if needed else _default(field.default),
                ", ".join(ONLY.get(field.name, ())) or "all",
                _values(field.metadata["setting"].kind),
                field.metadata["setting"].text,
            )
        )
    security = "TLS, SASL and proxy settings, under kafka-python's names. Java key stores must become PEM files."
    names_there = "`kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`"
    rows.append(("`security.*`", names_there, "", "all", "text", security))
    return _table(("option", "the connector's name", "default", "for", "values", "meaning"), rows)


def _default(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(kind: SettingKind) -> str:
    return kind.allowed


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
