"""Checks the partitions and the offset of an operator command against the logs, before the command is written."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from allocator.commands import KINDS, Command
from allocator.core.client import KafkaClient
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.group_report import Logs, listed, name_of
from allocator.operate.offset_changes import all_logs, missing_of, refuse_missing
from allocator.operate.reset_plan import ResetPlan, parse_target


class Checked(NamedTuple):
    """A command that may be written."""

    note: str = ""
    """A note for the operator."""
    topics: Mapping[str, str] = MappingProxyType({})
    """The ids of its topics (`Command.topics`)."""


async def check_command(clusters: Clusters, command: Command) -> Checked:
    """Calls `check_partitions` if brokers were named.

    Without brokers, raises ConfigError for a seek to an offset, which the owner would clip to its log.
    """
    if not command.partitions:
        return Checked()
    if clusters.brokers is None:
        if command.kind == "seek" and isinstance(target := parse_target(command.arguments["to"]), int):
            raise ConfigError(
                f"offset {target} cannot be checked against the log, because no brokers were named: give --brokers or "
                "--config"
            )
        return Checked()
    try:
        async with clusters.cluster({p.topic for p in command.partitions}) as client:
            return await check_partitions(client, command)
    except AllocatorError as error:
        # an operator may have to pause partitions because the brokers do not respond
        if KINDS[command.kind].names_offsets or isinstance(error, ConfigError):
            raise
        return Checked(f"it is not known whether the partitions exist: {error}")


async def check_partitions(client: KafkaClient, command: Command) -> Checked:
    """Returns a note that names partitions which do not exist; for a seek or a skip, the ids of the topics.

    For a seek or a skip, raises an error if a partition does not exist, and ConfigError for an offset outside the log.
    A skip needs a record that exists: a later record of that offset would be skipped without a word.
    """
    await client.refresh({p.topic for p in command.partitions})
    if not KINDS[command.kind].names_offsets:
        missing = missing_of(client, command.partitions)
        names = listed([name_of(partition) for partition in missing])
        return Checked(f"the command waits for partitions that the cluster does not have: {names}" if missing else "")
    await refuse_missing(client, command.partitions)
    if command.kind == "skip":
        _refuse_outside(await all_logs(client, command.partitions, {}), command.arguments["offset"])
    elif isinstance(target := parse_target(command.arguments["to"]), int):
        ResetPlan.make("", target, await all_logs(client, command.partitions, {}), {})
    ids = {topic: client.topic_id(topic) for topic in {p.topic for p in command.partitions}}
    return Checked(topics={topic: str(topic_id) for topic, topic_id in ids.items() if topic_id is not None})


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
