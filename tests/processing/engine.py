"""A processor that runs on a consumer in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.letter_headers import headers_of
from allocator.handlers.policy import Retries
from allocator.handlers.processor import Processor
from allocator.testing import wait_until_async
from allocator.types import Record, TopicPartition
from tests.consumer.fake_source import Cluster, FakeSource

FAST = Retries(count=2, backoff_s=0.001, backoff_max_s=0.002)
PARTITION = TopicPartition("t", 0)
DEADLINE_S = 30.0


class Letters:
    """A dead-letter topic in memory. Raises `refusals` first."""

    def __init__(self, refusals: Sequence[BaseException] = ()) -> None:
        self.records: list[Record] = []
        self.headers: list[list[tuple[str, bytes | None]]] = []
        self.attempts: list[int] = []
        self.refusals = list(refusals)
        self.closed = False

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]

    async def send(self, records: Sequence[Record], error: BaseException, attempts: int) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop(0)
        self.headers += [headers_of(record, "g", error, attempts) for record in records]
        self.records += records
        self.attempts.append(attempts)

    async def close(self) -> None:
        self.closed = True


class Run:
    def __init__(self, source: FakeSource, processor: Processor, task: asyncio.Task[None]) -> None:
        self.source = source
        self.processor = processor
        self.task = task

    async def stop(self) -> None:
        self.processor.stop()
        await asyncio.wait_for(asyncio.shield(self.task), DEADLINE_S)

    async def failed(self) -> BaseException:
        await asyncio.wait({self.task}, timeout=DEADLINE_S)
        error = self.task.exception()
        assert error is not None
        return error


async def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    await wait_until_async(condition, DEADLINE_S, what, interval_s=0.002)


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster,
    function: Callable[[Any], Any],
    letters: Letters | None = None,
    *,
    by_batch: bool = False,
    catches_interrupts: bool = False,
    retry_topics: Any = None,
    prepare: Callable[[FakeSource], None] = lambda source: None,
    batch_size: int = 4,
    **settings: Any,
) -> AsyncIterator[Run]:
    source = FakeSource(cluster, batch_size)
    prepare(source)
    chosen = {"retries": FAST, "commit_interval_s": 60.0, "drain_timeout_s": 5.0, **settings}
    handler: Any = Handler("test", function, by_batch, catches_interrupts)
    processor = Processor(handler, Handling(**chosen), dead_letters=letters, retry_topics=retry_topics)  # type: ignore[arg-type]
    task = asyncio.ensure_future(processor.run(source))  # type: ignore[arg-type]
    try:
        yield Run(source, processor, task)
    finally:
        processor.stop()
        await asyncio.wait({task}, timeout=DEADLINE_S)
        assert task.done()


async def another_handles_all() -> None:
    """Runs another processor from its start to its end: what the first one does at once, it has done before."""
    cluster, done = Cluster(records=20), []

    async def handle(record: Record) -> None:
        done.append(record)

    async with running(cluster, handle) as it:
        await until(lambda: len(done) == 20)
        await it.stop()
