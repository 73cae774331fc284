"""Carries out the operator commands for partitions: pause, skip, quarantine and seek."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from allocator.commands.command import (
    KEPT,
    KINDS,
    NOT_KEPT,
    OWNERS_KINDS,
    Command,
    CommandKeeper,
    CommandResult,
    Commands,
    last_reports,
)
from allocator.core.aio import wall_ms
from allocator.core.consumer import CommandedConsumer, RecordCommands
from allocator.core.subscription import Tenure
from allocator.errors import AllocatorError, NoOffsetsError
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 0.2
REMEDIES = {
    "skip": "this member reads its records itself, or in batches; use seek",
    "quarantine": "this member has no dead-letter topic for its records; use pause",
}
"""The kinds of commands that only some members can follow -> the reason of the others, with the remedy."""
OTHER_TOPIC = "not for this topic, which was created after the command was given, or in another cluster"


class OperatorCommands:
    """Applies the commands in effect to the partitions of one member, whenever commands or partitions change.

    A command stays in its znode or topic, so each new owner applies it again. A seek is carried out once: the current
    owner seeks and writes the result. A command that this member cannot carry out gets a result with the reason.
    """

    def __init__(self, consumer: CommandedConsumer) -> None:
        self._consumer = consumer
        self._commands = Commands()
        self._store: CommandKeeper | None = None
        self._begun: set[tuple[str, TopicPartition]] = set()
        """The seeks of known commands that are under way, or whose result is written and perhaps not read yet."""
        self._former: dict[tuple[str, TopicPartition], int] = {}
        """The first record that was not done when this member first carried out the seek, for its result."""
        self._newest_seek: dict[TopicPartition, str] = {}
        """Partition -> id of the last seek of it that has not expired, also if that is done."""
        self._seeking: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The lock to hold while a seek sets the position, the sink and the committed offset of a partition."""
        self._results: defaultdict[str, _Results] = defaultdict(_Results)
        """Command id -> its results that are not written yet."""
        self._under_way: dict[tuple[str, TopicPartition], Tenure | None] = {}
        """Seek that is under way -> the tenure whose position it has set; None: none yet."""
        self._named: set[tuple[str, str]] = set()
        """Command id and topic of each topic id that this member adds to a command."""
        self._paused: set[TopicPartition] = set()
        self._in_effect: dict[str, str] = {}
        """Command id -> text of each command that currently affects partitions of this member."""

    def take(self, commands: Commands, store: CommandKeeper) -> None:
        """Replaces the commands.

        Called by the membership, or by the reader of the command topic, when a command is added, changed or expired.
        """
        self._commands, self._store = commands, store
        known = {command.id for command in commands.entries}
        self._begun = {each for each in self._begun if each[0] in known}
        self._former = {each: offset for each, offset in self._former.items() if each[0] in known}
        self._named = {each for each in self._named if each[0] in known}
        self.apply()

    def apply(self) -> None:
        """Applies the commands. Called when commands, partitions or the processor change."""
        if self._store is None:
            return
        now_ms = wall_ms()
        in_force = self._commands.in_force(now_ms, OWNERS_KINDS)
        seeks = [each for each in self._commands.entries if each.kind == "seek" and not each.expired(now_ms)]
        self._newest_seek = {partition: each.id for each in seeks for partition in each.partitions}
        processor = self._consumer.processor
        refused = frozenset(REMEDIES) if processor is None else processor.refuses
        is_known = processor is not None or self._consumer.state.reader.reads  # else `process` may follow
        paused: set[TopicPartition] = set()
        quarantined: dict[TopicPartition, str] = {}
        skipped: defaultdict[TopicPartition, dict[int, str | None]] = defaultdict(dict)
        in_effect: dict[str, str] = {}
        for command in in_force:
            owned = command.partitions & self._consumer.state.owned
            ours = frozenset(partition for partition in owned if self._is_for(command, partition))
            if KINDS[command.kind].names_offsets:
                self._name_topics(command, ours)
            words = f"{command}, by {command.who}" + (f": {command.why}" if command.why else "")
            if ours and command.kind != "seek" and command.kind not in refused:
                in_effect[command.id] = words
            if command.kind == "pause":
                paused |= command.partitions
            elif command.kind == "seek":
                self._seek_all(command, owned & command.left)
            elif command.kind in refused:
                if is_known:
                    self._tell(command, ours, NOT_KEPT + REMEDIES[command.kind])
            elif command.kind == "quarantine":
                self._tell(command, ours, KEPT)
                quarantined.update(dict.fromkeys(command.partitions, words))
            else:
                self._tell(command, owned - ours, NOT_KEPT + OTHER_TOPIC)
                self._tell(command, ours, KEPT)
                for partition in command.partitions:
                    skipped[partition][command.arguments["offset"]] = command.topics.get(partition.topic)
        for words in [each for id, each in in_effect.items() if id not in self._in_effect]:
            log.warning("%s: an operator command takes effect: %s", self._consumer.group, words)
        for words in [each for id, each in self._in_effect.items() if id not in in_effect]:
            log.warning("%s: an operator command is no longer in effect here: %s", self._consumer.group, words)
        self._in_effect = in_effect
        self._paused = paused
        self._hold_back()
        if processor is not None:
            processor.command(RecordCommands(quarantined, skipped))

    def _hold_back(self) -> None:
        """Holds back the records of paused partitions, and of those whose position a seek has still to set: the handler
        must not get the records that the seek skips, and a sink refuses those before its offset."""
        state = self._consumer.state
        waiting = {p for (_, p), sought in self._under_way.items() if sought is not state.assignment.get(p, sought)}
        state.hold_back(frozenset(self._paused | waiting))
        self._consumer.fetcher.wake()

    def _topic_ids(self, partition: TopicPartition) -> tuple[Any, Any]:
        """Returns the id of the topic that is read, and of the topic that the brokers have; None where unknown."""
        consumer = self._consumer
        return consumer.state.topic_id(partition), consumer.client.topic_id(partition.topic)

    def _is_for(self, command: Command, partition: TopicPartition) -> bool:
        """Returns whether the partition is that of the topic for which the command was given, as far as is known."""
        return not KINDS[command.kind].names_offsets or command.is_for(partition.topic, *self._topic_ids(partition))

    def _name_topics(self, command: Command, ours: Partitions) -> None:
        """Adds the ids of topics to a command that was given without them."""
        ids = {p.topic: read or there for p in ours for read, there in [self._topic_ids(p)] if read or there}
        missing = {
            topic: str(each)
            for topic, each in ids.items()
            if topic not in command.topics and (command.id, topic) not in self._named
        }
        if missing:
            self._named.update((command.id, topic) for topic in missing)
            self._consumer.start_task(self._add_topics(command.id, missing), "command")

    async def _add_topics(self, command_id: str, topics: Mapping[str, str]) -> None:
        assert self._store is not None
        try:
            await self._store.add_topics(command_id, topics)
        except AllocatorError as error:
            self._named.difference_update((command_id, topic) for topic in topics)  # the next `apply` tries again
            log.warning("%s: the topics of command %s are not written: %s", self._consumer.group, command_id, error)

    def _tell(self, command: Command, ours: Partitions, what: str) -> None:
        """Reports whether this member follows the command, unless that is the last report about a partition. Without a
        report, an owner follows it."""
        reported = last_reports(command)
        for result in self._results[command.id].unwritten if command.id in self._results else ():
            reported.update(dict.fromkeys(result.partitions, result.what))
        partitions = frozenset(each for each in ours if reported.get(each, KEPT) != what)
        if not partitions:
            return
        if what != KEPT:
            why, name = what.removeprefix(NOT_KEPT), str(command)
            log.error("%s: command %s (%s) cannot be carried out: %s", self._consumer.group, name, command.id, why)
        self._consumer.start_task(self._write_report(command, self._add_report(command, partitions, what)), "command")

    def _seek_all(self, command: Command, partitions: Partitions) -> None:
        for partition in partitions:
            if (command.id, partition) not in self._begun:
                self._begun.add((command.id, partition))
                self._under_way[command.id, partition] = None
                self._consumer.start_task(self._seek(command, partition), "command")

    async def _seek(self, command: Command, partition: TopicPartition) -> None:
        """Seeks, commits, and then writes the result, in that order: after a crash, the next owner seeks again unless
        there is a result."""
        consumer = self._consumer
        sought: tuple[Tenure | None, int, str] | None = None
        is_over = False
        try:
            while consumer.state.is_assigned(partition):
                # With a sink, the position is set only after the sink has registered this owner. Without a committed
                # offset and a reset strategy, no position is set, and the reader gets an error instead
                if consumer.state.position(partition) is None and not isinstance(
                    consumer.fetcher.fault(partition), NoOffsetsError
                ):
                    await consumer.fetcher.news(RETRY_S)
                    continue
                try:
                    async with self._seeking[partition]:
                        tenure, newest = consumer.state.assignment.get(partition), self._is_newest(command, partition)
                        is_ours = self._is_for(command, partition)
                        # a new tenure starts at a position of its own, so seek again
                        if newest and is_ours and (sought is None or sought[0] is not tenure):
                            if not self._is_left(command, partition):  # another owner has sought meanwhile
                                is_over = True
                                return
                            found = await self._seek_once(command, partition)
                            sought = None if found is None else (tenure, *found)
                            self._under_way[command.id, partition] = None if found is None else tenure
                            self._hold_back()
                        if newest and is_ours and sought is not None:
                            await consumer.commit_sought(partition)
                    if not (newest and is_ours) or sought is not None:
                        why = OTHER_TOPIC if newest else "a later seek replaces it, or it was withdrawn or has expired"
                        what = f"not carried out: {why}" if sought is None else sought[2]
                        if newest and not is_ours:
                            words = f"{command}, by {command.who}"
                            log.warning("%s: %s:%d: %s: %s", consumer.group, *partition, words, what)
                        self._end(command, partition)
                        is_over = await self._report(command, frozenset({partition}), what)
                        return
                except AllocatorError as error:
                    log.warning("%s: %s:%d: retrying the operator's seek: %s", consumer.group, *partition, error)
                await asyncio.sleep(RETRY_S)
        finally:
            self._end(command, partition)
            if not is_over:
                self._begun.discard((command.id, partition))

    def _end(self, command: Command, partition: TopicPartition) -> None:
        """Delivers the records of the partition again, unless something else holds them back."""
        self._under_way.pop((command.id, partition), None)
        self._hold_back()

    async def _seek_once(self, command: Command, partition: TopicPartition) -> tuple[int, str] | None:
        """Seeks. Returns the offset and the text of the result; None if the partition drains or has left, or if the
        command was replaced."""
        consumer = self._consumer
        offset, clipped = await self._offset(partition, command.arguments["to"])
        tenure = consumer.state.assignment.get(partition)
        topic_id = command.topics.get(partition.topic) or consumer.state.topic_id(partition)
        if not self._is_newest(command, partition) or tenure is None:
            return None
        # the position is beyond the records that wait for the handler, which the seek drops; a repetition keeps the
        # offset of the first attempt, whose commit may have succeeded
        before = tenure.done()[0] if tenure.can_commit else None
        if not consumer.sought(partition, offset, topic_id):
            return None
        if before is not None:
            before = self._former.setdefault((command.id, partition), before)
        # the user may have sought while the sink waited for the records in hand
        if consumer.sink is not None and not (
            await consumer.sink.rewind(partition, offset) and consumer.sought(partition, offset, topic_id)
        ):
            return None
        what = f"sought to {offset}{clipped}" + ("" if before is None else f" from {before}")
        log.warning("%s: %s:%d: %s by the command of %s", consumer.group, *partition, what, command.who)
        return offset, what

    def _is_left(self, command: Command, partition: TopicPartition) -> bool:
        """Returns whether no owner of the partition has written a result of this command."""
        return any(each.id == command.id and partition in each.left for each in self._commands.entries)

    def _is_newest(self, command: Command, partition: TopicPartition) -> bool:
        """Returns whether this seek still counts for the partition."""
        return self._newest_seek.get(partition) == command.id

    async def _offset(self, partition: TopicPartition, to: str) -> tuple[int, str]:
        """Returns the offset to seek, and a text if the log does not have the offset of the command."""
        if to.isdigit():
            first = await self._consumer.log_offset(partition, "earliest")
            end = await self._consumer.log_offset(partition, "latest")
            offset = min(max(int(to), first), end)
            where = "first" if offset == first else "end"
            return offset, "" if offset == int(to) else f" (the {where} of the log, which does not have {to})"
        return await self._consumer.log_offset(partition, int(to.partition(":")[2]) if ":" in to else to), ""

    async def _report(self, command: Command, partitions: Partitions, what: str) -> bool:
        """Writes the result of a command. Returns False if the partitions have left this member before."""
        return await self._write_report(command, self._add_report(command, partitions, what))

    def _add_report(self, command: Command, partitions: Partitions, what: str) -> CommandResult:
        result = CommandResult(wall_ms(), self._consumer.membership.member_id, partitions, what)
        self._results[command.id].unwritten[result] = None
        return result

    async def _write_report(self, command: Command, result: CommandResult) -> bool:
        results = self._results[command.id]
        try:
            while result in results.unwritten and self._consumer.state.owned & result.partitions != NO_PARTITIONS:
                try:
                    await self._write(command.id, results)
                except AllocatorError as error:
                    log.warning(
                        "%s: the result of command %s is not written yet: %s", self._consumer.group, command.id, error
                    )
                    await asyncio.sleep(RETRY_S)
            return result not in results.unwritten
        finally:
            results.unwritten.pop(result, None)
            if not results.unwritten:
                self._results.pop(command.id, None)

    async def _write(self, command_id: str, results: _Results) -> None:
        """Writes the results of one command. Results that are added meanwhile share the next write."""
        assert self._store is not None
        async with results.turn:
            written = list(results.unwritten)
            if written:
                await self._store.add_results(command_id, written)
                for result in written:
                    results.unwritten.pop(result, None)


class _Results:
    """The results of one command that are not written yet."""

    def __init__(self) -> None:
        self.unwritten: dict[CommandResult, None] = {}  # in the order in which they were added
        self.turn = asyncio.Lock()
