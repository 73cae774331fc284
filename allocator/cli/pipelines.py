"""`allocator archive`, `allocator skew` and `allocator audit`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import click

from allocator.cli.options import Callback, brokers_option, decorated, mask_option, repeated, timeout_option
from allocator.cli.output import print_json
from allocator.cli.progress import Step, progress
from allocator.documents import write_file
from allocator.errors import ConfigError
from allocator.handlers.schemas import Masks
from allocator.spark import Topic, plain_errors
from allocator.spark.archive import FORMATS, Archive, ArchiveReport, compact, transform_of
from allocator.spark.archive import archive as archive_topic
from allocator.spark.audit import BY, FIELDS
from allocator.spark.audit import audit as audit_sides
from allocator.spark.skew import skew as measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIFFERENT = 3
# local-cluster[workers, cores, MiB of each worker]
MASTERS = r"local|local\[[^]]+\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|spark://.+|yarn|k8s://.+"


def _check_master(context: click.Context, option: click.Parameter, master: Optional[str]) -> Optional[str]:
    if master is not None and master.startswith("sc://"):
        raise ConfigError(
            f"--master {master}: the command needs a Spark driver on this machine, which Spark Connect does not have; "
            "give the master behind that server, such as spark://host:7077"
        )
    if master is not None and not re.fullmatch(MASTERS, master):
        raise ConfigError(
            f"--master {master}: write local, local[4], local-cluster[2,1,1024], spark://host:7077, yarn or k8s://host"
        )
    return master


def _run_options(command: Callback) -> Callback:
    return decorated(
        command,
        click.option(
            "--master",
            callback=_check_master,
            help="Spark master: local[4], spark://host:7077 (default: from spark-submit, or this machine).",
        ),
        timeout_option,
        click.option("--dry-run", is_flag=True, help="Only show which offsets would be read. Do not start Spark."),
        click.option(
            "-q", "--quiet", is_flag=True, help="Show no progress bar, and no messages from Spark and pandas."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    )


def _topic_options(command: Callback) -> Callback:
    return decorated(
        command,
        brokers_option,
        repeated("--topic", "topics", text="Topic to read"),
        repeated(
            "-o",
            "--option",
            "options",
            metavar="NAME=VALUE",
            text='Option of format("allocator"): group=billing, timeout_s=10, security.*',
        ),
    )


def _side_option(side: str) -> Callback:
    return repeated(
        f"--{side}-option",
        f"{side}_options",
        metavar="NAME=VALUE",
        text=f"Option for {side.upper()}, like -o of `archive`",
    )


@click.command()
@click.argument("directory")
@_topic_options
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    default="parquet",
    help="Format of the archive. A Delta table may also be at a URL: s3://bucket/archive. For an Iceberg table, give "
    "CATALOG.NAMESPACE in place of DIRECTORY.",
)
@click.option("--key", help="Decode keys: string, json:DDL, avro:FILE or confluent-avro:FILE.")
@click.option("--value", help="Decode values; formats as for --key. The archive keeps the bytes too.")
@click.option("--transform", help="Function that changes the DataFrame before it is written: package.module:function.")
@click.option(
    "--offsets-per-commit",
    default=10_000_000,
    type=click.IntRange(min=1),
    help="Offsets per commit. Higher: fewer, larger files; lower: less to repeat after a crash.",
)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help="Continue although retention deleted records before they were archived, and record the gap.",
)
@click.option("--compact", "compacting", is_flag=True, help="Merge small files; without --topic, only merge.")
@_run_options
@plain_errors()
def archive(
    directory: str,
    brokers: Optional[str],
    topics: tuple[str, ...],
    options: tuple[str, ...],
    key: Optional[str],
    value: Optional[str],
    transform: Optional[str],
    compacting: bool,
    master: Optional[str],
    quiet: bool,
    timeout: float,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Append new records of topics to the archive in DIRECTORY, each record exactly once.

    You can kill the command at any time and run it again. `spark.read.parquet(DIRECTORY)` reads a Parquet archive.
    DIRECTORY/NAME is the Delta table of a topic, and CATALOG.NAMESPACE.NAME its Iceberg table.

    \b
    Exit codes:
      0  done
      1  a cluster refused a request, offsets were deleted, or the directory has another archive
      2  wrong usage or settings
    """
    if not topics and not compacting:
        raise ConfigError("no topic was given: give --topic, or --compact to merge the files of the archive")
    if compacting and chosen["format"] != "parquet":
        raise ConfigError(
            "--compact merges files of Parquet archives; for a Delta table use OPTIMIZE, for an Iceberg table the "
            "procedure rewrite_data_files"
        )
    sources = [_topic(brokers, name, options) for name in topics]
    chosen["transform"] = transform_of(key, value, transform)
    dry_run = chosen["dry_run"]
    _reach(sources, timeout)
    spark = None if dry_run else _session("allocator archive", master, quiet)
    reports: list[ArchiveReport] = []
    for topic in sources:
        with _bar(spark, f"archiving {topic.name}", quiet, "offsets") as report:
            reports.append(archive_topic(topic, directory, progress=report, spark=spark, **chosen))
    if compacting:
        there = sorted(path.name[len("topic=") :] for path in Path(directory).glob("topic=*"))
        for name in topics or there:
            if name in there:
                with _bar(spark, f"compacting {name}", quiet, "files") as report:
                    reports.append(compact(directory, name, dry_run=dry_run, progress=report, spark=spark))
    if as_json:
        print_json({"archives": [report.to_json() for report in reports]})
    else:
        click.echo("\n".join(report.to_text() for report in reports))


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False)
@_topic_options
@click.option(
    "--members", type=click.IntRange(min=1), help="Also report how evenly this many members would share the load."
)
@_run_options
@plain_errors()
def skew(
    topic: Optional[str],
    brokers: Optional[str],
    topics: tuple[str, ...],
    options: tuple[str, ...],
    members: Optional[int],
    **run: Any,
) -> None:
    """Show how evenly records are distributed over partitions and keys, with late records and loads for assignors.

    docs/pipelines.md shows how an assignor uses the loads in the JSON.
    """
    named = [*([] if topic is None else [topic]), *topics]
    if len(named) != 1:
        raise ConfigError(f"give exactly one topic, such as `allocator skew orders`, not {len(named)}")
    source = _topic(brokers, named[0], options)
    work = partial(measure, source, members=members)
    _report("allocator skew", [source], f"measuring {source.name}", work, **run)


@click.command()
@click.argument("left")
@click.argument("right")
@click.option(
    "--by",
    type=click.Choice(BY),
    help="Match records by this (default: offset with an archive, otherwise partition or key).",
)
@repeated("--ignore", type=click.Choice(FIELDS), text="Ignore differences in this field")
@click.option(
    "--samples", default=10, type=click.IntRange(min=0), help="Maximum number of examples of each kind of difference."
)
@click.option(
    "--state", help="File that stores how far the two sides are equal. The next audit with this file starts there."
)
@_side_option("left")
@_side_option("right")
@mask_option
@click.option("--html", help="Also write the report to this HTML file.")
@_run_options
@plain_errors()
def audit(
    left: str,
    right: str,
    by: Optional[str],
    ignore: tuple[str, ...],
    samples: int,
    state: Optional[str],
    left_options: tuple[str, ...],
    right_options: tuple[str, ...],
    masks: tuple[str, ...],
    **run: Any,
) -> None:
    """Compare RIGHT with LEFT, the reference: missing, duplicated, extra, moved, altered and reordered records.

    Write each side as kafka://host:port,host:port/topic or archive:DIRECTORY. If the archive has several topics, write
    archive:DIRECTORY/topic=orders.

    \b
    Exit codes:
      0  equal
      1  a cluster refused a request, or an archive is damaged
      2  wrong usage or settings
      3  different
    """
    sides = [_side(left, left_options), _side(right, right_options)]
    _check_writable("--state", state)
    if state is not None and run["html"] is not None and Path(state).resolve() == Path(run["html"]).resolve():
        raise ConfigError(f"--state and --html both name {state}; name two files")
    if state is not None and run["dry_run"]:
        raise ConfigError("--dry-run shows the ranges of an audit without --state; give one of the two options")
    hidden = Masks(masks)

    def work(spark: Any) -> Any:
        report = audit_sides(*sides, by=by, ignore=ignore, samples=samples, state=state, spark=spark)
        return report.masked(hidden)

    report = _report("allocator audit", sides, "comparing", work, **run)
    if report is not None and not report.equal:
        sys.exit(DIFFERENT)


# -- arguments ---------------------------------------------------------------------------------------------------


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"option {text!r}: write NAME=VALUE")
        found[name] = value
    return found


def _topic(brokers: str | None, name: str, options: tuple[str, ...]) -> Topic:
    if not brokers:
        raise ConfigError("no brokers were given: give --brokers, or set ALLOCATOR_KAFKA_BROKERS")
    return Topic(brokers, name, _pairs(options))


def _side(text: str, options: tuple[str, ...]) -> Union[Topic, Archive]:
    kind, _, rest = text.partition(":")
    if kind == "kafka" and rest.startswith("//") and "/" in rest[2:]:
        brokers, _, name = rest[2:].rpartition("/")
        return Topic(brokers, name, _pairs(options))
    if kind == "archive" and rest:
        if options:
            raise ConfigError(f"{text} takes no options: only topics have options")
        path = Path(rest)
        if path.name.startswith("topic="):
            return Archive(path.parent, path.name[len("topic=") :])
        return Archive(path)
    raise ConfigError(f"{text!r} is not valid; write kafka://host:port,host:port/topic or archive:DIRECTORY")


# -- output ------------------------------------------------------------------------------------------------------


def _report(
    name: str,
    sides: list[Any],
    what: str,
    work: Callable[..., Any],
    master: Optional[str],
    dry_run: bool,
    quiet: bool,
    timeout: float,
    as_json: bool,
    html: Optional[str] = None,
) -> Any:
    """Runs `work` with Spark, and prints and returns its report. With `dry_run`, only prints the ranges to read."""
    _check_writable("--html", html)
    _reach(sides, timeout)
    if dry_run:
        return _print_ranges(sides, as_json)
    spark = _session(name, master, quiet)
    with _bar(spark, what, quiet):
        report = work(spark=spark)
    if html:
        write_file(html, report.to_html())
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
    return report


def _reach(sides: Iterable[Any], timeout_s: float) -> None:
    """Connects to the cluster of each topic once. Later requests wait longer, for brokers that restart meanwhile."""
    for side in sides:
        if isinstance(side, Topic):
            replace(side, options={"timeout_s": str(timeout_s), **side.options}).topic_id()


def _print_ranges(sides: list[Any], as_json: bool) -> None:
    found: list[dict[str, Any]] = []
    for side in sides:
        reach = side.reach() if isinstance(side, Archive) else side.extent().chosen
        offsets = sum(high - low for low, high in reach.values())
        ranges = {str(p): {"from": low, "to": high} for p, (low, high) in sorted(reach.items())}
        found.append({"side": str(side), "offsets": offsets, "partitions": ranges})
    if as_json:
        print_json({"dry_run": True, "would_read": found})
        return
    for one in found:
        click.echo(f"{one['side']}: {one['offsets']} offsets of {len(one['partitions'])} partitions would be read")


def _check_writable(option: str, path: str | None) -> None:
    """Raises ConfigError if the file cannot be written. A check before the work may save an hour of it."""
    if path is None:
        return
    place = Path(path).absolute()
    if (place.exists() and not place.is_file()) or not (place.parent.is_dir() and os.access(place.parent, os.W_OK)):
        raise ConfigError(f"{option} {path}: cannot be written; name a file in a writable directory")


def _session(name: str, master: str | None, quiet: bool) -> SparkSession:
    from allocator.spark import session

    on_interrupt = signal.getsignal(signal.SIGINT)
    with _silent_java() if quiet else contextlib.nullcontext():
        spark = session(name, master, {"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"})
    if quiet:
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.logger import PySparkLogger

    # the command prints Spark's errors; without this, pyspark would also log some of them with Java's stack
    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
    # on Ctrl-C, pyspark's handler would call Java from within another call, and py4j log tracebacks, also as root
    signal.signal(signal.SIGINT, on_interrupt)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().disabled = True
    return spark


@contextlib.contextmanager
def _silent_java() -> Iterator[None]:
    """Discards the standard error of a Java process that starts in this block. Python raises the errors of Java."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _bar(
    spark: Optional[SparkSession], what: str, quiet: bool, unit: str = "tasks"
) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar in `unit`, and the tasks of the running Spark stages. Yields the function that moves it."""
    done, total = 0, 0

    def report(now: int, of: int) -> None:
        nonlocal done, total
        done, total = now, of

    def source() -> Step:
        finished, tasks = (0, 0) if spark is None else _tasks(spark)
        if unit == "tasks":
            return Step(what, finished, tasks or None, unit)
        return Step(f"{what} ({finished} of {tasks} tasks)" if tasks else what, done, total or None, unit)

    with progress(what, quiet, source):
        yield report


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Returns (completed tasks, all tasks) of the running stages."""
    tracker = spark.sparkContext.statusTracker()
    known = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    return sum(info.numCompletedTasks for info in known), sum(info.numTasks for info in known)
