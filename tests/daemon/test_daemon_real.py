"""`allocator run` as a process, on real ZooKeeper and Kafka."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer
from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.errors import BrokerError
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.letter_headers import origin_of
from allocator.testing import produce, wait_until
from allocator.types import Record, TopicPartition
from tests.daemon.daemon_processes import HANDLERS, Setup, stopped
from tests.producer.witnesses import committed_values

KAFKA_ALONE: dict[str, dict[str, Any]] = {
    "zookeeper": {"hosts": None},
    "group": {"membership": "kafka", "session_timeout_s": 15, "heartbeat_interval_s": 0.3},
}


@pytest.mark.parametrize("handler", ["coroutine", pytest.param("batch", marks=pytest.mark.long)])
async def test_everything_is_handled_in_order_and_committed_when_the_daemon_stops(
    make: Callable[..., Setup], handler: str
) -> None:
    it = make(partitions=3)
    it.fill(900)
    mode = "batch" if handler == "batch" else "record"
    process = it.run(it.config(handler, handler={"mode": mode}))
    it.wait_done(900)
    assert stopped(process) == 0
    for partition in range(3):
        assert [e["offset"] for e in it.done() if e["partition"] == partition] == list(range(300))
    assert await it.committed() == {0: 300, 1: 300, 2: 300}
    logs = it.logs()
    assert any("SIGTERM: draining" in line["message"] for line in logs)
    assert {"time", "level", "logger", "message"} <= set(logs[0])


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
async def test_what_a_handler_returns_is_written(
    make: Callable[..., Setup], topic_factory: Callable[..., str], mode: str
) -> None:
    it = await asyncio.to_thread(make, 2)
    results = await asyncio.to_thread(topic_factory, 2, 1, None, it.cluster)
    it.fill(200)
    process = it.run(it.config("returns", handler={"results": mode}), RESULTS=results)
    await asyncio.to_thread(it.wait_done, 200)
    assert await asyncio.to_thread(stopped, process) == 0
    written = await asyncio.to_thread(committed_values, it.cluster.bootstrap, results)
    assert Counter(written) == Counter(entry["value"].encode() for entry in it.done())
    assert await it.committed() == {0: 100, 1: 100}


@pytest.mark.parametrize("more", [{}, pytest.param(KAFKA_ALONE, marks=pytest.mark.long)], ids=["zookeeper", "kafka"])
async def test_partitions_move_between_daemons_and_every_record_is_handled_once(
    make: Callable[..., Setup], more: dict[str, Any]
) -> None:
    it = make(partitions=6)
    it.fill(600)
    config = it.config("slow", handler={"concurrency": 2}, **more)
    first = it.run(config)
    it.wait_done(100)
    second = it.run(config)
    it.both_at_work()
    it.fill(300)
    assert stopped(first) == 0
    it.wait_done()
    assert stopped(second) == 0
    counts = Counter((entry["partition"], entry["offset"]) for entry in it.done())
    assert len(counts) == it.filled
    assert [key for key, count in counts.items() if count > 1] == []  # both stopped after their commits
    for partition in range(6):
        offsets = [entry["offset"] for entry in it.done() if entry["partition"] == partition]
        assert offsets == sorted(offsets)
    assert await it.committed() == dict.fromkeys(range(6), it.filled // 6)


async def test_a_daemon_that_leaves_on_stop_reserves_no_partition(make: Callable[..., Setup]) -> None:
    it = await asyncio.to_thread(make, 2)
    config = it.config(group={"restart_grace_s": 600, "leave_on_stop": True})
    processes = [it.run(config, ALLOCATOR_GROUP_INSTANCE_ID=name) for name in ("i-0", "i-1")]
    await asyncio.to_thread(it.both_at_work)
    assert await asyncio.to_thread(stopped, processes[0]) == 0
    await asyncio.to_thread(it.wait_done)


@pytest.mark.parametrize(
    ("handler", "code", "says"),
    [
        pytest.param("plain", 3, "failed 3 times", marks=pytest.mark.long),
        ("leaves", 3, "failed once at {}:0 offset 4: SystemExit"),
        ("interrupts", 3, "failed once at {}:0 offset 4: KeyboardInterrupt"),
        ("task_leaves", 1, "ended the event loop"),
    ],
)
async def test_a_record_that_fails_for_good_or_calls_sys_exit_stops_the_daemon_with_an_error(
    make: Callable[..., Setup], handler: str, code: int, says: str
) -> None:
    it = make()
    it.fill(10)
    process = it.run(it.config(handler), POISON="4")
    assert process.wait(60) == code
    committed = await it.committed()
    # the last commit may fail before, because the end of the loop has ended the membership too
    line = [line for line in it.logs() if line["level"] == "error"][-1]
    assert says.format(it.topic) in line["message"]
    if code == 3:
        assert [entry["offset"] for entry in it.done()] == list(range(4))
        assert committed == {0: 4}
        assert (line["topic"], line["partition"], line["offset"]) == (it.topic, 0, 4)
    else:
        assert committed.get(0, 0) <= 4


@pytest.mark.parametrize(
    "version", ["3.9.1", *(pytest.param(version, marks=pytest.mark.long) for version in ("0.8.2.2", "0.9.0.1"))]
)
async def test_a_dead_letter_has_the_record_and_its_origin(
    make: Callable[..., Setup], topic_factory: Callable[..., str], cluster_factory: Any, version: str
) -> None:
    """Clusters before 0.11 have no headers; there the letter has only the key and value."""
    cluster = cluster_factory(kafka=version)
    it = make(cluster=cluster)
    letters = topic_factory(1, cluster=cluster)
    it.fill(100)
    process = it.run(it.config(handler={"dead_letter_topic": letters}), POISON="40")
    it.wait_done(99)
    assert stopped(process) == 0
    assert await it.committed() == {0: 100}
    async with KafkaClient(cluster.bootstrap) as client:
        bounds = await (reader := RangeReader(client)).bounds([TopicPartition(letters, 0)])
        (letter,) = [record async for batch in reader.read(bounds) for record in batch]
    assert letter.value == b"40"
    if version == "3.9.1":
        origin = origin_of(letter)
        assert (origin.partition, origin.offset, origin.group) == (TopicPartition(it.topic, 0), 40, it.group)
        assert (origin.error, origin.attempts) == ("builtins.ValueError: this record is poison", 3)


async def test_a_dead_letter_that_its_topic_rejects_is_named_and_later_ones_are_written(
    kafka_cluster: Any, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(1, config={"max.message.bytes": "4500"})
    letters = DeadLetterTopic(topic, kafka_cluster.bootstrap, "billing")
    large, small = (Record("orders", 3, 17, 1234, 0, None, bytes(size), []) for size in (5000, 0))
    try:
        with pytest.raises(BrokerError, match=rf"{topic}' did not accept orders:3 offset 17: .*TOO_LARGE") as error:
            await letters.send([large], ValueError("bad"), 1)
        assert not error.value.retriable
        assert error.value.code == 10
        await asyncio.gather(*(letters.send([small] * 2, ValueError("bad"), 1) for _ in range(3)))
    finally:
        await letters.close()
        await letters.close()
    async with Consumer(topic, brokers=kafka_cluster.bootstrap, group=None, membership="fixed") as consumer:
        assert await consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 6}


async def test_a_letter_that_is_too_large_ends_the_daemon_at_once_and_no_other_letter_is_repeated(
    make: Callable[..., Setup], topic_factory: Callable[..., str]
) -> None:
    """A restart would fail in the same way, and a supervisor that tries it would add letters without end."""
    it = make()
    letters = topic_factory(1, config={"max.message.bytes": "20000"})
    produce(it.cluster.bootstrap, it.topic, [b"0", b"1", b"2", bytes(30_000)])  # one batch
    handler = {"mode": "batch", "dead_letter_topic": letters}
    assert it.run(it.config("batch_fails", handler=handler)).wait(60) == 3
    named = f"its dead letter is refused: topic {letters!r} did not accept {it.topic}:0 offset 3: "
    assert any(named in line["message"] for line in it.logs() if line["level"] == "error")
    assert await it.committed() == {0: 0}
    async with KafkaClient(it.cluster.bootstrap) as client:
        bounds = await (reader := RangeReader(client)).bounds([TopicPartition(letters, 0)])
        written = [origin_of(record).offset async for batch in reader.read(bounds) for record in batch]
    assert written == [0, 1, 2]


async def test_a_second_signal_stops_at_once_and_commits_nothing(make: Callable[..., Setup]) -> None:
    it = make()
    it.fill(10)
    process = it.run(it.config("blocks"))
    it.wait_done(1)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: any("draining" in line["message"] for line in it.logs()), 30, "the log line of the first signal")
    assert process.poll() is None
    assert stopped(process, signal.SIGINT) == 128 + signal.SIGINT
    assert await it.committed() == {}


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
async def test_a_handler_process_ends_with_its_daemon(make: Callable[..., Setup], ending: signal.Signals) -> None:
    it = make()
    it.fill(10)
    release = it.directory / "release"
    config = it.config("held", handler={"workers": "processes"})
    first = it.run(config, RELEASE_FILE=str(release))

    def called() -> list[int]:
        return [entry["pid"] for entry in it.done() if entry["offset"] == 5 and "begun" in entry]

    wait_until(called, 60, "a call that does not end")
    (child,) = called()
    assert child != first.pid
    first.send_signal(ending)
    if ending is signal.SIGTERM:
        wait_until(lambda: any("draining" in line["message"] for line in it.logs()), 30, "the first signal")
        first.send_signal(ending)  # stops at once
    first.wait(30)
    wait_until(lambda: not alive(child), 10, "the process of the handler to end")
    it.run(config, RELEASE_FILE=str(release))
    wait_until(lambda: len(called()) == 2, 60, "the next owner to handle the record again")
    release.touch()
    it.wait_done()
    ends = [entry["pid"] for entry in it.done() if entry["offset"] == 5 and "begun" not in entry]
    assert ends == called()[1:], "no call of the former owner had an effect"


def alive(pid: int) -> bool:
    """Returns whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("handler", ["swallows", pytest.param("blocks", marks=pytest.mark.long)])
async def test_a_handler_that_never_ends_does_not_keep_the_process_alive(
    make: Callable[..., Setup], handler: str
) -> None:
    it = make()
    it.fill(10)
    process = it.run(it.config(handler, handler={"drain_timeout_s": 0.5}))
    it.wait_done(1)
    assert stopped(process, signal.SIGHUP) == 1
    named = f"handler '{HANDLERS}:{handler}' did not end within drain_timeout_s = 0.5 at {it.topic}:0 offset 0"
    assert any(named in line["message"] for line in it.logs() if line["level"] == "error")
    assert any("SIGHUP: draining" in line["message"] for line in it.logs())
    assert any("still running and is cut off" in line["message"] for line in it.logs())
    assert await it.committed() == {0: 0}


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
async def test_another_sighup_stops_no_draining(make: Callable[..., Setup], first: signal.Signals) -> None:
    """A terminal that closes sends two: one comes from the kernel, and one from the shell. Any other signal does."""
    it = make()
    it.fill(10)
    release = it.directory / "release"
    process = it.run(it.config("held", handler={"drain_timeout_s": 60}), RELEASE_FILE=str(release))
    wait_until(lambda: any("begun" in entry and entry["offset"] == 5 for entry in it.done()), 60, "the call")
    for number in (first, signal.SIGHUP):
        before = len(it.logs())
        process.send_signal(number)
        wait_until(lambda: len(it.logs()) > before, 30, "the signal in the log")  # noqa: B023
    release.touch()
    assert process.wait(60) == 0
    assert await it.committed() == {0: 6}


async def test_sighup_after_the_draining_changes_no_exit_code(make: Callable[..., Setup]) -> None:
    """systemd's SendSIGHUP, and a terminal that closes, may send it at any moment before the process has ended."""
    it = make()
    it.fill(10)
    release = it.directory / "release"
    process = it.run(it.config("lingers"), RELEASE_FILE=str(release))
    it.wait_done()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: any("exits" in entry for entry in it.done()), 60, "the interpreter to exit")
    process.send_signal(signal.SIGHUP)
    release.touch()
    assert process.wait(60) == 0


async def test_a_partition_does_not_move_while_a_call_runs_even_after_drain_timeout_s(
    make: Callable[..., Setup],
) -> None:
    it = make(partitions=2)
    it.fill(40)
    release = it.directory / "release"
    config = it.config("held", handler={"drain_timeout_s": 0.2})
    first = it.run(config, RELEASE_FILE=str(release))
    it.wait_done(10)
    wait_until(lambda: sum("begun" in entry and entry["offset"] == 5 for entry in it.done()) == 2, 60, "two calls")
    second = it.run(config, RELEASE_FILE=str(release))
    late = "the handler has not returned within 0.2 s"
    wait_until(lambda: any(late in line["message"] for line in it.logs()), 60, "the time to drain to be over")
    # a daemon of another group starts, handles all and leaves; the second one would have begun before
    done = it.directory / "done-by-another"
    another = it.run(it.config(group={"name": f"{it.group}-another"}), DONE_FILE=str(done))
    wait_until(lambda: done.exists() and done.read_text().count("\n") == 40, 60, "the other group to handle all")
    assert stopped(another) == 0
    assert {entry["pid"] for entry in it.done()} == {first.pid}
    release.touch()
    it.wait_done()
    it.both_at_work()
    for partition in range(2):
        entries = [entry for entry in it.done() if entry["partition"] == partition]
        assert [e["offset"] for e in entries] == [n // 2 for n in range(len(entries))]  # begun and ended, in order
    assert [stopped(process) for process in (first, second)] == [0, 0]


def test_systemd_is_notified_when_the_daemon_is_ready_and_when_it_stops(
    make: Callable[..., Setup], tmp_path: Path
) -> None:
    it = make()
    it.fill(10)
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(30)
        process = it.run(it.config(), NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000")
        states: set[bytes] = set()
        while not {b"READY=1", b"WATCHDOG=1", b"STATUS=1 partitions"} <= states:
            states.add(listener.recv(1000))
        assert stopped(process) == 0
        while b"STOPPING=1" not in states:
            states.add(listener.recv(1000))


# -- --check needs no servers ------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path) -> Setup:
    class Nowhere:
        bootstrap = "127.0.0.1:1"

    return Setup(Nowhere(), "127.0.0.1:1", "t", "g", tmp_path)  # type: ignore[arg-type]


def test_check_shows_valid_settings_and_names_faults(offline: Setup) -> None:
    valid = offline.check(
        offline.config(zookeeper={"digest_username": "u"}), ALLOCATOR_ZOOKEEPER_DIGEST_PASSWORD="hunter2"
    )
    assert valid.exit_code == 0, valid.stderr
    assert 'digest_password = "***"' in valid.stdout
    assert "hunter2" not in valid.stdout + valid.stderr
    wrong = offline.check(offline.config("plan"))
    assert wrong.exit_code == 2
    assert "did you mean 'plain'?" in wrong.stderr
