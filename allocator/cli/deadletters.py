"""`allocator deadletters`."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Coroutine
from typing import Any, Optional, TypeVar

import click

from allocator.cli.access import Access
from allocator.cli.options import (
    ERROR,
    NOTHING_CHANGED,
    Callback,
    decorated,
    execute_option,
    mask_option,
    repeated,
    with_brokers,
)
from allocator.cli.output import Listing, console, print_json
from allocator.cli.records import make_viewer, masks_of
from allocator.core.aio import time_text
from allocator.core.text import plain
from allocator.errors import ConfigError
from allocator.operate.dead_letters import (
    MAX_REDRIVES,
    DeadLetterQueue,
    Letter,
    LetterFilter,
    Outcome,
    parse_place,
    parse_time,
)
from allocator.viewer import Decoded, SeenRecord, Viewer

T = TypeVar("T")

SHOWN = 4096  # maximum characters of a key, a value or a header


@click.group()
def deadletters() -> None:
    """List dead letters, write them back to their topics, or discard them.

    A dead letter is a record that a handler could not process. Reads the dead-letter topics of `allocator run`, Spring
    Kafka and Kafka Connect. The topic TOPIC.settled lists the letters that were redriven or discarded.
    """


def on_topic(command: Callback, contents: bool = False) -> Callback:
    """Adds TOPIC, masks and the connection options. The command gets `letters` and `as_json`, with `contents` `viewer`
    too."""

    @functools.wraps(command)
    def with_topic(topic: Optional[str], access: Access, masks: tuple[str, ...], **arguments: Any) -> None:
        if topic is None and access.settings is not None:
            topic = access.settings.handler.dead_letter_topic
        if topic is None:
            raise ConfigError("no topic was given: name one, or give --config with a handler.dead_letter_topic")
        hidden, timeout_s = masks_of(access, masks), access.timeout_s
        letters = DeadLetterQueue(
            topic, access.need_brokers(), security=access.security, masks=hidden, timeout_s=timeout_s
        )
        if contents:
            arguments["viewer"] = make_viewer(access, masks)
        command(letters=letters, **arguments)

    return decorated(
        with_topic,
        click.argument("topic", metavar="[TOPIC]", required=False),
        mask_option,
        with_brokers("gives the brokers, the dead-letter topic, and [records]"),
    )


def with_filter(command: Callback) -> Callback:
    """Adds the options that select letters. The command gets the filter as `chosen`."""

    @click.option("--error", default="", show_default=False, help="Only letters whose error contains this text.")
    @click.option("--from-topic", default="", show_default=False, help="Only letters of records from this topic.")
    @click.option("--since", help="Only letters written at this time or later, such as 2026-01-31T12:00:00Z.")
    @click.option("--until", help="Only letters written before this time.")
    @repeated("--letter", "names", text="Only this letter, PARTITION:OFFSET")
    @functools.wraps(command)
    def chosen_letters(
        error: str,
        from_topic: str,
        since: Optional[str],
        until: Optional[str],
        names: tuple[str, ...],
        **arguments: Any,
    ) -> None:
        places = frozenset(map(parse_place, names))
        chosen = LetterFilter(error, from_topic, parse_time("--since", since), parse_time("--until", until), places)
        command(chosen=chosen, **arguments)

    return chosen_letters


@deadletters.command("list")
@on_topic
@with_filter
@click.option("--settled", is_flag=True, help="Also list redriven and discarded letters.")
@click.option("--limit", default=1000, type=click.IntRange(1), help="List at most this many letters.")
def list_command(letters: DeadLetterQueue, as_json: bool, chosen: LetterFilter, settled: bool, limit: int) -> None:
    """List the dead letters of TOPIC, with the partition and offset that they came from, and the error."""
    found, count = _run(letters, letters.first(limit, chosen, settled=settled))
    if as_json:
        print_json({"topic": letters.topic, "count": count, "letters": [letter.to_json() for letter in found]})
        return
    console().print(letters_table(found))
    click.echo(f"{count} letters" + (f", the first {limit} listed" if count > limit else ""))


@deadletters.command("show")
@functools.partial(on_topic, contents=True)
@click.option("--letter", "name", required=True, help="The letter, PARTITION:OFFSET.")
def show_command(letters: DeadLetterQueue, viewer: Viewer, as_json: bool, name: str) -> None:
    """Show a dead letter: the partition and offset that it came from, error with stack, headers, key and value."""

    async def shown() -> tuple[Letter, SeenRecord]:
        letter = await letters.get(*parse_place(name))
        if letter is None:
            raise ConfigError(f"{letters.topic} has no letter {name}; `allocator deadletters list` shows all letters")
        of_topic = letters.topic if letter.original is None else letter.original.topic
        return letter, await viewer.decode(of_topic, letter.record)

    letter, record = _run(letters, shown())
    headers = [(header, _text(value)) for header, value in record.headers]
    if as_json:
        content = {"key": _text(record.key), "value": _text(record.value), "headers": headers, "stack": letter.stack}
        print_json({**letter.to_json(), **content})
        return
    for key, value in letter.to_json().items():
        click.echo(f"{key:<13} {'-' if value in (None, '') else plain(str(value))}")
    for header, text in headers:
        click.echo(f"header        {plain(header)}: {text}")
    click.echo(f"key           {_text(record.key)}")
    click.echo(f"value         {_text(record.value)}")
    if letter.stack:
        click.echo(f"\n{letter.stack}")


@deadletters.command("redrive")
@on_topic
@with_filter
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of letters per second (default: no limit)."
)
@click.option(
    "--max-redrives",
    default=MAX_REDRIVES,
    type=click.IntRange(1),
    help="Refuse letters that were redriven this often already.",
)
@execute_option
def redrive_command(
    letters: DeadLetterQueue, as_json: bool, chosen: LetterFilter, execute: bool, **options: Any
) -> None:
    """Write letters back to their original topics and partitions, each once.

    One transaction writes the record and marks the letter as settled. So you can kill the command and run it again.
    """

    _settle(letters, letters.redrive(chosen, execute=execute, **options), chosen, "redriven", execute, as_json)


@deadletters.command("discard")
@on_topic
@with_filter
@click.option("--reason", default="", show_default=False, help="Reason, shown with the settled letters.")
@execute_option
def discard_command(letters: DeadLetterQueue, as_json: bool, chosen: LetterFilter, reason: str, execute: bool) -> None:
    """Mark letters as settled. They stay in TOPIC until its retention deletes them."""
    work = letters.discard(chosen, execute=execute, reason=reason)
    _settle(letters, work, chosen, "discarded", execute, as_json)


# ----------------------------------------------------------------------------------------------------------------


def _run(letters: DeadLetterQueue, work: Coroutine[Any, Any, T]) -> T:
    async def run() -> T:
        try:
            async with letters:
                return await work
        finally:
            work.close()

    return asyncio.run(run())


def letters_table(letters: list[Letter]) -> Listing:
    listing = Listing(
        "letter", "written", "from", "offset", "attempts", "redrives", "error", "settled", right=(3, 4, 5)
    )
    for letter in letters:
        original = letter.original
        listing.add(
            letter.name,
            None if letter.written_ms is None else time_text(letter.written_ms),
            None if original is None else f"{original.topic}:{original.partition}",
            letter.original_offset,
            letter.attempts,
            letter.redrives,
            letter.error,
            "" if letter.settled is None else f"{letter.settled.action} by {letter.settled.by}",
        )
    return listing


def _settle(
    letters: DeadLetterQueue,
    work: Coroutine[Any, Any, Outcome],
    chosen: LetterFilter,
    done: str,
    execute: bool,
    as_json: bool,
) -> None:
    outcome = _run(letters, work)
    found = [*outcome.done, *(letter for letter, _ in outcome.refused)]
    missing = chosen.places.difference((letter.place.partition, letter.offset) for letter in found)
    for partition, offset in sorted(missing):
        why = "it is settled already, is not selected by the other options, or does not exist"
        click.echo(f"not {done}: {partition}:{offset}: {why}", err=True)
    _print_outcome(outcome, done, execute, as_json)
    if missing or outcome.refused:
        sys.exit(ERROR)


def _print_outcome(outcome: Outcome, done: str, execute: bool, as_json: bool) -> None:
    if as_json:
        refused = [{**letter.to_json(), "refused": why} for letter, why in outcome.refused]
        print_json({"executed": execute, done: [each.to_json() for each in outcome.done], "refused": refused})
        return
    if not execute and outcome.done:
        console().print(letters_table(outcome.done))
    for letter, why in outcome.refused:
        click.echo(f"refused: {letter.name}: {plain(why)}")
    if execute:
        click.echo(f"{len(outcome.done)} letters {done}")
    else:
        click.echo(f"{len(outcome.done)} letters would be {done}; {NOTHING_CHANGED}")


def _text(decoded: Decoded) -> str | None:
    """Returns a decoded key, value or header as one line. Shortens a long one."""
    if decoded.format == "null":
        return None
    text = decoded.text
    shown = plain(text[:SHOWN])
    return shown if len(text) <= SHOWN else f"{shown} … ({decoded.size} bytes)"
