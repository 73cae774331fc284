"""The letters of one dead-letter topic: lists, redrives and discards them.

Guarantee of `redrive` and `discard`: a letter is settled once. The record in its first topic and the note that the
letter is settled are one transaction. A killed process leaves either both or none, and the next one continues where it
stopped. A process that was frozen meanwhile cannot write any more. Consumers of the first topic that read uncommitted
records also see the records of an aborted transaction, so they may see a letter twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.core.settings import names_arguments
from allocator.errors import ConfigError, TopicNotFound
from allocator.operate.dead_letters.letter import Letter, LetterFilter, Note, Settled, redriven
from allocator.operate.group_orders import default_operator
from allocator.producer import NewRecord, TooLargeForTopic, TransactionalWriter, create_topic
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

EVERY = LetterFilter()
AT_ONCE = 100  # letters in one transaction; more: fewer transactions; less: less is repeated after a kill
BYTES_AT_ONCE = 512 << 10
MAX_REDRIVES = 3
REPLICATION = 3


@dataclass
class Outcome:
    """The settled letters, or without `execute` those that would be. `refused`: the others, with the reasons."""

    done: list[Letter] = field(default_factory=list)
    refused: list[tuple[Letter, str]] = field(default_factory=list)


@names_arguments
class DeadLetterQueue:
    """The letters of topic `topic`. Use `async with`.

        async with DeadLetterQueue("orders.dead", "b1:9092") as letters:
            async for letter in letters.read(LetterFilter(error="Timeout")):
                print(letter.name, letter.error)
            await letters.redrive(LetterFilter(error="Timeout"), execute=True)

    Each settled letter is noted with `by`, by default the user and the host. `timeout_s`: seconds for the brokers to
    respond. Reading raises a retriable BrokerError if nothing comes for that long.
    """

    def __init__(
        self,
        topic: str,
        brokers: str,
        *,
        security: Mapping[str, Any] | None = None,
        by: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._security = security
        self._timeout_s = timeout_s
        self._by = by or default_operator()
        self._stack = contextlib.AsyncExitStack()
        self._client: KafkaClient

    @property
    def settled_topic(self) -> str:
        """The topic of the notes about settled letters; created with the first one."""
        return f"{self.topic}.settled"

    async def __aenter__(self) -> DeadLetterQueue:
        async with contextlib.AsyncExitStack() as stack:
            self._client = KafkaClient(self._brokers, client_id="allocator-deadletters", security=self._security)
            stack.push_async_callback(self._client.close)
            await self._client.connect(self._timeout_s)
            await self._client.refresh([self.topic])
            if self._client.partitions(self.topic) is None:
                raise TopicNotFound([self.topic])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- reading -------------------------------------------------------------------------------------------------

    async def first(
        self, most: int, chosen: LetterFilter = EVERY, *, settled: bool = False
    ) -> tuple[list[Letter], int]:
        """The first `most` letters of `read`, and the number of all."""
        found, count = [], 0
        async for letter in self.read(chosen, settled=settled):
            count += 1
            if count <= most:
                found.append(letter)
        return found, count

    async def read(self, chosen: LetterFilter = EVERY, *, settled: bool = False) -> AsyncIterator[Letter]:
        """The letters that are there now, partition by partition; with `settled` those that are settled too."""
        notes = await self._notes()
        topic_id = self._topic_id()
        async for record in self._records(self.topic, chosen.since_ms):
            note = notes.get((record.partition, record.offset))
            about = note is not None and note.concerns(record.timestamp, topic_id)
            letter = Letter.of(record, note.settled if note is not None and about else None)
            if chosen.matches(letter) and (settled or letter.settled is None):
                yield letter

    async def get(self, partition: int, offset: int) -> Letter | None:
        """One letter, settled or not; None if it is not there."""
        chosen = LetterFilter(places=frozenset({(partition, offset)}))
        async for letter in self.read(chosen, settled=True):
            return letter
        return None

    def _topic_id(self) -> str | None:
        """The id of the letters' topic; None for brokers before 2.8."""
        found = self._client.topic_id(self.topic)
        return None if found is None else str(found)

    async def _notes(self) -> dict[tuple[int, int], Note]:
        """The notes about settled letters, by partition and offset."""
        notes = {}
        await self._client.refresh([self.topic, self.settled_topic])
        if self._client.partitions(self.settled_topic) is not None:
            async for record in self._records(self.settled_topic, None):
                note = Note.decode(record.value)
                partition, _, offset = (record.key or b"").decode(errors="replace").partition(":")
                if note is not None and partition.isdigit() and offset.isdigit():
                    notes[int(partition), int(offset)] = note
        return notes

    async def _records(self, topic: str, since_ms: int | None) -> AsyncIterator[Record]:
        """Every record from then up to the present end."""
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
        """Writes these letters back to their topics and partitions, as the records that they were.

        They get the present time, because the topic's retention could delete an old record at once; the header
        `allocator.first_timestamp` has the original time. Without `execute` nothing is written. `rate` is the most
        letters a second. A letter is refused that was redriven `max_redrives` times before, that has no first place in
        its headers, whose partition does not exist, or that is too large for the topic's `max.message.bytes` (found
        with `execute` only). Raises ConfigError for brokers without transactions.
        """

        def back(letter: Letter) -> tuple[TopicPartition, NewRecord]:
            assert letter.original is not None
            return letter.original, redriven(letter, wall_ms())

        async def refusal(letter: Letter) -> str | None:
            if letter.redrives >= max_redrives:
                return f"it was redriven {letter.redrives} times before; find out why it comes back (--max-redrives)"
            if letter.original is None:
                return "its headers do not say which topic and partition it came from"
            topic, number = letter.original
            if self._client.metadata.topics.get(topic) is None:
                await self._client.refresh([topic])
            if number not in (self._client.partitions(topic) or ()):
                return f"partition {topic}:{number} does not exist any more"
            return None

        return await self._settle(chosen, Settled("redriven", 0, self._by), back, refusal, execute, rate)

    async def discard(self, chosen: LetterFilter, *, execute: bool = False, reason: str = "") -> Outcome:
        """Notes that these letters need nothing more. They stay in the topic as long as its retention says."""
        return await self._settle(chosen, Settled("discarded", 0, self._by, reason), None, None, execute, None)

    async def _settle(
        self, chosen: LetterFilter, note: Settled, made: Any, refusal: Any, execute: bool, rate: float | None
    ) -> Outcome:
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate must be more than 0 letters a second, not {rate!r}")
        writer = TransactionalWriter(self._client, f"allocator-deadletters-{self.topic}")
        outcome = Outcome()
        if execute:
            await self._prepare()
            # before the notes are read: another process writes none from now on
            await writer.open()
        pace = _Pace(rate)
        chunk: list[Letter] = []
        size = 0
        async for letter in self.read(chosen):
            why = refusal and await refusal(letter)
            if why is not None:
                outcome.refused.append((letter, why))
                continue
            if not execute:
                outcome.done.append(letter)
                continue
            chunk.append(letter)
            size += len(letter.record.value or b"") + len(letter.record.key or b"")
            if len(chunk) >= pace.at_once or size >= BYTES_AT_ONCE:
                await self._write_fitting(writer, chunk, note, made, outcome)
                await pace.after(len(chunk))
                chunk, size = [], 0
        if chunk:
            await self._write_fitting(writer, chunk, note, made, outcome)
        return outcome

    async def _write_fitting(
        self, writer: TransactionalWriter, letters: list[Letter], note: Settled, made: Any, outcome: Outcome
    ) -> None:
        """Writes these letters, without those that are too large for their topics. Adds them to `outcome`."""
        try:
            await self._write(writer, letters, note, made)
            outcome.done += letters
        except TooLargeForTopic as error:
            if len(letters) == 1:
                outcome.refused.append((letters[0], str(error)))
                return
            half = len(letters) // 2
            await self._write_fitting(writer, letters[:half], note, made, outcome)
            await self._write_fitting(writer, letters[half:], note, made, outcome)

    async def _write(self, writer: TransactionalWriter, letters: list[Letter], note: Settled, made: Any) -> None:
        note = note._replace(at_ms=wall_ms())
        records: dict[TopicPartition, list[NewRecord]] = defaultdict(list)
        for letter in letters:
            if made is not None:
                partition, record = made(letter)
                records[partition].append(record)
            about = Note(note, self._topic_id(), letter.record.timestamp)
            settled = NewRecord(letter.name.encode(), about.encode(), note.at_ms)
            records[TopicPartition(self.settled_topic, 0)].append(settled)
        await writer.write(records)
        log.info("%s: %d letters are %s", self.topic, len(letters), note.action)

    async def _prepare(self) -> None:
        """Creates the topic of the notes; they stay as long as the letters may."""
        await self._client.refresh([self.settled_topic])
        if self._client.partitions(self.settled_topic) is None:
            await create_topic(self._client, self.settled_topic, 1, REPLICATION, {"cleanup.policy": "compact"})


class _Pace:
    """Waits so that no more than `rate` letters a second are written."""

    def __init__(self, rate: float | None) -> None:
        self.at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, int(rate)))
        self._rate = rate
        self._due = 0.0

    async def after(self, letters: int) -> None:
        if self._rate is not None:
            now = asyncio.get_running_loop().time()
            self._due = max(self._due, now) + letters / self._rate
            await asyncio.sleep(self._due - now)
