"""`allocator mirror`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Collection
from typing import Any, Optional

import click

from allocator.cli.access import NOWHERE, security_of
from allocator.cli.options import Seconds, config_option, repeated, root_option
from allocator.cli.output import duration
from allocator.cli.progress import Meter, is_shown, progress, quiet_option, say
from allocator.core.aio import TaskGroup
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError
from allocator.migrate import Lag, Mirror, MirrorSettings

METER_S = 0.25  # seconds between two updates of the progress bar
RATE_S = 10.0  # the progress bar shows the rate of this many seconds


class NotCaughtUp(AllocatorError):
    """A signal ended `--once` before all records were mirrored."""

    retriable = True


def _recreated(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return dict(each.rpartition("=")[::2] for each in given)


@click.command()
@click.argument("old")
@click.argument("new")
@config_option("credentials for OLD")
@click.option("--to-config", type=click.Path(dir_okay=False), help="Settings file of `allocator run`, for NEW.")
@repeated("--topic", "topics", text="Topic to mirror")
@click.option("--pattern", help="Regular expression: mirror the topics whose name begins with a match.")
@click.option("--exclude", help="Regular expression: leave out topics whose whole name matches, with --pattern.")
@repeated(
    "--skip-setting", "skip_settings", text="Setting of old topics that new ones do not get, such as segment.bytes"
)
@click.option("--group", default="allocator-mirror", help="Group name; the same in all processes of a mirror.")
@click.option(
    "--membership",
    type=click.Choice(["zookeeper", "kafka"]),
    default="zookeeper",
    help="How the processes share partitions: through ZooKeeper, or as a group of the old cluster (from 0.9 on).",
)
@click.option(
    "--zookeeper",
    envvar="ALLOCATOR_ZOOKEEPER_HOSTS",
    help="ZooKeeper ensemble of the mirror's group, and of the groups that --sync-group-offsets and --back-of name: "
    'host:port,host:port/chroot; "none" if none of them has members in ZooKeeper.',
)
@root_option
@click.option("--create", is_flag=True, help="Create the chroot in --zookeeper if it does not exist.")
@click.option("--old-zookeeper", help="ZooKeeper of OLD. Brokers before 0.11 have the topic settings only there.")
@click.option("--replication", default=3, type=click.IntRange(min=1), help="Replication factor for created topics.")
@click.option(
    "--throttle",
    type=click.FloatRange(min=0, min_open=True),
    help="Send at most this many MB per second (default: no limit).",
)
@click.option(
    "--session-timeout",
    "session_timeout_s",
    default=10.0,
    type=Seconds(1, 3600),
    help="Seconds until other processes take over the partitions of a crashed process.",
)
@click.option("--append", is_flag=True, help="Append to topics of the new cluster that already hold records.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Exit with 0 even if the old cluster deleted records before they were mirrored. Also mirror records that are "
    "older than the retention of the new topic.",
)
@repeated(
    "--recreated",
    metavar="TOPIC=earliest|continue",
    callback=_recreated,
    text="Continue with a topic that was created again or truncated. earliest: append all its records to the mirrored "
    "records; continue: go on at the stored position, or where the log was truncated",
)
@click.option(
    "--back-of",
    metavar="GROUP",
    help="Group of the mirror in the other direction: continue where a cutover has moved its producers, and end it.",
)
@click.option(
    "--sync-group-offsets",
    metavar="REGEX",
    help="Keep the offsets of groups whose whole name matches translated on NEW, while they have no members there.",
)
@repeated(
    "--restart", metavar="TOPIC", text="Mirror all records of this topic again, after the new cluster lost some of them"
)
@click.option("--once", is_flag=True, help="Stop when all records that exist at the start are mirrored.")
@click.option("--status-s", default=10.0, type=Seconds(), help="Seconds between status lines.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics and /health on this port; 0 picks a free one (default: none).",
)
@click.option("--metrics-host", default="127.0.0.1", help="Listen on this address.")
@repeated("--allow-host", "hosts", text="Host name to accept in the Host header of requests")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON lines.")
def mirror(
    config: Optional[str],
    to_config: Optional[str],
    throttle: Optional[float],
    once: bool,
    status_s: float,
    metrics_port: Optional[int],
    metrics_host: str,
    hosts: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Copy topics from the brokers OLD to the brokers NEW as they grow, and keep a map of the offsets.

    Several processes share the partitions. You can kill a process at any time; the next start continues where the
    mirror stopped. A signal ends the process after the requests in flight. The mirror counts and lists records that the
    old cluster deleted before they were mirrored. If a topic was created again or truncated, the mirror stops it
    until you give --recreated for it. If the new cluster lost mirrored records, the mirror stops the topic until you
    give --restart for it.

    Environment variables override --config: ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD. For --to-config they begin with
    ALLOCATOR_TO instead of ALLOCATOR.

    \b
    Exit codes:
      0  ended by a signal; with --once: all records are mirrored, and offsets of --sync-group-offsets written
      1  a cluster cannot be reached at the start or refused a request, or topics differ; or records were deleted
         before they were mirrored (unless --accept-loss), a topic is stopped, the offsets of a group are refused,
         a signal ended --once early, or --once has copied all but the records in and behind open transactions
      2  wrong usage or settings
    """
    settings["root"] = settings["root"] or DEFAULT["root"]
    if settings["zookeeper"] == NOWHERE:
        settings.update(zookeeper=None, nowhere=True)
    settings["old_security"] = security_of(config)
    settings["new_security"] = security_of(to_config, target=True)
    mirroring = Mirror(MirrorSettings(throttle_bytes_s=throttle and throttle * 1e6, **settings))

    async def run(meter: Meter) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, mirroring.stop)
        async with _serving(mirroring, metrics_host, metrics_port, hosts):
            beside = {"meter": _measure(mirroring, meter)}
            if as_json or not (is_shown(quiet) and sys.stdout.isatty()):  # the progress bar shows the same numbers
                beside["status"] = _report(mirroring, status_s, as_json)
            await TaskGroup().run(mirroring.run(until_caught_up=once), **beside)

    with progress(mirroring.settings.group, quiet or (as_json and sys.stdout.isatty())) as meter:
        try:
            asyncio.run(run(meter))
        finally:
            _show(mirroring, 0.0, 0.0, as_json)
    if once and not mirroring.caught_up:
        raise NotCaughtUp("a signal ended the mirror before all records were mirrored; start it again to continue")


@contextlib.asynccontextmanager
async def _serving(mirroring: Mirror, host: str, port: Optional[int], hosts: Collection[str]) -> AsyncIterator[None]:
    """Serves the metrics during the block if `port` is given."""
    if port is None:
        yield
        return
    from allocator.web import serve_mirror

    async with serve_mirror(mirroring, host, port, hosts) as bound:
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{bound}/metrics", err=True)
        yield


async def _measure(mirroring: Mirror, meter: Meter) -> None:
    """Updates the progress bar. The bar starts at the largest lag so far."""
    before: deque[tuple[float, int]] = deque(maxlen=int(RATE_S / METER_S))
    while True:
        await asyncio.sleep(METER_S)
        before.append((time.monotonic(), mirroring.records))
        (then, was), (now, records) = before[0], before[-1]
        progress_of = mirroring.progress()
        left = sum(each.lag or 0 for each in progress_of)
        rate = (records - was) / (now - then) if now > then else None
        if progress_of:
            show_lag(meter, mirroring.settings.group, len(progress_of), left, rate, mirroring.lag(progress_of))


def show_lag(meter: Meter, group: str, partitions: int, left: int, rate: Optional[float], lag: Lag) -> None:
    """Shows `left` records on the progress bar, as far as they are known, and the lag."""
    behind = "" if lag.seconds is None else f", {duration(lag.seconds)} behind"
    what = f"{group} ({partitions} partitions{', lag unknown' if lag.records is None else behind})"
    meter.left(left, what, "records", rate, math.inf if lag.eta_s is None else lag.eta_s)


async def _report(mirroring: Mirror, status_s: float, as_json: bool) -> None:
    records, moved, at = 0, 0, time.monotonic()
    while True:
        await asyncio.sleep(status_s)
        now = time.monotonic()
        _show(mirroring, (mirroring.records - records) / (now - at), (mirroring.bytes - moved) / (now - at), as_json)
        records, moved, at = mirroring.records, mirroring.bytes, now


def _show(mirroring: Mirror, records_s: float, bytes_s: float, as_json: bool) -> None:
    progress = mirroring.progress()
    lag, known = mirroring.lag(progress), sum(each.lag or 0 for each in progress)
    unknown = sum(each.lag is None for each in progress)
    waiting = {f"{each.partition.topic}:{each.partition.partition}": each.waits for each in progress if each.waits}
    if as_json:
        status = {
            "partitions": len(progress),
            "lag": lag.records,
            "lag_s": None if lag.seconds is None else round(lag.seconds, 1),
            "eta_s": None if lag.eta_s is None else round(lag.eta_s, 1),
            "records": mirroring.records,
            "found": mirroring.already_present,
            "repeated": mirroring.duplicated,
            "gone": mirroring.lost_at_source,
            "losses": [
                {**each.partition._asdict(), "first": each.first, "last": each.last} for each in mirroring.losses
            ],
            "stopped": mirroring.stopped,
            "left_out": mirroring.left_out,
            "unsynced": mirroring.unsynced,
            "records_s": round(records_s, 1),
            "bytes_s": round(bytes_s, 1),
            "waiting": waiting,
            "behind": {f"{each.partition.topic}:{each.partition.partition}": each.lag for each in progress if each.lag},
        }
        say(json.dumps(status))
        return
    behind = ", ".join(
        f"{each.partition.topic}:{each.partition.partition} {each.lag:,}"
        for each in sorted(progress, key=lambda each: -(each.lag or 0))[:5]
        if each.lag
    )
    lags = f", lag {'unknown' if unknown == len(progress) else f'{known:,}'}" if progress else " yet"
    lags += f" ({behind})" if behind else ""
    lags += f", unknown for {unknown} partitions" if 0 < unknown < len(progress) else ""
    if known:
        lags += ", the oldest record waits for " + ("an unknown time" if lag.seconds is None else duration(lag.seconds))
        lags += ", remaining time unknown" if lag.eta_s is None else f", {duration(lag.eta_s)} left"
    say(
        f"{len(progress)} partitions{lags}; {mirroring.records:,} records mirrored, {records_s:,.0f}/s, "
        f"{bytes_s / 1e6:.1f} MB/s"
        + (f"; {mirroring.already_present:,} already present after a crash" if mirroring.already_present else "")
        + (f"; {mirroring.duplicated:,} duplicated, or not written by the mirror" if mirroring.duplicated else "")
        + (f"; {mirroring.lost_at_source:,} deleted before they were mirrored" if mirroring.lost_at_source else "")
        + "".join(f"; {partition} waits: {why}" for partition, why in list(waiting.items())[:5])
        + (f"; stopped: {', '.join(sorted(mirroring.stopped))}" if mirroring.stopped else "")
        + (f"; groups not synced: {', '.join(sorted(mirroring.unsynced))}" if mirroring.unsynced else "")
    )
