"""Records whose handler fails before or after it has stored effects in a sink: each has its effect or a dead letter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer
from allocator.errors import AlreadyStored
from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.processor import Processor
from allocator.testing import LocalCluster, wait_until_async
from tests.processing.engine import Letters
from tests.sinks.sink_member import Store

pytestmark = pytest.mark.servers

ONCE = Retries(count=0)
TWICE = Retries(count=1, backoff_s=0.001, backoff_max_s=0.002)


class Bench:
    """Handles records with a sink, one by one or as one batch."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, store: Store) -> None:
        self.cluster, self.topic, self.group, self.store = cluster, topic, group, store

    @asynccontextmanager
    async def handling(
        self,
        function: Callable[[Any], Any],
        letters: Letters,
        records: int = 5,
        *,
        by_batch: bool = True,
        **options: Any,
    ) -> AsyncIterator[asyncio.Future[None]]:
        """Handles records until the sink has all offsets, or an error ends it."""
        self.store.sink.offsets(self.group)  # creates the table
        self.cluster.produce(self.topic, [(None, b"%d" % n, 0) for n in range(records)])
        processor = Processor(
            Handler("test", function, by_batch),
            Handling(ordering="partition", **options),
            dead_letters=letters,  # type: ignore[arg-type]
        )
        async with Consumer(
            self.topic,
            brokers=self.cluster.bootstrap,
            zookeeper=f"{self.cluster.zookeeper}/{self.group}",
            group=self.group,
            sink=self.store.sink,
        ) as consumer:
            work = asyncio.ensure_future(processor.run(consumer))
            try:
                await wait_until_async(lambda: work.done() or self.store.next_offset(0) == records, 30, "the end")
                yield work
            finally:
                processor.stop()
                await asyncio.wait({work})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path / "effects.db"), "effects", "offsets")
    yield store
    store.close()


@pytest.fixture
def bench(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, store: Store) -> Bench:
    return Bench(kafka_cluster, topic_factory(1), group, store)


def stored(store: Store) -> list[int]:
    return sorted(offset for (_, offset), count in store.counts().items() for _ in range(count))


@pytest.mark.parametrize(
    "options",
    [
        {"retries": ONCE},
        {"retries": TWICE, "policy": ErrorPolicy.of(dead_letter_on=[ValueError])},
        {"retries": ONCE, "policy": ErrorPolicy.of(skip_on=[ValueError])},
    ],
    ids=["no retries", "dead_letter_on", "skip_on"],
)
async def test_a_batch_of_which_a_sink_has_stored_a_part_is_given_up_without_that_part(
    bench: Bench, store: Store, options: dict[str, Any]
) -> None:
    letters = Letters()

    def handle(batch: Any) -> None:
        for record in batch:
            if record.offset == 3:
                raise ValueError("poison")
            store.sink.write(record, store.store)

    async with bench.handling(handle, letters, **options) as work:
        assert not work.done()
    assert stored(store) == [0, 1, 2]
    assert letters.offsets == ([] if "policy" in options and not options["retries"].count else [3, 4])


@pytest.mark.parametrize("retries", [ONCE, TWICE])
@pytest.mark.parametrize("by_batch", [True, False])
async def test_a_handler_that_fails_after_the_sink_has_stored_everything_makes_no_letter(
    bench: Bench, store: Store, retries: Retries, by_batch: bool
) -> None:
    letters = Letters()

    def handle(unit: Any) -> None:
        store.sink.write(unit, store.store)
        raise ValueError("too late")

    async with bench.handling(handle, letters, by_batch=by_batch, retries=retries) as work:
        assert not work.done()
    assert stored(store) == list(range(5))
    assert letters.offsets == []


async def test_records_before_a_write_out_of_order_that_the_handler_hides_make_no_letters(
    bench: Bench, store: Store
) -> None:
    letters = Letters()

    def handle(batch: Any) -> None:
        for record in batch:
            if record.offset == 3:
                raise ValueError("poison")
            try:
                store.sink.write(record, store.store)
            except AlreadyStored as error:
                raise RuntimeError("the second attempt") from error

    async with bench.handling(handle, letters, retries=TWICE) as work:
        assert not work.done()
    assert stored(store) == [0, 1, 2]
    assert letters.offsets == [3, 4]


async def test_a_write_that_still_runs_when_its_handler_gives_up_makes_no_letter(bench: Bench, store: Store) -> None:
    """The handler has a time limit, but nothing ends the thread."""
    letters, inside, may_end = Letters(), threading.Event(), threading.Event()

    def slow(connection: Any, record: Any) -> None:
        inside.set()
        may_end.wait(30)
        store.store(connection, record)

    async def handle(record: Any) -> None:
        if record.offset != 1:
            await store.sink.write_async(record, store.store)
            return
        write = asyncio.ensure_future(store.sink.write_async(record, slow))
        await wait_until_async(inside.is_set, 30, "the write")
        threading.Timer(0.2, may_end.set).start()
        await asyncio.wait_for(write, 0.01)

    async with bench.handling(handle, letters, records=3, by_batch=False, retries=ONCE) as work:
        assert not work.done()
    assert stored(store) == [0, 1, 2]
    assert letters.offsets == []


async def test_a_write_that_begins_while_its_record_becomes_a_letter_is_refused(bench: Bench, store: Store) -> None:
    refused: list[BaseException] = []
    given: list[Any] = []

    class Late(Letters):
        async def send(self, records: Any, error: BaseException, attempts: int) -> None:
            try:
                await store.sink.write_async(given[0], store.store)
            except AlreadyStored as late:
                refused.append(late)
            await super().send(records, error, attempts)

    def handle(record: Any) -> None:
        if record.offset == 1:
            given.append(record)
            raise ValueError("a time limit")
        store.sink.write(record, store.store)

    letters = Late()
    async with bench.handling(handle, letters, records=3, by_batch=False, retries=ONCE) as work:
        assert not work.done()
    assert stored(store) == [0, 2]
    assert letters.offsets == [1]
    assert len(refused) == 1


async def test_a_record_that_could_not_become_a_letter_may_be_stored_after_all(bench: Bench, store: Store) -> None:
    given: list[Any] = []

    def handle(record: Any) -> None:
        given.append(record)
        raise ValueError("poison")

    letters = Letters([RuntimeError("the topic is away")])
    async with bench.handling(handle, letters, records=1, by_batch=False, retries=ONCE) as work:
        assert isinstance(work.exception(), RuntimeError)
        assert store.sink.write(given[0], store.store)
