"""`allocator traffic`: records the content of topics, for tests that replay it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allocator.cli.options import repeated, with_brokers
from allocator.cli.output import print_json
from allocator.errors import ConfigError
from allocator.testing import Recording

if TYPE_CHECKING:
    from allocator.cli.access import Access


@click.group()
def traffic() -> None:
    """Record traffic for tests on several versions of Kafka (docs/testing.md)."""


@traffic.command()
@click.argument("file", type=click.Path(dir_okay=False))
@with_brokers("servers and credentials")
@repeated("--topic", "topics", required=True, text="Topic to record")
@click.option("--limit", default=1000, type=click.IntRange(min=1), help="Maximum number of records of each partition.")
def record(file: str, access: Access, topics: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Write the newest records of topics into FILE, compressed if its name ends in .gz.

    Joins no group and commits nothing. FILE has the original keys, values, headers and timestamps: check it before you
    share it.
    """
    if not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"{file} cannot be written: directory {Path(file).parent} does not exist")
    recording = asyncio.run(_read(access, topics, limit))
    try:
        recording.save(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
    if as_json:
        print_json({"file": file, "records": len(recording.records), "partitions": dict(recording.partitions)})
        return
    counts = ", ".join(f"{topic} ({count} partitions)" for topic, count in recording.partitions.items())
    click.echo(f"{file} has {len(recording.records)} records of {counts}")


async def _read(access: Access, topics: tuple[str, ...], limit: int) -> Recording:
    from allocator.core.fetch import RangeReader
    from allocator.types import TopicPartition

    async with access.cluster() as client:
        counts = {topic: len(client.partitions(topic) or ()) for topic in topics}
        missing = [topic for topic, count in counts.items() if not count]
        if missing:
            raise await client.absence(missing)
        every = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        reader = RangeReader(client)
        bounds = await reader.bounds(every)
        newest = {partition: (max(start, end - limit), end) for partition, (start, end) in bounds.items()}
        kept: list[Any] = [record async for batch in reader.read(newest) for record in batch]
    return Recording.of(kept, counts)
