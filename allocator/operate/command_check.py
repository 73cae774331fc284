"""Checks the partitions and the offset of an operator command against the logs, before the command is written."""

from __future__ import annotations

from allocator.commands import Command
from allocator.core.client import KafkaClient
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.group_report import Logs, listed, name_of
from allocator.operate.offset_changes import all_logs, missing_of, refuse_missing
from allocator.operate.reset_plan import ResetPlan, parse_target

ABOUT_OFFSETS = ("seek", "skip")
"""The kinds of commands about an offset in a log. Other commands wait for a partition that does not exist yet."""


async def check_command(clusters: Clusters, command: Command) -> str:
    """Calls `check_partitions` if brokers were named. Returns a note for the operator.

    Without brokers, raises ConfigError for a seek to an offset, which the owner would clip to its log.
    """
    if not command.partitions:
        return ""
    if clusters.brokers is None:
        if command.kind == "seek" and isinstance(target := parse_target(command.arguments["to"]), int):
            raise ConfigError(
                f"offset {target} cannot be checked against the log, because no brokers were named: give --brokers or "
                "--config"
            )
        return ""
    try:
        async with clusters.cluster({p.topic for p in command.partitions}) as client:
            return await check_partitions(client, command)
    except AllocatorError as error:
        # an operator may have to pause partitions because the brokers do not respond
        if command.kind in ABOUT_OFFSETS or isinstance(error, ConfigError):
            raise
        return f"it is not known whether the partitions exist: {error}"


async def check_partitions(client: KafkaClient, command: Command) -> str:
    """Returns a note that names partitions which do not exist; "" if all do.

    For a seek or a skip, raises an error instead, and ConfigError for an offset outside the log. A skip needs a record
    that exists: a later record of that offset would be skipped without a word.
    """
    await client.refresh({p.topic for p in command.partitions})
    if command.kind not in ABOUT_OFFSETS:
        missing = missing_of(client, command.partitions)
        names = listed([name_of(partition) for partition in missing])
        return f"the command waits for partitions that the cluster does not have: {names}" if missing else ""
    await refuse_missing(client, command.partitions)
    if command.kind == "skip":
        _refuse_outside(await all_logs(client, command.partitions, {}), command.arguments["offset"])
    elif isinstance(target := parse_target(command.arguments["to"]), int):
        ResetPlan.make("", target, await all_logs(client, command.partitions, {}), {})
    return ""


def _refuse_outside(logs: Logs, offset: int) -> None:
    """Raises ConfigError unless each log has a place for a record at this offset."""
    ranges = [
        f"{name_of(partition)} has "
        + (f"{logs.start[partition]} to {end - 1}" if logs.start[partition] < end else "no records")
        for partition, end in sorted(logs.end.items())
        if not logs.start[partition] <= offset < end
    ]
    if ranges:
        raise ConfigError(f"offset {offset} is outside the log: {listed(ranges)}")
