"""Members that read the changes of the assignment have exactly what they would have read from the whole document."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.documents.checked import InvalidZnode
from allocator.documents.packed import SMALL_BYTES, deflate, to_ranges
from allocator.protocols.zookeeper.client.client import BadVersion, NoZnode, ZnodeExists
from allocator.protocols.zookeeper.group_znodes import GroupZnodes
from allocator.protocols.zookeeper.znodes.assignment_reader import AssignmentReader
from allocator.protocols.zookeeper.znodes.changes import MAX_MOVES, Changes, difference
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Paths, Waiting
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition
from tests.groups.simulated_zookeeper import Ensemble, SimulatedZooKeeper
from tests.groups.virtual_time import VirtualLoop

pytestmark = pytest.mark.usefixtures("quiet")

MEMBERS = ("a", "b", "c")
PATH = "/allocator/g"

names = st.sampled_from(MEMBERS)
# the name of a field may be the name of a topic
parts = st.frozensets(st.builds(TopicPartition, st.sampled_from(["t", "generation"]), st.integers(0, 9)), max_size=8)
documents = st.builds(
    AssignmentDocument,
    generation=st.integers(0, 10**9),
    leader=names,
    strategy=names,
    owners=st.dictionaries(names, parts, max_size=3),
    promised=st.dictionaries(names, parts, max_size=3),
    waiting=st.dictionaries(names, st.builds(Waiting, st.integers(0, 10**9), parts), max_size=3),
    refused=st.dictionaries(names, st.text(), max_size=2),
    problem=st.none() | st.text(),
)
readers = st.integers(0, len(MEMBERS) - 1)
events = st.one_of(
    *2 * [st.tuples(st.just("write"), st.integers(0, 1), documents)],
    st.tuples(st.just("older write"), st.just(0), documents),
    st.tuples(st.just("oldest write"), st.just(0), documents),
    *3 * [st.tuples(st.just("read"), readers)],
    st.tuples(st.sampled_from(["spoil", "delete", "count", "repeat", "spoil the changes", "promise changes"])),
)


class History:
    """Writers and readers of one group, over a ZooKeeper in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.ensemble = Ensemble(self.loop, random.Random(1))
        self.revision = 0

    def play(self, story: list[tuple[Any, ...]]) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._play(story))
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.close()
            asyncio.set_event_loop(None)

    async def _store(self, name: str) -> Store:
        zk = SimulatedZooKeeper(self.ensemble, name)
        await zk.connect()
        return Store(zk, Paths("/allocator", "g"))  # type: ignore[arg-type]

    async def _play(self, story: list[tuple[Any, ...]]) -> None:
        self.store = await self._store("writer")
        await self.store.prepare()
        # two leaders with one connection: each overtakes the other, as a leader that was paused does
        self.leaders = [GroupZnodes(self.store, lambda topic: None) for _ in range(2)]
        self.stores = [await self._store(name) for name in MEMBERS]
        self.readers = [AssignmentReader(store, name) for store, name in zip(self.stores, MEMBERS)]
        for what, *more in [*story, *(("read", number) for number in range(len(MEMBERS)))]:
            act: Callable[..., Awaitable[None]] = getattr(self, "_" + what.replace(" ", "_"))
            await act(*more)

    async def _write(self, number: int, document: AssignmentDocument) -> None:
        leader = self.leaders[number]
        while True:
            found = await leader.read()
            self.revision += 1
            try:
                await leader.write(document.but(revision=self.revision, writes=found.document.writes), found.version)
                return
            except (BadVersion, NoZnode, ZnodeExists):
                leader.start_over()

    async def _older_write(self, number: int, document: AssignmentDocument) -> None:
        """By a leader that writes no changes."""
        await self._replace(document.but(writes=await self.store.writes() + 1))

    async def _oldest_write(self, number: int, document: AssignmentDocument) -> None:
        """By a leader that neither writes changes nor counts."""
        stat = await self.store.zk.exists(f"{PATH}/assignment")
        if stat is None:
            await self.store.zk.create(f"{PATH}/assignment", document.encode())
        else:
            await self.store.zk.set(f"{PATH}/assignment", document.encode())

    async def _replace(self, document: AssignmentDocument) -> None:
        self.revision += 1
        stat = await self.store.zk.exists(f"{PATH}/assignment")
        await self.store.write_document(document.but(revision=self.revision), -1 if stat is None else stat.version)

    async def _by_hand(self, path: str, change: Callable[[bytes], bytes]) -> None:
        if await self.store.zk.exists(path) is not None:
            await self.store.zk.set(path, change((await self.store.zk.get(path))[0]))

    async def _spoil(self) -> None:
        await self._by_hand(f"{PATH}/assignment", lambda data: b"garbage")

    async def _spoil_the_changes(self) -> None:
        await self._by_hand(PATH, lambda data: b"garbage")

    async def _promise_changes(self) -> None:
        """To a document that does not exist yet."""
        writes = await self.store.writes() + 1
        await self._by_hand(PATH, lambda data: Changes(writes, 10**6, ({},)).encode(10**6))

    async def _count(self) -> None:
        await self._by_hand(PATH, lambda data: data)

    async def _repeat(self) -> None:
        await self._by_hand(f"{PATH}/assignment", lambda data: data)

    async def _delete(self) -> None:
        if await self.store.zk.exists(f"{PATH}/assignment") is not None:
            await self.store.zk.delete(f"{PATH}/assignment")

    async def _read(self, number: int) -> None:
        """Compares what a member reads with the whole document."""
        await self.stores[number].zk.sync()
        fired = asyncio.Event()
        try:
            document, stat, _ = await self.store.sized_document(only=MEMBERS[number])
        except InvalidZnode:
            with pytest.raises(InvalidZnode):
                await self.readers[number].read(fired.set)
        else:
            assert await self.readers[number].read(fired.set) == (document, stat)
        assert not fired.is_set()


@given(st.lists(events, max_size=40), st.sampled_from([0, 200, Store.WHOLE_BYTES]))
def test_any_history_of_documents_is_read_exactly(story: list[tuple[Any, ...]], whole_bytes: int) -> None:
    """Documents of new and old leaders, that overtake each other, and changes by hand. All documents count as large, or
    some, or none."""
    with mock.patch.object(Store, "WHOLE_BYTES", whole_bytes):
        History().play(story)


FIRST = frozenset({TopicPartition("t", 0)})
OWNED = frozenset(TopicPartition("t", number) for number in range(4))
BEFORE = AssignmentDocument(generation=1, revision=1, owners={"a": OWNED}, writes=1)


def after(**fields: Any) -> AssignmentDocument:
    return BEFORE.but(revision=2, writes=2, **fields)


def one_step(document: AssignmentDocument) -> Changes:
    step = difference(BEFORE, document)
    assert step is not None
    return Changes(2, 1, (step,))


def read_by(member: str, changes: Changes, before: AssignmentDocument = BEFORE, version: int = 0) -> Any:
    return Changes.decode(PATH, changes.encode(10**6)).apply(PATH, member, before, version)


def test_changes_lead_from_the_document_before_them_and_from_no_other() -> None:
    changes = one_step(after(owners={"a": OWNED - FIRST, "b": FIRST}))
    assert read_by("a", changes) == after(owners={"a": OWNED - FIRST})
    assert read_by("c", changes, BEFORE.but(owners={})) == after(owners={})
    assert read_by("a", changes, version=1) is None
    for writes in (0, 2, 3):
        assert read_by("a", changes, BEFORE.but(writes=writes)) is None
    with pytest.raises(InvalidZnode, match="does not fit"):
        read_by("a", changes, BEFORE.but(owners={"a": OWNED - FIRST}))
    with pytest.raises(InvalidZnode, match="does not fit"):
        read_by("b", changes, BEFORE.but(owners={"b": OWNED}))


def test_a_rebalance_of_most_partitions_writes_no_changes() -> None:
    most = frozenset(TopicPartition("t", number) for number in range(MAX_MOVES))
    assert difference(BEFORE, after(owners={"a": OWNED, "b": most})) is not None
    assert difference(BEFORE, after(owners={"a": OWNED - FIRST, "b": most})) is None


def test_changes_are_cut_to_the_newest_steps_that_fit() -> None:
    document, steps = BEFORE, []
    for number in range(9):
        following = document.but(owners={f"{number}-{random.Random(number).random()}": OWNED}, writes=number + 2)
        steps.append(difference(document, following))
        document = following
    changes = Changes(10, 9, tuple(steps))
    whole = changes.encode(10**6)
    part = Changes.decode(PATH, changes.encode(len(whole) - 1))
    assert Changes.decode(PATH, whole) == changes
    for since in range(11):  # a reader leaves out the steps that it does not need
        needed = Changes.decode(PATH, whole, since).steps
        assert needed == (changes.steps if since in (0, 1, 10) else changes.steps[since - 10 :])
    assert 0 < len(part.steps) < 9
    assert part.steps == changes.steps[-len(part.steps) :]
    assert changes.encode(20) == b""
    large = one_step(after(refused={"a": "x" * SMALL_BYTES}))
    assert large.encode(10**6) == b""
    steps[0] = large.steps[0]
    assert Changes.decode(PATH, Changes(10, 9, tuple(steps)).encode(10**6)).steps == tuple(steps[1:])


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"garbage",
        deflate({"writes": 2, "version": 1, "steps": 1}),
        deflate({"writes": 2, "version": 1, "steps": [1]}),
        deflate({"writes": 2, "version": -1, "steps": []}),
        deflate({"writes": 2, "version": 1, "steps": [], "more": " " * SMALL_BYTES}),
        *(
            deflate({"writes": 2, "version": 1, "steps": [{"generation": 1, "revision": 2, "members": members}]})
            for members in (
                None,
                {"a": 1},
                {"a": {"owners": 1}},
                {"a": {"owners": [{}]}},
                {"a": {"owners": [{"t": "x"}, {}]}},
                {"a": {"owners": [{}, {"t": "0-999999"}]}},
                {"a": {"waiting": [{}, {}]}},
                {"a": {"waiting": ["1", {}, {}]}},
                {"a": {"refused": 1}},
                {"a": {"promised": [to_ranges(OWNED), {}]}},
            )
        ),
    ],
)
def test_spoilt_changes_are_refused(spoilt: bytes) -> None:
    with pytest.raises(InvalidZnode):
        Changes.decode(PATH, spoilt).apply(PATH, "a", BEFORE, 0)
