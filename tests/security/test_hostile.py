"""Any content of znodes or records is reported, bounded in cost, and stops no member."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import KazooException

import allocator
from allocator import Allocation, Consumer
from allocator.core.text.quoting import SHOWN, SHOWN_ERROR, plain, shown
from allocator.daemon import logs
from allocator.documents.checked import InvalidZnode
from allocator.documents.packed import InflateBudget, quick
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.znodes.documents import (
    AssignmentDocument,
    Claim,
    Paths,
    Waiting,
    in_join_order,
    sequence,
)
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.resources.allocation import ROOT
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.types import TopicPartition
from tests.background import background
from tests.groups.layout_bench import Bench

Topics = Callable[..., str]
MEMBER = "m-0123456789abcdef-0000000042"
# -- znodes: bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "", "a/../b", "%2e%2e", "\u202e", f"{MEMBER}\n", f"../{MEMBER}", f"{MEMBER}/.."),
        *("m-0123456789abcdef-000000004", "m-0123456789ABCDEF-0000000042", "m-0123456789abcdef--0000000042"),
        "m-0123456789abcdef-" + "\u0660" * 8 + "\u0664\u0662",  # digits, but not ASCII
    ],
)
def test_a_malformed_name_is_no_member(name: str) -> None:
    assert sequence(name) is None
    assert in_join_order([name, MEMBER]) == [MEMBER]


BOMBS = """
import resource, sys, time, zlib
from allocator.documents import InvalidZnode, quick
from allocator.protocols.zookeeper.znodes.documents import Claim, AssignmentDocument
from allocator.protocols.zookeeper.znodes.documents import MemberInfo
members = ["m-%016x-%010d" % (n, n) for n in range(200)]
head = b'"generation":3,"revision":9,"leader":"m","strategy":"naive","problem":null,"refused":{}'
everything = b'{"t":"0-999998"}'
def document(owners=b"{}", promised=b"{}", waiting=b"{}"):
    return b'{"format":1,%s,"owners":%s,"promised":%s,"waiting":%s}' % (head, owners, promised, waiting)
def each(count, value):
    return b"{" + b",".join(b'"%s":%s' % (member.encode(), value) for member in members[:count]) + b"}"
bombs = {
    "owners": lambda: (AssignmentDocument, document(owners=each(8, everything))),
    "promised": lambda: (AssignmentDocument, document(promised=each(80, everything))),
    "waiting": lambda: (AssignmentDocument, document(waiting=each(80, b"[9,%s]" % everything))),
    "descending": lambda: (AssignmentDocument, document(owners=each(80, b'{"t":"999999-0,0-999998"}'))),
    "together": lambda: (AssignmentDocument, document(*2 * [each(1, everything)], each(7, b"[9,%s]" % everything))),
    "lists": lambda: (Claim, b'{"format":1,"x":[' + b"[]," * 20_000_000 + b"[]]}"),
    "digits": lambda: (Claim, b'{"format":1,"x":' + b"9" * 20_000_000 + b"}"),
    "runs": lambda: (Claim, b'{"format":1,"held":{"t":"' + b"1," * 10_000_000 + b'1"}}'),
    "a long name": lambda: (Claim, b'{"format":1,"held":{"' + b"t" * 20_000_000 + b'":"x"}}'),
    "a long format": lambda: (Claim, b'{"format":"' + b"\\n" * 10_000_000 + b'"}'),
}
kind, text = bombs[sys.argv[1]]()
data = zlib.compress(text, 9)
del text
assert len(data) < 150_000, len(data)
assert not quick(data)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 1024 * 1024,) * 2)
began = time.process_time()
try:
    kind.decode("/x", data)
except InvalidZnode as error:
    print(time.process_time() - began, len(str(error)), str(error))
"""


@pytest.mark.parametrize("bomb", re.findall(r'^    "([a-z ]+)": ', BOMBS, re.MULTILINE))
def test_a_few_bytes_do_not_become_a_gigabyte(bomb: str) -> None:
    """The leader, the page and the doctor decode whole documents, and must renew their sessions meanwhile."""
    done = subprocess.run([sys.executable, "-c", BOMBS, bomb], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    seconds, length, text = done.stdout.split(" ", 2)
    assert float(seconds) < 5.0
    assert int(length) < 500, text[:500]
    assert "\n" not in text.rstrip("\n")


def test_a_large_group_is_no_bomb() -> None:
    """All partitions move: each is drained by one member and promised to another."""
    members, partitions = 100, 50_000
    names = [f"m-{number:016x}-{number:010d}" for number in range(members)]
    owned = {
        name: frozenset(TopicPartition("t", partition) for partition in range(number, partitions, members))
        for number, name in enumerate(names)
    }
    moving = {name: owned[names[number - 1]] for number, name in enumerate(names)}
    waiting = {name: Waiting(7, parts) for name, parts in owned.items()}
    document = AssignmentDocument(
        generation=3, revision=9, leader=names[0], strategy="naive", promised=moving, waiting=waiting
    )
    data = document.encode()
    assert not quick(data)
    assert AssignmentDocument.decode("/x", data, counts=lambda topic: partitions) == document
    budget = InflateBudget.of_claims()
    for name, parts in owned.items():
        claim = Claim(9, parts, 3)
        for _ in range(2):  # the same claim counts once
            assert Claim.decode(f"/claims/{name}", claim.encode(), budget) == claim


def test_all_claims_of_a_group_share_one_budget() -> None:
    budget = InflateBudget(most=2000)
    much = zlib.compress(b'{"format":1,"revision":9,"generation":3,"held":{"t":"0-998"}}')
    little = Claim(9, frozenset({TopicPartition("t", 0)}), 3).encode()
    Claim.decode("/claims/a", much, budget)
    Claim.decode("/claims/b", much, budget)
    with pytest.raises(InvalidZnode, match="more than 2000 partitions in all"):
        Claim.decode("/claims/c", much, budget)
    Claim.decode("/claims/c", little, budget)
    budget.keep(["/claims/b", "/claims/c"])
    Claim.decode("/claims/c", much, budget)
    Claim.decode("/claims/b", much, budget)  # the same claim


def test_the_partition_count_of_a_topic_bounds_its_entry() -> None:
    data = AssignmentDocument(
        leader=MEMBER, strategy="naive", owners={MEMBER: frozenset(TopicPartition("t", n) for n in range(30_000))}
    )
    assert AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: None) == data
    assert AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: 25_000) == data, "the counts may be old"
    with pytest.raises(InvalidZnode, match="30000 partitions of topic 't', which has 3"):
        AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: 3)


async def test_a_large_document_leaves_the_loop_to_others(zk_chroot: str, group: str) -> None:
    """A loop that decodes a million partitions does not renew its lease."""
    whole = frozenset(TopicPartition("t", number) for number in range(0, 300_000, 2))
    large = AssignmentDocument(leader=MEMBER, strategy="naive", owners={MEMBER: whole})
    data, began = large.encode(), time.process_time()
    AssignmentDocument.decode("/x", data)
    takes_s = time.process_time() - began
    longest = 0.0

    async def note_pauses() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - before)

    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    try:
        store = Store(zk, Paths("/allocator", group))
        await store.prepare()
        await store.write_document(large, -1)
        async with background() as tasks:
            tasks.start(note_pauses(), "pauses")
            document, _ = await store.document()
        assert document == large
        assert longest < takes_s / 2, "the thread of the loop decoded it"
    finally:
        await zk.close()


# -- quoted text ------------------------------------------------------------------------------------------------------


# made by the test, because each worker collects all tests
LARGE: dict[str, Callable[[], object]] = {
    "str": lambda: "x" * 60_000_000,
    "bytes": lambda: b"x" * 60_000_000,
    "list": lambda: ["y" * 1000] * 100_000,
    "dict": lambda: {"k" * 10**6: ["v" * 10**6] * 9},
    "int": lambda: 10**4000,
}
CONTROLS = ["a\nb", "\x1b]0;title\x07", "\u202egnp", "\x9b2J", b"\n\x1b"]
ERRORS = [KeyError("x" * 10**6), ValueError("a\nb\x1b[2J")]


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_a_large_value_is_quoted_short_and_in_one_line(make: Callable[[], object]) -> None:
    check_quoted(make())


@pytest.mark.parametrize("value", [*CONTROLS, *ERRORS], ids=lambda value: type(value).__name__)
def test_a_quoted_value_is_short_and_one_line(value: object) -> None:
    check_quoted(value)


def check_quoted(value: object) -> None:
    text = shown(value)
    assert len(text) <= (SHOWN_ERROR if isinstance(value, Exception) else SHOWN)
    assert text == plain(text)
    assert text.isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_content_of_a_znode_forges_no_log_line(form: str) -> None:
    stream = io.StringIO()
    forged = "x\n2024-05-01T10:00:00.000Z error allocator: all is lost \x1b[2J\x9b2J\u202e"
    handler, log = logging.StreamHandler(stream), logging.Logger("allocator.x")
    handler.setFormatter(logs.JsonFormatter() if form == "json" else logs.TextFormatter())
    log.addHandler(handler)
    try:
        raise ValueError(forged)
    except ValueError:
        log.warning("it says %s", forged, exc_info=True, extra={"topic": forged})
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith(("2", "{"))] == lines[:1]
    assert all(line.isprintable() for line in lines)
    if form == "json":
        assert json.loads(lines[0])["message"] == f"it says {forged}"


# -- znodes: a group among them ---------------------------------------------------------------------------------------


def claim(format: int, revision: int, partitions: str) -> bytes:
    held = {"t": partitions} if partitions else {}
    return zlib.compress(json.dumps({"format": format, "revision": revision, "generation": 0, "held": held}).encode())


def member(**changed: Any) -> bytes:
    info = {"format": 1, "name": "n", "host": "h", "topics": ["no-such-topic"] * 1000, "strategies": ["naive"]}
    return json.dumps({**info, **changed}).encode()


def payloads() -> list[bytes]:
    return [
        *(b"", b"\x00" * 1_000_000, b"null", b"{" * 1000, b"\xff\xfe\xfd"),
        *(zlib.compress(b"0" * 100_000_000, 1), zlib.compress(b"[" * 500_000)),
        *(claim(1, 0, "0-999998"), claim(2, 10**9, "")),
        *(member(), member(weight=1e300), member(topics=[], pattern="(", strategies=["x"])),
        # exponential for Python's re
        member(topics=[], pattern="([a-z0-9-]|[a-z0-9-])*!", strategies=["x"]),
    ]


NAMES = [*("%2e%2e", "x" * 250, "m-zz", "\u202egnp", "m-0123456789abcdef-00000000423", "-", "~", "m-0123456789abcdef-")]


def plant(hosts: str, base: str) -> int:
    """Writes hostile znodes; returns their number."""
    count, hostile = 0, payloads()
    with zookeeper_client(hosts) as zk:

        def write(operation: Callable[..., object], path: str, payload: bytes) -> None:
            nonlocal count
            with contextlib.suppress(KazooException):
                operation(f"{base}/{path}", payload)
                count += 1

        for number, payload in enumerate(hostile):
            stranger, name = f"m-{number:016x}-00000000{number:02d}", NAMES[number % len(NAMES)]
            places = [f"{kind}/{stranger}" for kind in ("members", "claims", "shards")]
            for place in (*places, f"members/{name}", f"claims/{name}", f"members/{stranger}/below"):
                write(zk.create, place, payload)
        for payload in hostile:
            write(zk.set, "assignment", payload)
            time.sleep(0.05)
        for name in zk.get_children(f"{base}/claims")[:20]:
            write(zk.set, f"claims/{name}", hostile[1])
    return count


def delete_planted(hosts: str, base: str) -> None:
    """Deletes the hostile znodes, as an operator would."""
    with zookeeper_client(hosts) as zk:
        for kind in ("members", "claims"):
            for name in zk.get_children(f"{base}/{kind}"):
                if zk.exists(f"{base}/{kind}/{name}").ephemeralOwner == 0:  # type: ignore[union-attr]
                    zk.delete(f"{base}/{kind}/{name}", recursive=True)


@pytest.mark.deadline(150)
async def test_a_group_among_hostile_znodes_neither_ends_nor_spins(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    topic = topic_factory(6)

    base = f"/allocator/{group}"
    settings = {"brokers": kafka_cluster.bootstrap, "zookeeper": kafka_cluster.zookeeper, "group": group}
    settings |= {"membership": allocator.ZooKeeper(session_timeout_s=6.0), "assignor": "sticky"}
    async with Consumer(topic, **settings) as one, Consumer(topic, **settings) as two:
        await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 3, 30, "both to own three")
        count = await asyncio.to_thread(plant, kafka_cluster.zookeeper, base)
        assert count > 60
        await wait_until_async(lambda: "is not readable" in caplog.text, 30, "a line about it")
        loads: list[float] = []

        async def is_calm() -> bool:
            """Whether nothing happens for two seconds. A client that retries a hostile znode is never calm."""
            logged, used, began = len(caplog.records), time.process_time(), time.monotonic()
            await asyncio.sleep(2.0)
            loads.append((time.process_time() - used) / (time.monotonic() - began))
            return loads[-1] < 0.5 and len(caplog.records) - logged < 50

        await wait_until_async(is_calm, 40, lambda: f"a calm process; shares of a processor: {loads}")
        await asyncio.to_thread(delete_planted, kafka_cluster.zookeeper, base)
        await wait_until_async(
            lambda: len(one.assignment() | two.assignment()) == 6 and not one.assignment() & two.assignment(),
            60,
            lambda: f"all to be owned again: {one.assignment()} {two.assignment()}",
        )
        await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"%d" % n, n % 6) for n in range(12)])
        got: set[bytes] = set()

        async def read(consumer: Consumer) -> None:
            while len(got) < 12:
                record = await consumer.getone(0.2)
                if record is not None:
                    got.add(record.value)

        await asyncio.gather(read(one), read(two))


async def test_a_shard_that_cannot_be_deleted_stops_no_new_leader(
    zk_chroot: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader deletes what no assignment names any more, but a client has created a child there."""
    names = [f"r{number}" for number in range(4)]
    async with Allocation(names, group=group, zookeeper=zk_chroot) as first:
        await wait_until_async(lambda: len(first.held) == 4, 30, "the first one to own all")
        with zookeeper_client(zk_chroot) as zk:
            zk.create(f"{ROOT}/{group}/shards/junk/child", makepath=True)
    async with (
        Allocation(names, group=group, zookeeper=zk_chroot) as one,
        Allocation(names, group=group, zookeeper=zk_chroot) as two,
    ):
        await wait_until_async(lambda: len(one.held) == len(two.held) == 2, 30, "two each, under a new leader")
        with zookeeper_client(zk_chroot) as zk:
            zk.delete(f"{ROOT}/{group}/shards/junk/child")
        async with Allocation(names, group=group, zookeeper=zk_chroot) as three:
            await wait_until_async(lambda: len(three.held) == 1, 30, "another assignment")
    assert caplog.text.count("shards/junk stays, and counts for nothing") == 1
    assert "the znode has children" in caplog.text


async def test_a_mark_of_a_member_that_cannot_be_deleted_stops_no_leader(
    zk_chroot: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader reads the marks of members that left for good, and deletes them, if members have instance ids."""
    bench = Bench("zookeeper", zk_chroot, group, t=6)
    async with bench.zookeeper() as zk:
        await zk.ensure_path(f"{bench.base}/left/{MEMBER}/child")
        async with bench.members("a", instance_id="a", restart_grace_s=600.0) as (a,):
            await bench.settled(a)
            async with bench.members("b", instance_id="b", restart_grace_s=600.0) as (b,):
                await bench.settled(a, b)
            assert not a.owner.errors
    assert caplog.text.count(f"{MEMBER} stays, and counts for nothing") == 1
