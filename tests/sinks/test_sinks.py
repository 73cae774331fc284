"""Effects and offsets in one transaction, also with frozen owners and fences that restart."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from allocator.core.fetch.batch import Batch
from allocator.core.fetch.decode import scan
from allocator.errors import AlreadyStored, ConfigError, Fenced, SinkBehind, SinkError
from allocator.sinks import SinkClaim, SinkOffset, SqliteSink, SqlSink
from allocator.testing import wait_until_async
from allocator.testing.batches import ProducedRecord, encode
from allocator.types import TopicPartition
from tests.sinks.sink_member import Store

P = TopicPartition("orders", 0)
Stores = Callable[[], Store]


def batch(start: int, stop: int, fence: int, epoch: int = 0) -> Batch:
    """Records `start` to `stop` - 1, as the consumer delivers them under this fence."""
    data = encode([ProducedRecord(None, b"%d" % n) for n in range(stop)], 2, None, 0)
    # the leader writes its epoch into each batch; the checksum does not cover it
    data = data[:12] + epoch.to_bytes(4, "big") + data[16:]
    found = scan(data, topic=P.topic, partition=P.partition, start=start)
    found.fence = fence
    return Batch(P.topic, P.partition, found, start=start)


async def confirmed() -> bool:
    return True


async def not_confirmed() -> bool:
    return False


async def begin(
    store: Store, owner: str, fence: int, confirm: Callable[[], Awaitable[bool]] = not_confirmed, topic_id: Any = None
) -> Mapping[TopicPartition, int]:
    found = await store.sink.begin("billing", owner, {P: SinkClaim(fence, topic_id)}, confirm)
    return {partition: at.offset for partition, at in found.items()}


def once(store: Store, stop: int) -> bool:
    return store.counts() == {(P.partition, n): 1 for n in range(stop)}


async def test_effects_and_the_offset_are_stored_together(new_store: Stores) -> None:
    store = new_store()
    assert await begin(store, "a", 1) == {}
    assert store.sink.write(batch(0, 5, 1), store.store)
    assert await store.sink.write_async(next(iter(batch(5, 6, 1))), store.store)
    assert store.sink.offsets("billing") == {P: 6}
    assert await begin(new_store(), "b", 2) == {P: 6}
    assert once(store, 6)


async def test_effects_that_fail_store_nothing_and_may_be_retried(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)

    def fail(connection: Any, unit: Batch) -> None:
        store.store(connection, unit)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.sink.write(batch(0, 5, 1), fail)
    assert store.sink.offsets("billing") == {}
    assert store.written() == 0
    assert store.sink.write(batch(0, 5, 1), store.store)
    assert once(store, 5)


async def test_a_commit_whose_response_was_lost_is_not_repeated(
    new_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    await begin(store, "a", 1)
    whole = store.sink._transaction

    class Lost:
        def __enter__(self) -> Any:
            self.inner = whole()
            return self.inner.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)
            raise ConnectionError("the response to COMMIT was lost")

    with monkeypatch.context() as patch:
        patch.setattr(store.sink, "_transaction", Lost)
        with pytest.raises(ConnectionError):
            store.sink.write(batch(0, 5, 1), store.store)
    assert not store.sink.write(batch(0, 5, 1), store.store)
    # the broker may cut the batch elsewhere the next time
    assert store.sink.write(batch(0, 8, 1), store.store)
    assert once(store, 8)


async def test_writes_of_an_older_owner_are_rejected(new_store: Stores) -> None:
    frozen, successor = new_store(), new_store()
    await begin(frozen, "a", 7)
    frozen.sink.write(batch(0, 5, 7), frozen.store)
    assert await begin(successor, "b", 9) == {P: 5}
    with pytest.raises(Fenced, match="under fence 7 is refused: the owner with fence 9"):
        frozen.sink.write(batch(5, 9, 7), frozen.store)
    with pytest.raises(SinkError, match="does not confirm"):
        await begin(frozen, "a", 7)  # as if it was frozen before it registered
    assert successor.sink.write(batch(5, 9, 9), successor.store)
    with pytest.raises(Fenced):
        await frozen.sink.rewind(P, 0)
    assert once(successor, 9)


async def test_records_of_an_earlier_ownership_of_the_same_process_are_rejected(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)
    await begin(store, "a", 3)
    with pytest.raises(Fenced, match="fence 1"):
        store.sink.write(batch(0, 5, 1), store.store)
    with pytest.raises(Fenced, match="no consumer has registered"):
        new_store().sink.write(batch(0, 5, 3), store.store)
    assert store.written() == 0


@pytest.mark.parametrize("fence", [3, 9])
async def test_the_group_decides_between_owners_after_fences_restarted(new_store: Stores, fence: int) -> None:
    """After an ensemble came back without its data, a fence may be lower, or the same by chance."""
    frozen, successor = new_store(), new_store()
    await begin(frozen, "a", 9)
    frozen.sink.write(batch(0, 5, 9), frozen.store)
    assert await begin(successor, "b", fence, confirmed) == {P: 5}
    with pytest.raises(Fenced):
        frozen.sink.write(batch(5, 9, 9), frozen.store)
    assert successor.sink.write(batch(5, 9, fence), successor.store)
    assert once(successor, 9)


async def test_an_owner_that_registers_while_the_group_confirms_is_not_replaced(new_store: Stores) -> None:
    first, second, third = new_store(), new_store(), new_store()
    await begin(first, "a", 9)

    async def overtaken() -> bool:
        await begin(third, "c", 12)
        return True

    with pytest.raises(SinkError, match="another process registers"):
        await begin(second, "b", 5, overtaken)
    assert third.sink.write(batch(0, 5, 12), third.store)


async def test_records_out_of_order_are_rejected_unless_the_sink_was_rewound(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 5, 1), store.store)
    with pytest.raises(AlreadyStored, match="from offset 3 on is out of order: the sink is at offset 5"):
        store.sink.write(batch(3, 9, 1), store.store)
    await store.sink.rewind(P, 3)
    assert store.sink.write(batch(3, 9, 1), store.store)
    assert store.counts()[0, 4] == 2
    assert store.sink.offsets("billing") == {P: 9}


@pytest.mark.parametrize("kept", [None, 0, 5])
async def test_effects_that_the_database_has_lost_are_stored_again(new_store: Stores, kept: int | None) -> None:
    """A replica that was behind takes over. The member lives, and would continue behind the gap."""
    store, successor = new_store(), new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 5, 1), store.store)
    store.sink.write(batch(5, 9, 1), store.store)
    store.lose(P.partition, kept)
    advice = "seek to the first record" if kept is None else "it continues at the offset in the database"
    for _ in range(2):
        with pytest.raises(
            SinkBehind, match=f"is at offset {kept or 0}, but this process has stored the records before 9.*{advice}"
        ):
            store.sink.write(batch(9, 12, 1), store.store)
    assert await begin(successor, "b", 2) == ({} if kept is None else {P: kept})
    successor.sink.write(batch(kept or 0, 12, 2), successor.store)
    assert once(successor, 12)
    # offsets that a rewind has set are no loss
    await successor.sink.rewind(P, 10)
    assert successor.sink.write(batch(10, 12, 2), successor.store)


async def test_a_loss_of_the_owners_registration_is_noticed_too(new_store: Stores) -> None:
    """No later owner has registered, so the advice must not be to drop the record."""
    store = new_store()
    await begin(store, "a", 2)
    store.sink.write(batch(0, 5, 2), store.store)
    store.lose(P.partition, 3)
    store.forget_owner(P.partition, 1)
    with pytest.raises(SinkBehind, match="at offset 3"):
        store.sink.write(batch(5, 9, 2), store.store)


@pytest.mark.parametrize("former", [1, 9, None])
async def test_a_loss_of_the_registration_alone_is_noticed_before_anything_is_stored(
    new_store: Stores, former: int | None
) -> None:
    """Effects are not lost, but no other owner stores the next ones: a reader that drops them would stand still."""
    store, successor = new_store(), new_store()
    if former is not None:
        await begin(store, "former", former)
        store.sink.write(batch(0, 5, former), store.store)
    await begin(store, "a", 2, confirmed)
    if former is None:
        store.forget_row(P.partition)
    else:
        store.forget_owner(P.partition, former)
    for _ in range(2):
        with pytest.raises(SinkBehind, match="no longer has the registration of this owner"):
            store.sink.write(batch(5, 9, 2), store.store)
    with pytest.raises(SinkBehind):
        await store.sink.pass_by(batch(5, 9, 2))
    with pytest.raises(SinkBehind):
        await store.sink.rewind(P, 0)
    assert await begin(successor, "b", 3, confirmed) == ({} if former is None else {P: 5})
    assert successor.sink.write(batch(0 if former is None else 5, 9, 3), successor.store)
    assert once(successor, 9)
    with pytest.raises(Fenced):
        store.sink.write(batch(5, 9, 2), store.store)


async def test_a_rewind_does_not_hide_a_loss(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 9, 1), store.store)
    store.lose(P.partition, 3)
    with pytest.raises(SinkBehind, match="at offset 3"):
        await store.sink.rewind(P, 5)
    await store.sink.rewind(P, 2)
    assert store.sink.write(batch(2, 9, 1), store.store)
    assert store.counts() == {(0, n): 1 + (n == 2) for n in range(9)}


async def test_an_owner_that_only_registered_notices_a_loss_too(new_store: Stores) -> None:
    store, successor = new_store(), new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 5, 1), store.store)
    assert await begin(successor, "b", 2) == {P: 5}
    successor.lose(P.partition, 3)
    with pytest.raises(SinkBehind):
        successor.sink.write(batch(5, 9, 2), successor.store)
    assert await begin(successor, "b", 3) == {P: 3}
    assert successor.sink.write(batch(3, 9, 3), successor.store)
    assert once(successor, 9)


async def test_a_unit_that_is_given_up_is_stored_only_if_it_is_taken_back(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 5, 1), store.store)
    left = await store.sink.give_up(batch(3, 9, 1))
    assert left is not None
    assert (left.base_offset, left.next_offset) == (5, 9)
    with pytest.raises(AlreadyStored):
        store.sink.write(batch(5, 9, 1), store.store)
    store.sink.take_back(P)
    assert store.sink.write(batch(5, 9, 1), store.store)
    assert await store.sink.give_up(batch(5, 9, 1)) is None
    assert once(store, 9)


async def test_a_unit_may_be_stored_after_a_cancelled_attempt_to_give_it_up(new_store: Stores) -> None:
    store, inside, may_end = new_store(), threading.Event(), threading.Event()
    await begin(store, "a", 1)

    def slow(connection: Any, unit: Batch) -> None:
        inside.set()
        may_end.wait(30)
        raise RuntimeError("no")

    running = asyncio.ensure_future(store.sink.write_async(batch(0, 5, 1), slow))
    await wait_until_async(inside.is_set, 30, "the write")
    given_up = asyncio.ensure_future(store.sink.give_up(batch(0, 5, 1)))
    await asyncio.sleep(0.05)
    given_up.cancel()
    await asyncio.wait({given_up})
    store.sink.take_back(P)
    may_end.set()
    with pytest.raises(RuntimeError):
        await running
    await store.sink.rewind(P, 0)  # after what is under way
    assert store.sink.write(batch(0, 5, 1), store.store)
    assert once(store, 5)


async def test_a_topic_that_was_created_again_starts_without_an_offset(new_store: Stores) -> None:
    store, old, new = new_store(), uuid.uuid4(), uuid.uuid4()
    await begin(store, "a", 1, topic_id=old)
    store.sink.write(batch(0, 5, 1), store.store)
    assert await begin(store, "b", 2, topic_id=old) == {P: 5}
    assert await begin(store, "c", 3, topic_id=None) == {P: 5}  # from a broker that does not send ids
    assert await begin(store, "d", 4, topic_id=new) == {}


async def test_an_owner_starts_with_the_leader_epoch_of_the_previous_record(new_store: Stores) -> None:
    store = new_store()
    await begin(store, "a", 1)
    store.sink.write(batch(0, 5, 1, epoch=3), store.store)
    found = await store.sink.begin("billing", "b", {P: SinkClaim(2)}, not_confirmed)
    assert found == {P: SinkOffset(5, 3)}
    await store.sink.rewind(P, 2)
    found = await store.sink.begin("billing", "c", {P: SinkClaim(3)}, not_confirmed)
    assert found == {P: SinkOffset(2, -1)}


async def test_a_sink_is_for_one_group_and_a_table_has_a_name(new_store: Stores, tmp_path: Path) -> None:
    store = new_store()
    await begin(store, "a", 1)
    with pytest.raises(ConfigError, match="group 'billing'"):
        await store.sink.begin("other", "a", {P: SinkClaim(1)}, confirmed)
    with pytest.raises(ConfigError, match="not a name"):
        SqliteSink(str(tmp_path / "x"), table="a; DROP TABLE b")


async def test_effects_that_commit_are_rejected(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "x.db"), "effects", "offsets")
    await begin(store, "a", 1)
    with pytest.raises(ConfigError, match="do not commit"):
        store.sink.write(batch(0, 5, 1), lambda connection, unit: connection.commit())
    store.close()


async def test_an_unreachable_database_is_a_retriable_error(tmp_path: Path) -> None:
    sink = SqliteSink(str(tmp_path / "missing" / "x.db"))
    with pytest.raises(SinkError) as caught:
        await sink.begin("billing", "a", {P: SinkClaim(1)}, confirmed)
    assert caught.value.retriable


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg:/u:p@ss:w0rd-of-it@h/db", "postgresql+psycopg://u:p@ss:w0rd-of-it@h/db", "w0rd-of-it"]
)
def test_an_error_about_a_wrong_url_shows_no_password(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(ConfigError, match="the URL of this SqlSink is not valid") as caught:
        SqlSink(url)
    assert "w0rd" not in "".join(traceback.format_exception(None, caught.value, caught.tb))


def test_a_database_other_than_postgresql_is_rejected() -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed (extra `sql`)")
    with pytest.raises(ConfigError, match="SqliteSink"):
        SqlSink("sqlite:///x.db")


@pytest.mark.servers
async def test_an_engine_that_commits_each_statement_is_rejected_before_the_first_write(postgres: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed (extra `sql`)")
    engines = [
        sqlalchemy.create_engine(postgres, isolation_level="AUTOCOMMIT"),
        sqlalchemy.create_engine(postgres).execution_options(isolation_level="AUTOCOMMIT"),
        sqlalchemy.create_engine(postgres, connect_args={"autocommit": True}),
    ]
    for engine in engines:
        sink = SqlSink(engine, table="never_created")
        with pytest.raises(ConfigError, match="without AUTOCOMMIT"):
            await sink.begin("billing", "a", {P: SinkClaim(1)}, confirmed)
        assert not sqlalchemy.inspect(engine).has_table("never_created")
        engine.dispose()


class Process:
    """A process that owns the partition, or still assumes that it does."""

    def __init__(self, store: Store, name: str, fence: int) -> None:
        self.store, self.name, self.fence = store, name, fence
        self.position: int | None = None
        """None until it has registered."""


@pytest.mark.parametrize("seed", range(8))
async def test_any_order_of_owners_freezes_and_restarted_fences_stores_each_effect_once(
    seed: int, tmp_path: Path
) -> None:
    """Any process takes its next step at any time. The group confirms only the newest owner."""
    chance = random.Random(seed)
    names, fence = itertools.count(), 100
    processes: list[Process] = []
    path = str(tmp_path / "x.db")
    for _ in range(150):
        if not processes or chance.random() < 0.1:
            fence = chance.randrange(fence) if chance.random() < 0.3 else fence + chance.randrange(1, 5)
            processes.append(Process(Store(path, "effects", "offsets"), str(next(names)), fence))
        process = chance.choice(processes[-4:])

        async def confirm(process: Process = process) -> bool:
            return process is processes[-1]

        try:
            if process.position is None:
                found = await process.store.sink.begin("billing", process.name, {P: SinkClaim(process.fence)}, confirm)
                process.position = found[P].offset if P in found else 0
            else:
                end = process.position + chance.randrange(1, 4)
                process.store.sink.write(batch(process.position, end, process.fence), process.store.store)
                process.position = end
        except (SinkError, Fenced, SinkBehind):
            if process is processes[-1] and process.position is None:
                raise
            process.position = None  # like a consumer that lost the partition without noticing, and got it again
    last = processes[-1].store
    assert once(last, last.sink.offsets("billing")[P])
    for each in processes:
        each.store.close()
