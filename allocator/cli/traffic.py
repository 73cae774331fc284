"""`allocator traffic`: records the contents of topics, for tests that replay them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Optional

import click

from allocator.cli.output import print_json
from allocator.errors import ConfigError
from allocator.traffic import Recording

__all__ = ["traffic"]


@click.group()
def traffic() -> None:
    """Record traffic for tests on several versions of Kafka (docs/testing.md)."""


@traffic.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "-c", "--config", type=click.Path(dir_okay=False), help="Settings file of `allocator run`: servers and credentials."
)
@click.option("--brokers", envvar="ALLOCATOR_KAFKA_BROKERS", help="Kafka brokers: host:port,host:port.")
@click.option("--topic", "topics", multiple=True, required=True, help="Topic to record; may be repeated.")
@click.option(
    "--limit",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Record at most this many records of each partition.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def record(
    file: str, config: Optional[str], brokers: Optional[str], topics: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """Write the newest records of topics into FILE, compressed if its name ends in .gz.

    Joins no group and commits nothing. Keys, values, headers and timestamps are kept as they are: look through FILE
    before you share it.
    """
    security = None
    if config is not None:
        from allocator.daemon.config import load

        settings = load(config)
        brokers = brokers or ",".join(settings.kafka.brokers)
        security = settings.kafka.security() or None
    if brokers is None:
        raise ConfigError("where are the brokers? Give --brokers or --config, or set ALLOCATOR_KAFKA_BROKERS")
    if not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"{file} cannot be written: there is no directory {Path(file).parent}")
    recording = asyncio.run(_read(brokers, security, topics, limit))
    try:
        recording.save(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
    if as_json:
        print_json({"file": file, "records": len(recording.records), "partitions": dict(recording.partitions)})
        return
    counts = ", ".join(f"{topic} ({count} partitions)" for topic, count in recording.partitions.items())
    click.echo(f"{len(recording.records)} records of {counts} are in {file}")


async def _read(brokers: str, security: Any, topics: tuple[str, ...], limit: int) -> Recording:
    from allocator.client.client import KafkaClient
    from allocator.errors import TopicNotFound
    from allocator.migrate.spans import read_spans
    from allocator.migrate.storage import CONNECT_S
    from allocator.migrate.translate import ends_of
    from allocator.types import TopicPartition

    client = KafkaClient(brokers, security=security)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        await client.connect(CONNECT_S)
        client.follow(topics)
        await client.refresh(topics)
        counts = {topic: len(client.partitions(topic) or ()) for topic in topics}
        missing = [topic for topic, count in counts.items() if not count]
        if missing:
            raise TopicNotFound(missing)
        every = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        ends = await ends_of(client, every)
    spans = {partition: (max(start, end - limit), end) for partition, (start, end) in ends.items()}
    kept: list[Any] = [record async for batch in read_spans(brokers, spans, security) for record in batch]
    return Recording.of(kept, counts)
