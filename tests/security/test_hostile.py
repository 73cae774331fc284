"""Any content of znodes or records is reported, bounded in cost, and stops no member."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fetch_decoders import DECODERS as RECORD_DECODERS
from fetch_decoders import name_of
from fetch_encode import signed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import allocator
from allocator import Consumer
from allocator.core.text.quoting import SHOWN, SHOWN_ERROR, shown
from allocator.core.text.quoting import plain as spelt_out
from allocator.core.znodes.documents import (
    AssignmentDocument,
    Claim,
    InflateBudget,
    InvalidZnode,
    MemberInfo,
    Paths,
    Waiting,
    in_join_order,
    quick,
    sequence,
    shard_names,
)
from allocator.core.znodes.store import Store
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.daemon import process as logs
from allocator.errors import CorruptRecordError
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.batches import ProducedRecord, encode
from allocator.types import TopicPartition

Topics = Callable[..., str]
MEMBER = "m-0123456789abcdef-0000000042"
many = settings(max_examples=600, suppress_health_check=list(HealthCheck))


@pytest.fixture
def counted(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """What a fuzzing test did with its inputs, printed when it is through."""
    inputs: Counter[str] = Counter()
    yield inputs
    with capsys.disabled():
        print(f"\n  {request.node.name}: {sum(inputs.values())} inputs {dict(inputs)}")


# -- znodes: bytes ---------------------------------------------------------------------------------------------------

ranges = st.one_of(
    st.sampled_from(["0-3,7", "", ",", "-", "5-2", "0-999999999", "-1", "1e9", "0" * 5000, "٣", "1_0", " 1", "0x10"]),
    st.text(max_size=12),
)
names = st.one_of(
    st.sampled_from([MEMBER, "..", ".", "../../etc", "/", "a/b", "m-" + "f" * 16 + "-9999999999", "\ud800", "\x00"]),
    st.text(max_size=12),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**62, 2**63, -1, 10**400, 1e308, float("inf"), float("nan")]),
    st.text(max_size=12),
    ranges,
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=10
)
fields = [
    *("generation", "revision", "leader", "strategy", "owners", "promised", "waiting", "refused", "problem"),
    *("name", "host", "topics", "pattern", "weight", "rack", "strategies", "held", "shards"),
]
partitions = st.dictionaries(names, ranges | values, max_size=3)
by_member = st.dictionaries(names, partitions | values, max_size=3)
documents = st.fixed_dictionaries(
    {"format": st.sampled_from([1, 1, 1, 1, 2, "1", None])},
    optional=dict.fromkeys(fields, by_member | partitions | values),
)
SOUND: tuple[dict[str, object], ...] = (
    {
        "format": 1,
        "generation": 3,
        "revision": 9,
        "leader": MEMBER,
        "strategy": "naive",
        "problem": None,
        "owners": {MEMBER: {"t": "0-3"}},
        "promised": {},
        "waiting": {MEMBER: [9, {"t": "7"}]},
        "refused": {},
    },
    {"format": 1, "revision": 9, "generation": 3, "held": {"t": "0-3,7"}},
    {
        "format": 1,
        "name": "n",
        "host": "h",
        "topics": ["t"],
        "pattern": None,
        "weight": 1.0,
        "rack": None,
        "strategies": ["naive"],
    },
    {"format": 1, "shards": ["9-m-0"]},
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, object]:
    """Content that the library writes, with at most two fields replaced."""
    document: dict[str, object] = dict(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(0, 2))):
        document[draw(st.sampled_from(sorted(document)))] = draw(by_member | partitions | values)
    return document


deep = st.builds(
    lambda opening, depth, closing: (opening * depth + closing * depth).encode(),
    st.sampled_from(["[", '{"a":', '[{"a":', '{"format":1,"held":[']),
    st.integers(1, 60_000),
    st.sampled_from(["]", "}", "", "}]"]),
)
plain = st.one_of(
    st.binary(max_size=2000), (damaged() | documents).map(lambda document: json.dumps(document).encode()), deep
)
hostile = st.one_of(
    damaged().map(lambda document: json.dumps(document).encode()),
    damaged().map(lambda document: zlib.compress(json.dumps(document).encode())),
    plain,
    plain.map(zlib.compress),
    st.tuples(plain.map(zlib.compress), st.integers(0, 60)).map(lambda pair: pair[0][: -pair[1] or None]),
    st.tuples(plain.map(zlib.compress), st.binary(max_size=10)).map(b"".join),
)
DECODERS: dict[str, Callable[[str, bytes], object]] = {
    "document": AssignmentDocument.decode,
    "claim": Claim.decode,
    "member": MemberInfo.decode,
    "shards": shard_names,
}


def test_any_bytes_in_any_znode_are_a_value_or_rubbish(counted: Counter[str]) -> None:
    slowest = 0.0

    @many
    @given(hostile)
    def fuzz(data: bytes) -> None:
        nonlocal slowest
        for name, decode_it in DECODERS.items():
            began = time.process_time()
            try:
                decode_it("/some/znode", data)
                counted[f"{name} read"] += 1
            except InvalidZnode as error:
                assert "/some/znode" in str(error)
                assert len(str(error)) < 100_000
                counted[f"{name} rubbish"] += 1
            slowest = max(slowest, time.process_time() - began)

    fuzz()
    assert slowest < 20.0, "one input took that many seconds of a processor"


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "", "a/../b", "%2e%2e", "\u202e", f"{MEMBER}\n", f"../{MEMBER}", f"{MEMBER}/.."),
        *("m-0123456789abcdef-000000004", "m-0123456789ABCDEF-0000000042", "m-0123456789abcdef--0000000042"),
        "m-0123456789abcdef-" + "\u0660" * 8 + "\u0664\u0662",  # digits, but not ours
    ],
)
def test_a_name_with_a_trick_is_no_members(name: str) -> None:
    assert sequence(name) is None
    assert in_join_order([name, MEMBER]) == [MEMBER]


INFLATE = """
import resource, sys, zlib
from allocator.core.znodes.documents import Claim, InvalidZnode
unit = sys.argv[1].encode()
data = zlib.compress(b'{"format":1,"x":[' + unit * (int(sys.argv[2]) // len(unit)) + b"0]}", 1)
assert len(data) < 1 << 20
del unit
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Claim.decode("/x", data)
except InvalidZnode:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("unit", "size"),
    [("[],", 60_000_000), ("0,", 60_000_000), ("0,", 120_000_000)],
    ids=["lists", "numbers", "too much to be read"],
)
def test_what_a_small_znode_inflates_to_is_bounded(unit: str, size: int) -> None:
    """A znode holds a megabyte at most, which zlib can make a thousand of, and JSON twenty times as much again."""
    done = subprocess.run(
        [sys.executable, "-c", INFLATE, unit, str(size)], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 800, f"{done.stdout} MB"


BOMBS = """
import resource, sys, time, zlib
from allocator.core.znodes import documents
from allocator.core.znodes.documents import Claim, AssignmentDocument, InvalidZnode
from allocator.core.znodes.documents import MemberInfo
members = ["m-%016x-%010d" % (n, n) for n in range(200)]
head = b'"generation":3,"revision":9,"leader":"m","strategy":"naive","problem":null,"refused":{}'
everything = b'{"t":"0-999998"}'
def document(owners=b"{}", promised=b"{}", waiting=b"{}"):
    return b'{"format":1,%s,"owners":%s,"promised":%s,"waiting":%s}' % (head, owners, promised, waiting)
def each(count, value):
    return b"{" + b",".join(b'"%s":%s' % (member.encode(), value) for member in members[:count]) + b"}"
bombs = {
    "owners": (AssignmentDocument, document(owners=each(8, everything))),
    "promised": (AssignmentDocument, document(promised=each(80, everything))),
    "waiting": (AssignmentDocument, document(waiting=each(80, b"[9,%s]" % everything))),
    "descending": (AssignmentDocument, document(owners=each(80, b'{"t":"999999-0,0-999998"}'))),
    "together": (
        AssignmentDocument,
        document(each(1, everything), each(1, everything), each(7, b"[9,%s]" % everything)),
    ),
    "strings": (Claim, b'{"format":1,"x":[' + b'"ab",' * 12_000_000 + b'"ab"]}'),
    "floats": (Claim, b'{"format":1,"x":[' + b"0.5," * 15_000_000 + b"0.5]}"),
    "digits": (Claim, b'{"format":1,"x":' + b"9" * 20_000_000 + b"}"),
    "runs": (Claim, b'{"format":1,"held":{"t":"' + b"1," * 10_000_000 + b'1"}}'),
    "a long run": (Claim, b'{"format":1,"held":{"t":"' + b"0" * 20_000_000 + b'"}}'),
    "a long name": (Claim, b'{"format":1,"held":{"' + b"t" * 20_000_000 + b'":"x"}}'),
    "a long format": (Claim, b'{"format":"' + b"\\n" * 10_000_000 + b'"}'),
}
kind, text = bombs.pop(sys.argv[1])
del bombs
data = zlib.compress(text, 9)
del text
assert len(data) < 150_000, len(data)
assert not documents.quick(data)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 1024 * 1024,) * 2)
began = time.process_time()
try:
    kind.decode("/x", data)
except InvalidZnode as error:
    print(time.process_time() - began, len(str(error)), str(error))
"""
KINDS_OF_BOMB = [
    *("owners", "promised", "waiting", "descending", "together", "strings", "floats", "digits", "runs"),
    *("a long run", "a long name", "a long format"),
]


@pytest.mark.parametrize("bomb", KINDS_OF_BOMB)
def test_a_few_bytes_do_not_become_a_gigabyte(bomb: str) -> None:
    """The leader, the page and the doctor decode whole documents, and each has to renew its session meanwhile."""
    done = subprocess.run([sys.executable, "-c", BOMBS, bomb], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    seconds, length, text = done.stdout.split(" ", 2)
    assert float(seconds) < 5.0
    assert int(length) < 500, text[:500]
    assert "\n" not in text.rstrip("\n")


@pytest.mark.parametrize(
    ("members", "partitions"), [(100, 50_000), pytest.param(1000, 1_000_000, marks=pytest.mark.long)]
)
def test_a_large_group_is_no_bomb(members: int, partitions: int) -> None:
    """While all of it moves: each partition is drained by one member, and promised to another."""
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
        for _ in range(2):  # read again, it counts once
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
    Claim.decode("/claims/b", much, budget)  # the same again


def test_a_topic_bounds_what_is_said_of_it() -> None:
    data = AssignmentDocument(
        leader=MEMBER, strategy="naive", owners={MEMBER: frozenset(TopicPartition("t", n) for n in range(30_000))}
    )
    assert AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: None) == data
    assert AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: 25_000) == data, "the counts may be old"
    with pytest.raises(InvalidZnode, match="30000 partitions of topic 't', which has 3"):
        AssignmentDocument.decode("/x", data.encode(), counts=lambda topic: 3)


async def test_a_large_document_leaves_the_loop_to_others(
    zk_chroot: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that decodes a million partitions does not renew its lease."""
    decode, threads = AssignmentDocument.decode, []

    def noting(*arguments: Any, **named: Any) -> AssignmentDocument:
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(*arguments, **named)

    monkeypatch.setattr(AssignmentDocument, "decode", noting)
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    try:
        store = Store(zk, Paths("/allocator", group))
        await store.prepare()
        version = -1
        for count, on_the_loop in ((10, True), (400_000, False)):
            whole = frozenset(TopicPartition("t", number) for number in range(0, count, 2))
            await store.write_document(
                AssignmentDocument(leader=MEMBER, strategy="naive", owners={MEMBER: whole}), version
            )
            document, version = await store.document()
            assert document is not None
            assert document.owners == {MEMBER: whole}
            assert threads.pop() is on_the_loop, f"{count // 2} partitions"
    finally:
        await zk.close()


# -- quoted text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 60_000_000, b"x" * 60_000_000, ["y" * 1000] * 100_000, {"k" * 10**6: ["v" * 10**6] * 9}, 10**4000),
        *(
            KeyError("x" * 10**6),
            ValueError("a\nb\x1b[2J"),
            "a\nb",
            "\x1b]0;title\x07",
            "\u202egnp",
            "\x9b2J",
            b"\n\x1b",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_quoted_value_is_short_and_one_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= (SHOWN_ERROR if isinstance(value, Exception) else SHOWN)
    assert text == spelt_out(text)
    assert text.isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_znode_says_forges_no_line_of_the_log(form: str) -> None:
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


# -- znodes: a group that lives among them ----------------------------------------------------------------------------


def plant(hosts: str, base: str) -> int:
    """Writes hostile znodes; returns their number."""
    zk = KazooClient(hosts, timeout=10)
    zk.start(20)
    bomb = zlib.compress(b"0" * 300_000_000, 9)
    depth = zlib.compress(b"[" * 500_000)
    wide = zlib.compress(json.dumps({"format": 1, "revision": 0, "generation": 0, "held": {"t": "0-999998"}}).encode())
    future = zlib.compress(json.dumps({"format": 2, "revision": 10**9, "generation": 1, "held": {}}).encode())
    payloads = [b"", b"\x00" * 1_000_000, bomb, depth, wide, future, b"null", b"{" * 1000, b"\xff\xfe\xfd"]
    pattern = json.dumps({"format": 1, "name": "n", "host": "h", "topics": [], "pattern": "(", "strategies": ["x"]})
    greedy = {"format": 1, "name": "n", "host": "h", "topics": ["no-such-topic"] * 1000, "strategies": ["naive"]}
    # for Python's re, two tries for each letter of a topic's name
    endless = pattern.replace('"("', '"([a-z0-9-]|[a-z0-9-])*!"')
    payloads += [
        pattern.encode(),
        endless.encode(),
        json.dumps({**greedy, "weight": 1e300}).encode(),
        json.dumps(greedy).encode(),
    ]
    count = 0
    tricks = [
        "%2e%2e",
        "x" * 250,
        "m-zz",
        "\u202egnp",
        "m-0123456789abcdef-00000000423",
        "-",
        "~",
        "m-0123456789abcdef-",
    ]
    for number, payload in enumerate(payloads):
        stranger = f"m-{number:016x}-00000000{number:02d}"
        trick = tricks[number % len(tricks)]
        places = [f"{kind}/{stranger}" for kind in ("members", "claims", "shards")]
        for place in (*places, f"members/{trick}", f"claims/{trick}", f"members/{stranger}/below"):
            with contextlib.suppress(KazooException):
                zk.create(f"{base}/{place}", payload, ephemeral=False)
                count += 1
    for payload in payloads:
        with contextlib.suppress(KazooException):
            zk.set(f"{base}/assignment", payload)
            count += 1
        time.sleep(0.05)
    for name in zk.get_children(f"{base}/claims")[:20]:
        with contextlib.suppress(KazooException):
            zk.set(f"{base}/claims/{name}", payloads[1])
            count += 1
    zk.stop()
    zk.close()
    return count


def uproot(hosts: str, base: str) -> None:
    """An operator deletes what the log names."""
    zk = KazooClient(hosts, timeout=10)
    zk.start(20)
    for kind in ("members", "claims"):
        for name in zk.get_children(f"{base}/{kind}"):
            if zk.exists(f"{base}/{kind}/{name}").ephemeralOwner == 0:  # type: ignore[union-attr]
                zk.delete(f"{base}/{kind}/{name}", recursive=True)
    zk.stop()
    zk.close()


@pytest.mark.deadline(150)
async def test_a_group_among_hostile_znodes_neither_ends_nor_spins(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    topic = topic_factory(6)

    def member(name: str) -> Consumer:
        return Consumer(
            topic,
            brokers=kafka_cluster.bootstrap,
            zookeeper=kafka_cluster.zookeeper,
            group=group,
            client_id=name,
            membership=allocator.ZooKeeper(session_timeout_s=6.0),
            assignor="sticky",
        )

    base = f"/allocator/{group}"
    async with member("one") as one, member("two") as two:
        await wait_until_async(lambda: len(one.assignment()) == len(two.assignment()) == 3, 30, "both to share")
        count = await asyncio.to_thread(plant, kafka_cluster.zookeeper, base)
        assert count > 60
        await wait_until_async(lambda: "is not readable" in caplog.text, 30, "a line about it")
        await asyncio.sleep(1.0)  # a client that would retry a hostile znode does so now
        logged, used, began = len(caplog.records), time.process_time(), time.monotonic()
        await asyncio.sleep(4.0)
        share = (time.process_time() - used) / (time.monotonic() - began)
        assert share < 0.5, f"{share:.0%} of a processor while nothing happens"
        assert len(caplog.records) - logged < 100, "the same thing is logged again and again"
        await asyncio.to_thread(uproot, kafka_cluster.zookeeper, base)
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
    print(f"{count} hostile znodes, {share:.1%} of a processor")


# -- records ----------------------------------------------------------------------------------------------------------


def record_set(records: int, size: int, compression: str | None, magic: int) -> bytes:
    return encode([ProducedRecord(b"k" * (n % 7), b"v" * size) for n in range(records)], magic, compression, 1)


@st.composite
def hostile_records(draw: st.DrawFn) -> bytes:
    """Sound record sets with bytes changed, cut, repeated and put together, or no record sets at all."""
    finish = signed if draw(st.booleans()) else bytes
    if draw(st.integers(0, 9)) == 0:
        return finish(draw(st.binary(max_size=600)))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        magic = draw(st.sampled_from([0, 1, 2]))
        codec = draw(st.sampled_from([None, "gzip", "snappy", "lz4"] + (["zstd"] if magic == 2 else [])))
        part = bytearray(record_set(draw(st.integers(1, 5)), draw(st.integers(0, 40)), codec, magic))
        for _ in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, len(part) - 1))
            if draw(st.booleans()) and at + 4 <= len(part):
                struct.pack_into(">i", part, at, draw(st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31), 1 << 24])))
            else:
                part[at] = draw(st.integers(0, 255))
        parts.append(bytes(part[: draw(st.integers(0, len(part))) or None]))
    return finish(b"".join(parts))


@pytest.mark.parametrize("decoder", RECORD_DECODERS, ids=name_of)
def test_any_bytes_from_a_broker_are_records_or_a_corrupt_record(decoder: Any, counted: Counter[str]) -> None:
    slowest = 0.0

    @many
    @given(hostile_records())
    def fuzz(data: bytes) -> None:
        nonlocal slowest
        began = time.process_time()
        found = decoder.scan(data, topic="t", partition=0, start=0)
        records = 0
        try:
            for number in range(len(found.segments)):
                columns = found.columns(number, number + 1)
                records += len([(r.offset, r.key, r.value, r.headers) for r in columns.records()])
            if found.error is not None:
                raise found.error
            counted["records" if records else "nothing"] += 1
        except CorruptRecordError:
            counted["corrupt"] += 1
        assert records <= 100 * len(data)
        slowest = max(slowest, time.process_time() - began)

    fuzz()
    assert slowest < 20.0, "one input took that many seconds of a processor"


@pytest.mark.parametrize("decoder", RECORD_DECODERS, ids=name_of)
def test_the_fuzzers_records_are_sound_before_they_are_damaged(decoder: Any) -> None:
    """The unchanged inputs are valid, so the fuzzing is meaningful."""
    for magic, codec in ((0, "gzip"), (1, "snappy"), (2, "zstd"), (2, None)):
        data = record_set(3, 10, codec, magic)
        found = decoder.scan(data, topic="t", partition=0, start=0)
        assert found.error is None
        read = [record.value for record in found.columns(0, len(found.segments)).records()]
        assert read == [b"v" * 10] * 3
