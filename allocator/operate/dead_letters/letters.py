"""Lists, redrives and discards the letters of one dead-letter topic.

Guarantee of `redrive` and `discard`: each letter is settled once. The record in its original topic and the note about
the letter are one transaction. A killed process leaves both or none, and the next process continues from there. A
process that was frozen and replaced cannot write any more. Consumers of the original topic that read uncommitted
records also see aborted records, so they may see a record twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.core.settings import names_arguments
from allocator.errors import ConfigError, TopicAuthorizationFailed
from allocator.handlers.schemas import Masks
from allocator.operate.dead_letters.letter import NO_MASKS, Letter, LetterFilter, Note, Settled, redriven, summary_of
from allocator.operate.dead_letters.targets import place_in_note, refused_target, settled_topic
from allocator.operate.group_commands import default_operator
from allocator.producer import NewRecord, RefusedByTopic, TransactionalWriter, create_topic
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

EVERY = LetterFilter()
AT_ONCE = 100  # letters in one transaction. Higher: fewer transactions; lower: less work is lost by a kill
BYTES_AT_ONCE = 512 << 10
MAX_REDRIVES = 3
REPLICATION = 3


@dataclass
class Outcome:
    """Summaries of the letters that were settled, or would be without `execute`. `refused`: (summary, reason) of the
    others."""

    done: list[Letter] = field(default_factory=list)
    refused: list[tuple[Letter, str]] = field(default_factory=list)


def _add(outcome: Outcome, letters: Iterable[Letter], refused: str | None = None) -> None:
    for letter in map(summary_of, letters):
        if refused is None:
            outcome.done.append(letter)
        else:
            outcome.refused.append((letter, refused))


@names_arguments
class DeadLetterQueue:
    """The letters of one dead-letter topic. Use `async with`.

        async with DeadLetterQueue("orders.dead", "b1:9092") as letters:
            async for letter in letters.read(LetterFilter(error="Timeout")):
                print(letter.name, letter.error)
            await letters.redrive(LetterFilter(error="Timeout"), execute=True)

    The note about a settled letter names `by`, by default user@host. Letters show what `masks` allow, and filters
    search only that; a redrive writes whole records. `timeout_s`: seconds for the brokers to respond. Reading
    raises a retriable BrokerError if no record arrives for that long.
    """

    def __init__(
        self,
        topic: str,
        brokers: str,
        *,
        security: Mapping[str, Any] | None = None,
        by: str | None = None,
        masks: Masks = NO_MASKS,
        timeout_s: float = 30.0,
    ) -> None:
        self.topic = topic
        self.masks = masks
        self._brokers = brokers
        self._security = security
        self._timeout_s = timeout_s
        self._by = by or default_operator()
        self._stack = contextlib.AsyncExitStack()
        self._client: KafkaClient

    @property
    def settled_topic(self) -> str:
        """The topic of the notes about settled letters. The first settled letter creates it."""
        return settled_topic(self.topic)

    async def __aenter__(self) -> DeadLetterQueue:
        async with contextlib.AsyncExitStack() as stack:
            self._client = KafkaClient(self._brokers, client_id="allocator-deadletters", security=self._security)
            stack.push_async_callback(self._client.close)
            await self._client.connect(self._timeout_s)
            await self._client.refresh([self.topic])
            if self._client.partitions(self.topic) is None:
                raise await self._client.absence([self.topic])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- reading -------------------------------------------------------------------------------------------------

    async def first(
        self, most: int, chosen: LetterFilter = EVERY, *, settled: bool = False
    ) -> tuple[list[Letter], int]:
        """Returns summaries of the first `most` letters of `read`, and the number of all letters."""
        found, count = [], 0
        async for letter in self.read(chosen, settled=settled):
            count += 1
            if count <= most:
                found.append(summary_of(letter))
        return found, count

    async def read(self, chosen: LetterFilter = EVERY, *, settled: bool = False) -> AsyncIterator[Letter]:
        """Yields the letters that are not settled, partition by partition. With `settled`, yields all letters."""
        notes = await self._notes()
        topic_id = self._topic_id()
        async for record in self._records(self.topic, chosen.since_ms):
            note = notes.get((record.partition, record.offset))
            about = note is not None and note.concerns(record.timestamp, topic_id)
            letter = Letter.of(record, note.settled if note is not None and about else None, self.masks)
            if chosen.matches(letter) and (settled or letter.settled is None):
                yield letter

    async def get(self, partition: int, offset: int) -> Letter | None:
        """Returns one letter, settled or not; None if it does not exist."""
        chosen = LetterFilter(places=frozenset({(partition, offset)}))
        async for letter in self.read(chosen, settled=True):
            return letter
        return None

    def _topic_id(self) -> str | None:
        """Returns the id of the dead-letter topic; None for brokers before 2.8."""
        found = self._client.topic_id(self.topic)
        return None if found is None else str(found)

    async def _notes(self) -> dict[tuple[int, int], Note]:
        """Returns the notes by partition and offset of their letters."""
        notes = {}
        await self._client.refresh([self.topic, self.settled_topic])
        if self._client.hides(self.settled_topic):
            denied = TopicAuthorizationFailed(self.settled_topic)
            log.warning("%s: settled letters, if there are any, count as open: %s", self.topic, denied)
        if self._client.partitions(self.settled_topic) is not None:
            async for record in self._records(self.settled_topic, None):
                note = Note.decode(record.value)
                place = place_in_note(record.key)
                if note is not None and place is not None:
                    notes[place] = note
        return notes

    async def _records(self, topic: str, since_ms: int | None) -> AsyncIterator[Record]:
        """Yields every record of a topic, or every record since a time, up to the current end of the log."""
        partitions = [TopicPartition(topic, number) for number in self._client.partitions(topic) or ()]
        reader = RangeReader(self._client, isolation_level="read_committed", patience_s=self._timeout_s)
        async for batch in reader.read(await reader.bounds(partitions, since_ms)):
            for record in batch:
                yield record

    # -- settling ------------------------------------------------------------------------------------------------

    async def redrive(
        self,
        chosen: LetterFilter = EVERY,
        *,
        execute: bool = False,
        rate: float | None = None,
        max_redrives: int = MAX_REDRIVES,
    ) -> Outcome:
        """Writes the original records of these letters back to their topics and partitions.

        The records get the current time, because the retention of the topic could delete an old record at once. The
        header `allocator.first_timestamp` has the original time. Without `execute`, writes nothing. `rate` limits the
        letters per second.

        Refuses a letter that was redriven `max_redrives` times before, whose headers lack the original place, whose
        topic no handler reads, such as one of operator commands (`targets.py`), or whose partition does not exist. With
        `execute`, also refuses a letter that the topic or the brokers do not accept: it is larger than the topic's
        `max.message.bytes`, it lacks the key that a compacted topic demands, or this user may not write the topic.
        Raises ConfigError for brokers without transactions.
        """

        def back(letter: Letter) -> tuple[TopicPartition, NewRecord]:
            assert letter.original is not None
            return letter.original, redriven(letter, wall_ms())

        async def refusal(letter: Letter) -> str | None:
            if letter.redrives >= max_redrives:
                return f"it was redriven {letter.redrives} times before; find out why it fails again (--max-redrives)"
            if letter.original is None:
                return "its headers lack the original topic and partition"
            why = refused_target(letter)
            if why is not None:
                return why
            topic, number = letter.original
            if self._client.metadata.topics.get(topic) is None:
                await self._client.refresh([topic])
            if number not in (self._client.partitions(topic) or ()):
                return f"partition {topic}:{number} does not exist any more"
            return None

        return await self._settle(chosen, Settled("redriven", 0, self._by), back, refusal, execute, rate)

    async def discard(self, chosen: LetterFilter, *, execute: bool = False, reason: str = "") -> Outcome:
        """Marks letters as settled. They stay in the topic until its retention deletes them."""
        return await self._settle(chosen, Settled("discarded", 0, self._by, reason), None, None, execute, None)

    async def _settle(
        self, chosen: LetterFilter, note: Settled, original: Any, refusal: Any, execute: bool, rate: float | None
    ) -> Outcome:
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate must be more than 0 letters per second, not {rate!r}")
        writer = TransactionalWriter(self._client, f"allocator-deadletters-{self.topic}")
        outcome = Outcome()
        if execute:
            await self._client.refresh([self.settled_topic])
            self._client.refuse_hidden([self.settled_topic], "write")  # settled letters would be redriven again
            # before the read of the notes, because it fences other processes that write notes
            await writer.open()
        pace = _Pace(rate)
        chunk: list[Letter] = []
        size = 0
        async for letter in self.read(chosen):
            why = refusal and await refusal(letter)
            if why is not None:
                _add(outcome, [letter], why)
                continue
            if not execute:
                _add(outcome, [letter])
                continue
            chunk.append(letter)
            record = letter.record
            size += NewRecord(record.key, record.value, record.timestamp, record.headers).size
            if len(chunk) >= pace.at_once or size >= BYTES_AT_ONCE:
                await self._write_fitting(writer, chunk, note, original, outcome)
                await pace.after(len(chunk))
                chunk, size = [], 0
        if chunk:
            await self._write_fitting(writer, chunk, note, original, outcome)
        return outcome

    async def _write_fitting(
        self, writer: TransactionalWriter, letters: list[Letter], note: Settled, original: Any, outcome: Outcome
    ) -> None:
        """Writes these letters. Adds written letters to `outcome.done`, and to `outcome.refused` those that their topic
        does not accept or that this user may not write there."""
        try:
            await self._write(writer, letters, note, original)
            _add(outcome, letters)
        except TopicAuthorizationFailed as error:
            others = [each for each in letters if each.original is None or each.original.topic != error.topic]
            if original is None or len(others) == len(letters) or not writer.is_open:
                raise
            _add(outcome, [each for each in letters if each not in others], str(error))
            if others:
                await self._write_fitting(writer, others, note, original, outcome)
        except RefusedByTopic as error:
            if not writer.is_open:
                raise
            if len(letters) == 1:
                _add(outcome, letters, str(error))
                return
            half = len(letters) // 2
            await self._write_fitting(writer, letters[:half], note, original, outcome)
            await self._write_fitting(writer, letters[half:], note, original, outcome)

    async def _write(self, writer: TransactionalWriter, letters: list[Letter], note: Settled, original: Any) -> None:
        await self._prepare()
        note = note._replace(at_ms=wall_ms())
        records: dict[TopicPartition, list[NewRecord]] = defaultdict(list)
        for letter in letters:
            if original is not None:
                partition, record = original(letter)
                records[partition].append(record)
            about = Note(note, self._topic_id(), letter.record.timestamp)
            settled = NewRecord(letter.name.encode(), about.encode(), note.at_ms)
            records[TopicPartition(self.settled_topic, 0)].append(settled)
        await writer.write(records)
        log.info("%s: %d letters %s", self.topic, len(letters), note.action)

    async def _prepare(self) -> None:
        """Creates the missing topic of the notes. It is compacted, so that no note expires before its letter."""
        if self._client.partitions(self.settled_topic) is None:
            await self._client.refresh([self.settled_topic])
        if self._client.partitions(self.settled_topic) is None:
            await create_topic(self._client, self.settled_topic, 1, REPLICATION, {"cleanup.policy": "compact"})


class _Pace:
    """Limits writes to `rate` letters per second."""

    def __init__(self, rate: float | None) -> None:
        self.at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, int(rate)))
        self._rate = rate
        self._due = 0.0

    async def after(self, letters: int) -> None:
        if self._rate is not None:
            now = asyncio.get_running_loop().time()
            self._due = max(self._due, now) + letters / self._rate
            await asyncio.sleep(self._due - now)
