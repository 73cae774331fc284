"""A process with members of one client, driven by lines of JSON on standard input: `python clients.py aiokafka`.

A member polls all the time, with its partitions paused unless it is told to read. So every client is driven in the same
way, and how many records it delivers does not depend on time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Optional

Got = tuple[int, int, str]
"""Partition, offset, value."""
Settings = Mapping[str, Any]
"""Java's names of settings, and: topic, zookeeper, committed, session_s."""
POLL_S = 0.05
PATIENCE_S = 10.0  # for the end of a partition, which a correct client reaches sooner


class Client:
    """One consumer: what the clients in Python have in common. With `blocking`, a thread makes the calls."""

    blocking = False
    limits: Mapping[str, Any] = {}
    """Arguments of `position`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1) if self.blocking else None

    async def do(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        call = partial(function, *arguments, **options)
        result = await asyncio.get_running_loop().run_in_executor(self._thread, call) if self._thread else call()
        return await result if inspect.isawaitable(result) else result

    async def open(self, settings: Settings) -> None:
        self.topic, self.auto = settings["topic"], settings["enable.auto.commit"]
        await self.do(self.make, settings)

    def make(self, settings: Settings) -> Any:
        raise NotImplementedError

    def at(self, partition: int) -> Any:
        raise NotImplementedError

    def offset(self, offset: int) -> Any:
        return offset

    def paused(self, assigned: Collection[Any]) -> None:
        if assigned:
            self.consumer.pause(*assigned)

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        raise NotImplementedError

    async def assigned(self) -> set[int]:
        return {each.partition for each in await self.do(self.consumer.assignment)}

    async def only(self, partitions: Collection[int]) -> None:
        """Pauses all other partitions."""
        for each in await self.do(self.consumer.assignment):
            await self.do(self.consumer.resume if each.partition in partitions else self.consumer.pause, each)

    async def position(self, partition: int) -> Optional[int]:
        found: int = await asyncio.wait_for(self.do(self.consumer.position, self.at(partition), **self.limits), 1.5)
        return found

    async def seek(self, partition: int, offset: int) -> None:
        await self.do(self.consumer.seek, self.at(partition), offset)

    async def commit(self, offsets: Optional[dict[int, int]]) -> None:
        await self.do(self.consumer.commit, offsets and {self.at(p): self.offset(o) for p, o in offsets.items()})

    async def close(self) -> None:
        await self.do(self.consumer.close)


def flat(found: Mapping[Any, Iterable[Any]]) -> list[Got]:
    return [(each.partition, each.offset, each.value.decode()) for part in found.values() for each in part]


class Allocator(Client):
    """Reads a single record with `getone`, some with `getmany` and all with `getbatch`."""

    def __init__(self, membership: str) -> None:
        super().__init__()
        self._membership = membership

    def make(self, settings: Settings) -> Any:
        from allocator import Consumer, Kafka, RebalanceListener, TopicPartition, ZooKeeper

        self.at = partial(TopicPartition, self.topic)  # type: ignore[method-assign]
        session_s = settings["session_s"]
        membership = {
            "zookeeper": lambda: ZooKeeper(session_timeout_s=session_s),
            "kafka": lambda: Kafka(session_timeout_s=session_s, heartbeat_interval_s=0.3),
            "kip848": lambda: Kafka(group_protocol="consumer"),
        }[self._membership]()
        self.consumer = Consumer(
            self.topic,
            brokers=settings["bootstrap.servers"],
            zookeeper=settings["zookeeper"] if self._membership == "zookeeper" else None,
            group=settings["group.id"],
            client_id=settings["client.id"],
            membership=membership,
            auto_offset_reset=settings["auto.offset.reset"],
            auto_commit_interval_s=settings["auto.commit.interval.ms"] / 1000 if self.auto else None,
            isolation_level=settings["isolation.level"],
            max_wait_s=settings["fetch.max.wait.ms"] / 1000,
            listener=type("Pausing", (RebalanceListener,), {"on_partitions_assigned": self.paused})(),
        )
        return self.consumer.start()

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        if limit == 1:
            record = await self.consumer.getone(seconds)
            return flat({0: [record] if record else []})
        if limit is None:
            return flat({0: await self.consumer.getbatch(seconds) or []})
        return flat(await self.consumer.getmany(seconds, limit))

    async def close(self) -> None:
        await self.consumer.close(commit=self.auto)


def named(settings: Settings) -> dict[str, Any]:
    """Returns the settings under the names of aiokafka and kafka-python."""
    return {name.replace(".", "_"): value for name, value in settings.items() if "." in name}


class AioKafka(Client):
    def make(self, settings: Settings) -> Any:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

        self.at = partial(TopicPartition, self.topic)  # type: ignore[method-assign]
        self.consumer = AIOKafkaConsumer(**named(settings))
        calls = {"on_partitions_revoked": lambda *_: None, "on_partitions_assigned": self.paused}
        self.consumer.subscribe([self.topic], listener=type("Pausing", (ConsumerRebalanceListener,), calls)())
        return self.consumer.start()

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        return flat(await self.consumer.getmany(timeout_ms=int(seconds * 1000), max_records=limit))

    async def close(self) -> None:
        await self.consumer.stop()


class KafkaPython(Client):
    blocking = True
    limits = {"timeout_ms": 1000}

    def make(self, settings: Settings) -> Any:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.structs import OffsetAndMetadata, TopicPartition

        self.at = partial(TopicPartition, self.topic)  # type: ignore[method-assign]
        self.offset = lambda offset: OffsetAndMetadata(offset, "", -1)  # type: ignore[method-assign]
        self.consumer = KafkaConsumer(**named(settings))
        self.consumer.partitions_for_topic(self.topic)  # as a leader without metadata it assigns nothing
        calls = {"on_partitions_revoked": lambda *_: None, "on_partitions_assigned": self.paused}
        self.consumer.subscribe([self.topic], listener=type("Pausing", (ConsumerRebalanceListener,), calls)())

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        coordinator = self.consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()  # it forgets its assignment if a poll times out at the end of a rebalance
        return flat(await self.do(self.consumer.poll, timeout_ms=int(seconds * 1000), max_records=limit))


class Confluent(Client):
    blocking = True

    def make(self, settings: Settings) -> Any:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        self._error, self._raised = KafkaError, KafkaException
        self.at = partial(TopicPartition, self.topic)  # type: ignore[method-assign]
        self._mine: set[int] = set()
        self._positions: dict[int, int] = {}
        given = {name: value for name, value in settings.items() if "." in name}
        given["fetch.wait.max.ms"] = given.pop("fetch.max.wait.ms")
        given["topic.metadata.refresh.interval.ms"] = given["metadata.max.age.ms"]
        self.consumer = Consumer({**given, "enable.partition.eof": True, "log_level": 0})
        self.consumer.subscribe([self.topic], on_assign=self._begin, on_revoke=self._end, on_lost=self._end)

    def _begin(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        self._mine = {each.partition for each in partitions}
        self._positions.clear()

    def _end(self, _: Any, partitions: list[Any]) -> None:
        self._mine -= {each.partition for each in partitions}

    def _consume(self, seconds: float, limit: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < limit:  # `consume` may return a record again that it returned before a pause
            each = self.consumer.poll(0 if found else seconds)
            if each is None:
                break
            found.append(each)
        return found

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        found = []
        for each in await self.do(self._consume, seconds, limit or 500):
            if each.error() is None:
                self._positions[each.partition()] = each.offset() + 1
                found.append((each.partition(), each.offset(), each.value().decode()))
            elif each.error().code() == self._error._PARTITION_EOF:
                self._positions[each.partition()] = each.offset()  # it tells no position behind a marker
            elif not each.error().retriable():
                raise self._raised(each.error())
        return found

    async def assigned(self) -> set[int]:
        return set(self._mine)

    async def only(self, partitions: Collection[int]) -> None:
        for each in tuple(self._mine):
            await self.do(self.consumer.resume if each in partitions else self.consumer.pause, [self.at(each)])

    async def position(self, partition: int) -> Optional[int]:
        return self._positions.get(partition)

    async def seek(self, partition: int, offset: int) -> None:
        await self.do(self.consumer.seek, self.at(partition, offset))
        self._positions.pop(partition, None)

    async def commit(self, offsets: Optional[dict[int, int]]) -> None:
        wanted = {"offsets": [self.at(*each) for each in offsets.items()]} if offsets else {}
        try:
            await self.do(self.consumer.commit, asynchronous=False, **wanted)
        except self._raised as error:
            if error.args[0].code() != self._error._NO_OFFSET:  # nothing to commit
                raise


class Java(Client):
    """A consumer in the Java process of this process, which `argv` starts."""

    process: Optional[asyncio.Task[asyncio.subprocess.Process]] = None
    listening: Optional[asyncio.Task[None]] = None
    answers: dict[int, asyncio.Future[str]] = {}

    def __init__(self, *argv: str) -> None:
        super().__init__()
        self._argv = argv

    async def _ask(self, what: str, *words: object) -> str:
        if Java.process is None:
            Java.process = asyncio.ensure_future(self._start())
        process = await Java.process
        assert process.stdin is not None
        number = len(Java.answers)
        answer = Java.answers[number] = asyncio.get_running_loop().create_future()
        process.stdin.write(" ".join(map(str, (number, what, self._name, *words))).encode() + b"\n")
        return await answer

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._argv, stdin=pipe, stdout=pipe, limit=1 << 20)
        Java.listening = asyncio.ensure_future(self._listen(process))
        return process

    @staticmethod
    async def _listen(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            number, state, text = (line.decode().rstrip("\n") + " ").split(" ", 2)
            answer = Java.answers[int(number)]
            if state == "ok":
                answer.set_result(text)
            else:
                answer.set_exception(RuntimeError(text))

    async def open(self, settings: Settings) -> None:
        self.topic, self.auto, self._name = settings["topic"], settings["enable.auto.commit"], settings["client.id"]
        # so long it may try to commit before a rebalance
        given = {"max.poll.interval.ms": 30000, **{name: each for name, each in settings.items() if "." in name}}
        given["enable.auto.commit"] = str(self.auto).lower()
        await self._ask("open", self.topic, *map("=".join, ((name, str(each)) for name, each in given.items())))

    async def poll(self, seconds: float, limit: Optional[int]) -> list[Got]:
        found = await self._ask("poll", int(seconds * 1000), limit or 500)
        return [(int(p), int(offset), value) for p, offset, value in (each.split(",") for each in found.split())]

    async def assigned(self) -> set[int]:
        return set(map(int, (await self._ask("assigned")).split()))

    async def only(self, partitions: Collection[int]) -> None:
        await self._ask("only", *partitions)

    async def position(self, partition: int) -> Optional[int]:
        return int(await self._ask("position", partition))

    async def seek(self, partition: int, offset: int) -> None:
        await self._ask("seek", partition, offset)

    async def commit(self, offsets: Optional[dict[int, int]]) -> None:
        await self._ask("commit", *(number for pair in (offsets or {}).items() for number in pair))

    async def close(self) -> None:
        await self._ask("close")


CLIENTS: dict[str, Callable[..., Client]] = {
    **{f"allocator-{each}": partial(Allocator, each) for each in ("zookeeper", "kafka", "kip848")},
    "aiokafka": AioKafka,
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "java": Java,
}


class Member:
    """Drives one consumer. `does_*` are the commands; every answer also has what was delivered since the last one."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._paused: set[int] = set()
        self._got: list[Got] = []
        self.errors: list[str] = []
        self._idle: Optional[asyncio.Task[None]] = None

    async def does_start(self, settings: Settings, paused: Iterable[int]) -> None:
        self._paused.update(paused)
        await self._client.open(settings)
        self._idle = asyncio.ensure_future(self._poll_idly())

    async def _poll_idly(self) -> None:
        while True:
            async with self._lock:
                await self._read((), POLL_S, None)
            await asyncio.sleep(POLL_S)

    async def _read(self, partitions: Collection[int], seconds: float, limit: Optional[int]) -> None:
        try:
            await self._client.only(partitions)
            self._got += await self._client.poll(seconds, limit)
        except Exception as error:  # noqa: BLE001 - a client may raise what it logs at another time
            self.errors.append(f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(POLL_S)

    async def _position(self, partition: int) -> Optional[int]:
        with contextlib.suppress(Exception):
            return await self._client.position(partition)
        return None

    async def does_state(self) -> list[int]:
        return sorted(await self._client.assigned())

    async def does_find(self) -> None:
        """Waits until it knows the positions of its partitions."""
        async with self._lock:
            for partition in await self._client.assigned():
                await self._position(partition)

    async def does_read(self, ends: dict[str, int]) -> list[int]:
        """Reads to these ends. Returns the partitions that are at their ends, and the paused ones."""
        until = time.monotonic() + PATIENCE_S / 5
        async with self._lock:
            while True:
                mine = (await self._client.assigned()).intersection(map(int, ends)) - self._paused
                at_end = [p for p in mine if await self._position(p) == ends[str(p)]]
                if len(at_end) == len(mine) or time.monotonic() > until:
                    return sorted({*at_end, *self._paused})
                await self._read(mine, 0.1, None)

    async def does_take(self, partition: int, count: int, end: int) -> None:
        until = time.monotonic() + PATIENCE_S
        async with self._lock:
            wanted = len(self._got) + count
            while partition in await self._client.assigned() and len(self._got) < wanted:
                if await self._position(partition) == end or time.monotonic() > until:
                    return
                await self._read([partition], 0.1, wanted - len(self._got))

    async def does_seek(self, partition: int, offset: int) -> None:
        async with self._lock:
            if partition in await self._client.assigned():
                await self._client.seek(partition, offset)
                await self._position(partition)

    async def does_pause(self, partition: int) -> None:
        self._paused.add(partition)

    async def does_resume(self, partition: int) -> None:
        self._paused.discard(partition)

    async def does_commit(self, partition: Optional[int], offset: int) -> None:
        until = time.monotonic() + PATIENCE_S
        async with self._lock:
            while True:
                if partition is not None and partition not in await self._client.assigned():
                    break
                try:
                    await self._client.commit(None if partition is None else {partition: offset})
                    break
                except Exception:
                    if time.monotonic() > until:  # a rebalance rejects a commit for a moment
                        raise
                    await self._read((), POLL_S, None)

    async def does_stop(self) -> None:
        async with self._lock:
            await self._read((), 0.0, None)  # requests more, so the delivered records are done
            if self._idle is not None:
                self._idle.cancel()
            await self._client.close()

    def taken(self) -> list[Got]:
        found, self._got = self._got, []
        return found


async def serve(make: Callable[[], Client]) -> None:
    members: dict[str, Member] = {}

    async def do(number: int, name: str, what: str, arguments: list[Any]) -> None:
        member = members[name] = Member(make()) if what == "start" else members[name]
        answer: dict[str, Any] = {"number": number}
        try:
            answer["ok"] = await getattr(member, f"does_{what}")(*arguments)
        except Exception as error:  # noqa: BLE001 - the history notes it
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
        answer["got"] = member.taken()
        answer["errors"], member.errors = member.errors, []
        print(json.dumps(answer), flush=True)

    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = set()
    async for line in lines:
        tasks.add(asyncio.ensure_future(do(*json.loads(line))))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(lambda: CLIENTS[sys.argv[1]](*sys.argv[2:])))
