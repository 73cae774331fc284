"""`allocator cluster`: starts real servers from a shell."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from allocator.testing import USUAL_ZOOKEEPER

if TYPE_CHECKING:
    from allocator.testing import LocalCluster


zookeeper_version_option = click.option("--zookeeper-version", default=USUAL_ZOOKEEPER, help="ZooKeeper version.")


@click.group()
def cluster() -> None:
    """Run real Kafka and ZooKeeper servers on this machine, for experiments."""


@cluster.command()
@click.option("--kafka", default="3.9.1", help='Kafka version; "none" starts ZooKeeper alone.')
@click.option("--brokers", default=1, type=click.IntRange(min=1), help="Number of brokers.")
@click.option("--zookeepers", default=1, type=click.IntRange(min=0), help="Number of ZooKeeper servers.")
@zookeeper_version_option
@click.option(
    "--port",
    "kafka_port",
    type=click.IntRange(1, 65535),
    help="Port of the first broker; the others follow (default: free ports).",
)
@click.option(
    "--zookeeper-port",
    type=click.IntRange(1, 65535),
    help="Port of the first ZooKeeper; the others follow (default: free ports).",
)
@click.option(
    "--directory", type=click.Path(file_okay=False), help="Keep data and logs here (default: a temporary directory)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of text.")
def up(kafka: str, as_json: bool, **options: Any) -> None:
    """Start a cluster, print its addresses, and stop it at Ctrl-C or SIGTERM."""
    with _stops_at_signals():
        from allocator.testing import LocalCluster

        with LocalCluster(None if kafka == "none" else kafka, **options) as running:
            try:
                click.echo(json.dumps(_described(running)) if as_json else _text(running))
                sys.stdout.flush()
                while True:
                    signal.pause()
            except click.exceptions.Exit:
                click.echo("stopping", err=True)


@cluster.command()
@click.argument("versions", nargs=-1, metavar="VERSION...")
@zookeeper_version_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: name -> path.")
def fetch(versions: tuple[str, ...], zookeeper_version: str, as_json: bool) -> None:
    """Download the jars of ZooKeeper and of each Kafka VERSION (default: all versions) into the cache."""
    with _stops_at_signals():
        from allocator.testing import fetch_jars

        found = {what: str(directory) for what, directory in fetch_jars(versions, zookeeper_version).items()}
        click.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{w}: {d}" for w, d in found.items()))


def _described(running: LocalCluster) -> dict[str, object]:
    return {
        "kafka": running.version or None,
        "bootstrap": running.bootstrap,
        "zookeeper": running.zookeeper,
        "nodes": [
            {"kind": node.kind, "id": node.id, "port": node.port, "pid": node.pid, "directory": str(node.directory)}
            for node in running.nodes
        ],
    }


def _text(running: LocalCluster) -> str:
    lines = []
    if running.version:
        lines.append(f"Kafka {running.version}: {running.bootstrap}")
    if running.zookeeper:
        lines.append(f"ZooKeeper: {running.zookeeper}")
    lines += [f"  {node.kind} {node.id}: pid {node.pid}, logs in {node.directory}" for node in running.nodes]
    return "\n".join([*lines, "Ctrl-C stops them."])


@contextmanager
def _stops_at_signals() -> Iterator[None]:
    """Raises Exit in the block at SIGINT or SIGTERM. A second signal does not interrupt the shutdown."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            # not SIG_IGN: Python prints an error for a signal that arrives at the same moment
            signal.signal(each, lambda *_: None)
        raise click.exceptions.Exit(130)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
