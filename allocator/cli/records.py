"""`allocator records`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any, Optional

import click
from rich.text import Text

from allocator.cli.access import Access
from allocator.cli.options import mask_option, with_brokers
from allocator.cli.output import Indented, console, print_json
from allocator.core.aio import time_text
from allocator.core.settings import DEFAULT
from allocator.core.text import partition_names, plain
from allocator.errors import ConfigError
from allocator.viewer import (
    Bounds,
    Decoded,
    Formats,
    Masks,
    Position,
    Query,
    Reader,
    ReadResult,
    Registry,
    SeenRecord,
    View,
    Viewer,
    parse_key,
)

SHOWN = 4096  # maximum characters of a key or a value on the terminal
WINDOWS = 12  # maximum number of partitions whose read offsets are shown


@click.command()
@click.argument("topic", metavar="TOPIC[:PARTITION]")
@with_brokers("gives the brokers, and masks, formats and registry of [records]")
@click.option(
    "--from",
    "position",
    default="latest",
    help="Start: earliest, latest (the newest records), an offset, or a time such as 2026-01-31T12:00:00Z.",
)
@click.option(
    "--before",
    default=0,
    type=click.IntRange(0, 10_000),
    help="Also show this many records before the start. From latest, it replaces --limit.",
)
@click.option(
    "--limit", default=20, type=click.IntRange(0, 10_000), help="Show at most this many records from the start."
)
@click.option("--key", help="Only records with this key, in the partition that Kafka's default partitioner chooses.")
@click.option("--key-hex", help="Like --key, with the bytes of the key as hex.")
@click.option("--every-partition", is_flag=True, help="Search all partitions for the key.")
@click.option("--scan", default=Bounds.scanned, type=click.IntRange(1), help="Read at most this many records.")
@click.option(
    "--isolation-level",
    default=DEFAULT["isolation_level"],
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed leaves out records of aborted and open transactions.",
)
@click.option("--key-format", default="auto", help="Format of keys; see --value-format.")
@click.option(
    "--value-format",
    default="auto",
    help="Format of values: auto, json, text, hex, avro:FILE, confluent-avro:FILE, protobuf:FILE:MESSAGE or "
    "confluent-protobuf:FILE:MESSAGE.",
)
@click.option("--registry", envvar="ALLOCATOR_RECORDS_REGISTRY", help="URL of a schema registry, for the format auto.")
@mask_option
@click.option("--lines", is_flag=True, help="Print one line of JSON for each record, with complete key and value.")
def records(
    topic: str,
    access: Access,
    position: str,
    key: Optional[str],
    key_hex: Optional[str],
    scan: int,
    key_format: str,
    value_format: str,
    registry: Optional[str],
    masks: tuple[str, ...],
    lines: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show records of TOPIC, decoded and masked: the newest, those around an offset, from a time, or with a key.

    Joins no group and commits nothing. Stops after 64 MB of keys and values or 15 s, and shows which offsets it read.
    """
    query = Query(*_place(topic), Position.parse(position), key=parse_key(key, key_hex), **chosen)
    viewer = make_viewer(access, masks, registry, scan=scan)
    view = asyncio.run(viewer.view(query, key_format, value_format))
    if as_json:
        print_json(view.to_json())
    elif lines:
        for line in view.lines():
            click.echo(line, nl=False)
    else:
        _print(view)


def make_viewer(
    access: Access,
    masks: Collection[str] = (),
    registry: Optional[str] = None,
    formats: Collection[str] = (),
    scan: int = Bounds.scanned,
) -> Viewer:
    """Returns a viewer for the [records] settings and the options of a command. Raises ConfigError, MissingExtra."""
    section = None if access.settings is None else access.settings.records
    if section is not None:
        formats = (*(section.formats or ()), *formats)
        registry = registry or section.registry
    return Viewer(
        Reader(access.need_brokers(), access.security, Bounds(scan), access.timeout_s),
        masks=masks_of(access, masks),
        formats=Formats(tuple(formats)),
        registry=None if registry is None else Registry(registry),
    )


def masks_of(access: Access, masks: Collection[str] = ()) -> Masks:
    """Returns the masks of the [records] settings and of the options of a command. Raises ConfigError."""
    given = () if access.settings is None else access.settings.records.masks or ()
    return Masks(dict.fromkeys((*given, *masks)))


def error_viewer(access: Access, masks: Masks) -> Viewer:
    """Returns the viewer of a server that shows no records, only the errors of dead letters. Needs no extra package."""
    return Viewer(Reader(access.need_brokers(), access.security, timeout_s=access.timeout_s), masks)


def _place(text: str) -> tuple[str, Optional[int]]:
    topic, colon, partition = text.partition(":")
    if not topic or (colon and not re.fullmatch("[0-9]{1,9}", partition)):
        raise ConfigError(f"{text!r} is not TOPIC or TOPIC:PARTITION, such as orders:3")
    return topic, int(partition) if colon else None


# -- output ------------------------------------------------------------------------------------------------------------


def _print(view: View) -> None:
    out = console()
    for record in view.records:
        out.print(Text(_head(view.found.topic, record), style="bold", overflow="fold"))
        for what, decoded in (("key", record.key), ("value", record.value), *record.headers):
            label = what if what in ("key", "value") else f"header {plain(what)}"
            out.print(Indented(f"{label}: {_text(decoded)}"))
    out.print(Text(summary(view.found, len(view.records)), overflow="fold"))


def _head(topic: str, record: SeenRecord) -> str:
    when = "no time" if record.timestamp_ms is None else time_text(record.timestamp_ms, "milliseconds")
    return f"{topic}:{record.partition} offset {record.offset}  {when}"


def _text(decoded: Decoded) -> str:
    text = decoded.text
    note = f"  ({decoded.note})" if decoded.note else ""
    kind = f" [{decoded.format}]" if decoded.format in ("hex", "avro", "protobuf") else ""
    shown = plain(text[:SHOWN], lines=True)
    if len(text) > SHOWN:
        shown += f" … ({len(text)} characters; --lines and --json print all)"
    return f"{shown}{kind}{note}"


def summary(found: ReadResult, shown: int) -> str:
    """Returns lines with the number of records, the limit that ended the read, and the offsets read per partition."""
    lines = [f"{shown} {'record' if shown == 1 else 'records'} shown, {found.scanned} read"]
    if found.stopped:
        lines[0] += f"; the read ended at its limit of {found.stopped}"
    if found.by_partitioner:
        lines.append(
            f"searched partition {found.windows[0].partition}, where Kafka's default partitioner puts this key; "
            "--every-partition searches all"
        )
    for window in found.windows[:WINDOWS]:
        read = f"offsets {window.first} to {window.next - 1}" if window.next > window.first else "no offsets"
        held = f"its log has {window.begin} to {window.end - 1}" if window.end > window.begin else "its log is empty"
        lines.append(f"{found.topic}:{window.partition}: {read} read; {held}")
    if len(found.windows) > WINDOWS:
        lines.append(f"and {len(found.windows) - WINDOWS} more partitions; --json lists them")
    if found.leaderless:
        names = partition_names([(found.topic, number) for number in found.leaderless])
        lines.append(f"{names}: not read, no leader; check that the broker is available")
    return "\n".join(lines)
