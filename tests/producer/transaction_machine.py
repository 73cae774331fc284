"""A state machine of transactions: results and offsets, in both forms, among seeks, moves, faults and other logs.

It drives the public interface over a cluster in memory, in virtual time, like `progress_machine`, from which it has the
group. `TransactionOracle` has the promises. At the end of an example the faults stop, and each record must have its
result.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition

from allocator import Consumer, Producer
from allocator.errors import AllocatorError, NotOwned
from allocator.handlers.results import Produce
from allocator.producer import producer as producer_module
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.consumer.fake_kafka import Log
from tests.consumer.progress_machine import (
    PARTITIONS,
    QUIET_S,
    SETTLED_ROUNDS,
    Member,
    ProgressMachine,
    event,
    fractions,
    members,
    partitions,
    play,
)
from tests.consumer.progress_oracle import Broken
from tests.groups.virtual_time import VirtualLoop
from tests.inside import member_of
from tests.producer.fake_transactions import KINDS, OUT, Open, TransactionClient, TransactionCluster


class Return(NamedTuple):
    """A seek, or a log that was cut or replaced. From `first` on it may have happened, from `last` on it has."""

    target: int
    first: int
    last: float


class Stored(NamedTuple):
    log: Log
    offset: int
    era: int


class TransactionOracle:
    """An era of a partition ends with each seek, cut and new log. A result names the era in which the user got its
    record."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster, self.eras = cluster, cluster.eras
        self.returns: dict[TopicPartition, list[Return]] = defaultdict(list)
        self.excused: dict[Log, int] = defaultdict(int)
        """Records before this offset need no result: a seek passed them."""
        self.done: dict[int, int] = {}
        """Number of a record -> the era of its last result."""
        self.stored: dict[TopicPartition, Stored] = {}
        self.commands: dict[str, tuple[TopicPartition, int, int, set[int]]] = {}
        """Seeks of operators: the place in `returns`, and what is committed since, or has a result."""
        self.cut_at: dict[TopicPartition, int] = {}
        """The era of the last cut."""
        self.cut_in: dict[TopicPartition, Any] = {}
        """What `state` returned then."""
        self.state: Callable[[TopicPartition], Any] = lambda _: None
        """Returns the tenure of a partition, and how often its log was found to be cut."""
        self.views: dict[Any, Any] = {}  # none, for `ProgressMachine`

    def __getattr__(self, name: str) -> Any:
        """What only the oracle of progress has to know."""
        return lambda *_, **__: None

    def claims(self, member: Any, partition: TopicPartition) -> None:
        """A tenure begins at the committed offset, also if that has no epoch and its log was cut since: then nobody can
        tell, as with other clients."""
        at, log = self.stored.get(partition), self.cluster.content[partition]
        if at is not None and at.log is log and at.era < self.cut_at.get(partition, 0):
            self.excused[log] = max(self.excused[log], at.offset)

    def seeks(self, partition: TopicPartition, offset: int) -> None:
        self._passes(partition, offset)
        self.goes_back(partition, offset)

    def _passes(self, partition: TopicPartition, offset: int) -> None:
        log = self.cluster.content[partition]
        self.excused[log] = max(self.excused[log], offset)

    def goes_back(self, partition: TopicPartition, offset: int, *, at_once: bool = True) -> int:
        era = self.eras[partition] = self.eras[partition] + 1
        self.returns[partition].append(Return(offset, era, era if at_once else math.inf))
        return len(self.returns[partition]) - 1

    def on_commands(self, command: str, partition: TopicPartition, offset: int) -> None:
        self._passes(partition, offset)
        self.commands[command] = partition, offset, self.goes_back(partition, offset, at_once=False), set()

    def reported(self, command: str, partition: TopicPartition, *, done: bool) -> None:
        if command in self.commands:
            _, offset, place, stored = self.commands.pop(command)
            start = self.cluster.content[partition].start
            # records between may have been deleted meanwhile
            found = any(offset <= each <= max(offset, start) for each in stored)
            if done and self.eras[partition] == self.returns[partition][place].first and not found:
                raise Broken(f"the seek of {partition} to {offset} is done, and {stored} are committed since")
            era = self.eras[partition] = self.eras[partition] + 1
            last = era if done else math.inf  # one that a later command has replaced may never come
            former = self.returns[partition][place]
            self.returns[partition][place] = Return(former.target, former.first, last)

    def allows(self, partition: TopicPartition, offset: int, before: int, now: int) -> bool:
        """Whether what was there in the era `before` may be there again, from this offset on, in the era `now`."""
        return any(
            each.target <= offset and before < each.last and each.first <= now for each in self.returns[partition]
        )

    def end_of(self, writer: Open) -> None:
        """A transaction is committed."""
        if writer.offset is None:
            raise Broken(f"results {writer.results} are committed without an offset")
        partition, (offset, text, _), log = writer.offset
        numbers, former = self.cluster.numbers[log], self.stored.get(partition)
        begun = int(text.split()[1]) if text.startswith("era ") else writer.begun.get(partition, 0)
        era = min((era for _, era in writer.results), default=begun)
        places = {number: at for at, number in numbers.items()}
        for number, at_era in writer.results:
            place = places.get(number)
            was_at = self.cluster.places[number]
            if number in self.done and not self.allows(partition, was_at, self.done[number], at_era):
                raise Broken(f"{partition}@{was_at} has two results")
            if place is not None and place >= offset:
                raise Broken(f"the result of {partition}@{place} is there, and {offset} is committed")
            self.done[number] = at_era
        for at, _, _, stored in self.commands.values():
            if at == partition:
                stored |= {offset, *(places[number] for number, _ in writer.results if number in places)}
        if former is not None and (former.log, former.offset) == (log, offset) and not writer.results:
            return  # such as an idle offset, which is committed again
        self.stored[partition] = Stored(log, offset, era)
        if log is not self.cluster.content[partition]:
            return  # it names its topic
        # it was under way when the log was cut, or the owner does not know of the cut yet
        cut = self.cut_at.get(partition, 0)
        under_way = cut and (
            writer.begun.get(partition, 0) < cut or self.state(partition) == self.cut_in.get(partition)
        )
        missing = [at for at in self.missing(log) if at < offset]
        if offset > log.end:
            if not under_way and not any(each.last == math.inf for each in self.returns[partition]):
                raise Broken(f"{partition}: {offset} is committed, beyond the end {log.end}")
        elif missing and not under_way:
            raise Broken(f"{partition}: {offset} is committed, and {missing} have no result")
        if former is None or former.log is not log:
            return
        if offset < former.offset and not self.allows(partition, offset, former.era, era):
            raise Broken(f"{partition} goes back from {former.offset} to {offset} ({former.era}, {era})")
        if any(era < each.first and each.last <= former.era for each in self.returns[partition]):
            raise Broken(f"{partition}: {offset} is from before a seek, which was committed before ({former.offset})")

    def missing(self, log: Log) -> list[int]:
        """The records that need a result and have none."""
        numbers = self.cluster.numbers[log]
        first = max(log.start, self.excused[log])
        return [at for at in log.visible if at >= first and numbers[at] not in self.done]


class TransactionMember(Member):
    client_class = TransactionClient
    asked: Iterable[asyncio.Future[Any]] = ()
    """Its last calls that read."""

    def options(self) -> dict[str, Any]:
        producing = TransactionClient(self.cluster)
        with mock.patch.object(producer_module, "KafkaClient", return_value=producing):
            self.producer = Producer(brokers="fake:9092", delivery_timeout_s=5.0)
        return {"transactions": self.producer}

    def result_of(self, record: Record) -> bytes:
        era = self.cluster.eras[TopicPartition(record.topic, record.partition)]
        return b"<%s.%d>" % (record.value, era)

    async def read(self, kind: str, timeout_s: float) -> bool:
        """The user's loop: records, and a transaction with their results."""
        consumer: Consumer = self.consumer
        with suppress(NotOwned):
            found: Any = await (consumer.getone(timeout_s) if kind == "getone" else consumer.getbatch(timeout_s))
            if found is None:
                return False
            results = [self.result_of(each) for each in ([found] if kind == "getone" else found)]
            cancelled = None
            try:
                await asyncio.sleep(self.machine.pause_s)
            except asyncio.CancelledError as error:
                cancelled = error  # the transaction hands the records back
            try:
                async with self.producer.transaction(consumer) as tx:
                    if cancelled is not None:
                        raise cancelled
                    await asyncio.sleep(self.machine.pause_s)
                    for value in results:
                        await tx.send(OUT.topic, value, partition=OUT.partition)
            except AllocatorError as error:
                if not error.retriable:
                    raise
            if cancelled is not None:
                raise cancelled
        return True

    async def process(self, ordering: Any) -> None:
        async def handle(record: Record) -> Produce:
            value = self.result_of(record)
            await asyncio.sleep(self.machine.pause_s)
            while self.gated:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            return Produce(OUT.topic, value, partition=OUT.partition)

        await self.as_reader(lambda: asyncio.sleep(0))  # what it has to read first
        options = {"ordering": ordering, "concurrency": 3, "drain_timeout_s": 2.0, "commit_interval_s": 0.2}
        self.processing = self.machine.in_background(
            self.as_reader(lambda: self.consumer.process(handle, results="exactly-once", **options))
        )


class ExactLoop(VirtualLoop):
    """No timer fires early, not by the smallest fraction: the sender would find that it is too early, forever."""

    _clock_resolution = property(lambda self: math.ulp(self.now), lambda self, _: None)


class TransactionMachine(ProgressMachine):
    """Two members write a result for each record of two partitions."""

    evacuate = visit = pause_or_resume = operator_pauses_or_resumes = None

    def __init__(self) -> None:
        super().__init__()
        self.loop.close()
        self.loop = ExactLoop()
        self.loop.set_exception_handler(self._unhandled)

    @initialize(ids=st.booleans(), latency_s=st.sampled_from([0.15, 0.01]), pause_s=st.sampled_from([0.0, 0.05, 0.3]))
    def begin(self, ids: bool, latency_s: float, pause_s: float) -> None:
        self.pause_s, self.reset, self.auto, self.sink = pause_s, "earliest", False, None
        cluster = TransactionCluster(ids)
        cluster.latency_s, cluster.ends = latency_s, self._ends
        oracle = TransactionOracle(cluster)
        oracle.state = self._state
        self._begin(cluster, oracle, empty=False)

    def _state(self, partition: TopicPartition) -> Any:
        owner = self.owners[partition]
        tenure = None if owner is None else member_of(owner.consumer).state.assignment.get(partition)
        return None if tenure is None else (id(tenure), tenure.replaced)

    def _ends(self, writer: Open) -> None:
        try:
            self.oracle.end_of(writer)
        except Broken as error:  # the consumer would log it
            self.failure = self.failure or error

    async def _started(self, number: int) -> Member:
        if number < len(self.members):
            await self.members[number].producer.close()
        member = TransactionMember(self, number)
        await member.producer.start()
        return await self._ready(member)

    def reads(self, member: Member, kinds: list[str], timeout_s: float, commits: str, *, later: bool) -> None:
        """The user reads beside the following events."""
        if member.processing is None:
            writers = self.cluster.writers.values()  # that of a cancelled call may go on
            if commits and all(each.done() for each in member.asked) and not any(each.is_open for each in writers):
                sought = {
                    partition for partition, *_ in self.oracle.commands.values()
                }  # an operator's seek may come first
                stored = {p: at for p, at in self.oracle.stored.items() if p not in sought}
                owned = {p: at for p, at in stored.items() if self.owners[p] is member}
                offsets = {
                    p: OffsetAndMetadata(at.offset, f"era {at.era}", -1)
                    for p, at in owned.items()
                    # none of a log that was cut since: the records before it would have no results
                    if at.era == self.cluster.eras[p] != self.oracle.cut_at.get(p)
                }
                self.in_background(self._commits(member, offsets))
            calls = [member.as_reader(lambda kind=kind: member.read(kind, timeout_s)) for kind in kinds]
            member.asked = [*(each for each in member.asked if not each.done()), *map(self.in_background, calls)]
            self.go(rest_s=timeout_s)

    async def _commit(self, *_: Any, **__: Any) -> None:
        """Without results, the user commits nothing else."""

    async def _commits(self, member: Member, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """The user commits again what is committed."""
        with suppress(AllocatorError):
            await member.consumer.commit(offsets)

    @event(partition=partitions, part=fractions, seconds=st.sampled_from([QUIET_S, 0.02]))
    def seek(self, partition: TopicPartition, part: float, seconds: float) -> None:
        """Also while a handler has the records."""
        owner = self.owners[partition]
        if owner is not None:
            self.go(owner.seek(partition, self._at(partition, part)), rest_s=seconds)

    @event(n=members)
    def cancel(self, n: int) -> None:
        """The user gives up."""
        member = self.members[self._nth(n)]
        if member.processing is None:
            member.reader.cancel()
            self.go(asyncio.wait({member.reader}))
            with self._in_virtual_time():
                member.begin_reading()
            member.asked = ()

    @precondition(lambda self: self.cluster.knows_ids)  # older brokers do not tell where a log was cut
    @event(partition=partitions, part=fractions)
    def cut(self, partition: TopicPartition, part: float) -> None:
        if partition in self.cluster.leaders:
            end = self.cluster.cut(partition, part)
            log = self.cluster.content[partition]
            # a seek of an operator may still come
            sought = [offset for at, offset, *_ in self.oracle.commands.values() if at == partition]
            self.oracle.excused[log] = max(min(self.oracle.excused[log], end), *sought, 0)
            self.oracle.goes_back(partition, 0, at_once=False)
            self.oracle.cut_at[partition] = self.cluster.eras[partition]
            self.oracle.cut_in[partition] = self._state(partition)
        self.go()

    @event(away=st.booleans(), kept=st.booleans())
    def create_topic_again(self, away: bool, kept: bool) -> None:
        if self.down or any(map(self._moving, PARTITIONS)) or self._asked():
            return
        kept = kept and all(map(self.cluster.names_log, PARTITIONS))

        async def again() -> None:
            owners = {}
            if away or not self.cluster.knows_ids:
                owners = {partition: n for n in (0, 1) for partition in await self._lose(n)}
                self.cluster.delete(PARTITIONS)
                await asyncio.sleep(1.0)
            self.cluster.create(PARTITIONS, kept=kept)
            for partition in PARTITIONS:
                self.oracle.goes_back(partition, 0, at_once=False)
                self.cluster.produce(partition, 5)
            for partition, owner in owners.items():
                await self._claim(partition, owner)

        self.go(again(), rest_s=0.1)

    @event(kind=st.sampled_from(["refused", "lost", "unanswered", "late"]), request=st.sampled_from(KINDS))
    def next_commit_fails(self, kind: str, request: str) -> None:
        self.cluster.faults_of[request].append(kind)
        self.go()

    def _settle(self) -> None:
        """Without faults and gates, every record gets its result, and the lag gets to 0."""
        self.cluster.faults_of.clear()

        for partition in PARTITIONS:
            if partition in self.cluster.leaders:  # a transaction of a lost tenure may be found by the next one only
                self.cluster.produce(partition, 1)

        async def settle() -> None:
            await self._tell()
            for _ in range(SETTLED_ROUNDS):
                for member in self.members:
                    member.let_go()
                    if member.processing is None:
                        await member.as_reader(lambda member=member: member.read("getbatch", 0.3))
                        with suppress(AllocatorError):  # nobody commits a seek without records to read there
                            await member.consumer.commit()
                await asyncio.sleep(0.3)
                for partition, owner in self.owners.items():
                    if owner is None and not self._moving(partition):
                        await self._claim(partition, 0)
                if not (self._left() or self._asked() or any(map(self._moving, PARTITIONS))):
                    return
            raise Broken(f"the group does not settle: {self._left()} {self._asked()} {self.moves}")

        self.go(settle())

    def _asked(self) -> list[Any]:
        return [each for each in self.commands.entries if not each.done]

    def _left(self) -> dict[TopicPartition, Any]:
        """The partitions with lag, or records without a result."""
        left: dict[TopicPartition, Any] = {}
        for partition, log in self.cluster.content.items():
            at = self.cluster.committed.get(partition, OffsetAndMetadata(-1, "", -1)).offset
            missing = self.oracle.missing(log)
            if missing or log.next_visible(max(at, 0)) != log.end:
                left[partition] = at, log.end, missing
        return left


if __name__ == "__main__":
    play(int(sys.argv[1]), int(sys.argv[2]), TransactionMachine)
