"""Plays one history with several clients, each in its own group on the same topic, and compares them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from allocator.testing import LocalCluster
from allocator.testing.java import find_java
from allocator.testing.versions import KAFKA
from tests.outside.java_tools import QUICK_JVM, compiled, number, tools_class_path
from tests.outside.twin import history as h
from tests.outside.twin.differences import Difference, reasons

JAVA = Path(__file__).with_name("Twin.java")
CLIENTS = Path(__file__).with_name("clients.py")
SHARE_S = 60.0  # for a group to share its partitions; members look for new ones every ten seconds
READ_S = 30.0  # for the ends of the partitions
GRACE_S = 5.0  # for the same, of clients that have a reason not to get there
NOTICE_S = 6.0  # for members to notice that their topic is gone, which not all do
CONVERGE_S = 20.0  # for automatic commits
ADMIN_S = 20.0  # for a request of an admin client
ADMINS = 30  # admin clients that are kept; one is created in a second, so each outlives its requests
SESSION_S, SHORT_SESSION_S = 30.0, 2.0  # the short one is for members that the history kills or freezes

Got = tuple[int, int, str]


class Host:
    """A process with members of one client, and their unanswered commands."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._argv, self._log = argv, log
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def start(self) -> Host:
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as log:
            # a group of processes of its own, so that a signal reaches the Java process too
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, stderr=log, limit=1 << 22, start_new_session=True
            )
        self._listening = asyncio.ensure_future(self._listen())
        return self

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            self._answers.pop(answer["number"]).set_result(answer)
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result({"error": f"the process ended; its log is {self._log}", "got": [], "errors": []})

    async def ask(self, member: str, what: str, *arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, member, what, arguments]).encode() + b"\n")
        done, _ = await asyncio.wait({answer}, timeout=60.0)
        return answer.result() if done else {"error": "no answer within 60 s", "got": [], "errors": []}

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:  # else the number may be another process's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def end(self) -> None:
        self.signal(signal.SIGKILL)
        await self._process.wait()
        await self._listening


class Hosts:
    """The processes of a run: one for each client, and one for each member that a history kills or freezes, until the
    history ends."""

    def __init__(self, cluster: LocalCluster, clients: Mapping[str, Sequence[str]], directory: Path) -> None:
        """`clients`: name -> further arguments of its process."""
        self.cluster, self.clients, self._directory = cluster, clients, directory
        self._shared: dict[str, asyncio.Task[Host]] = {}
        self._all: list[Host] = []
        # the last ones, because the answers that someone waits for would be lost with their client
        self._admins: deque[AdminClient] = deque(maxlen=ADMINS)
        self._connected_at = -math.inf
        self.connect()

    @property
    def admin(self) -> AdminClient:
        return self._admins[-1]

    def connect(self) -> None:
        """Creates another admin client, at most one in a second."""
        if time.monotonic() > self._connected_at + 1.0:
            self._connected_at = time.monotonic()
            self._admins.append(AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0}))

    async def shared(self, client: str) -> Host:
        if client not in self._shared:
            self._shared[client] = asyncio.ensure_future(self.own(client))
        return await self._shared[client]

    async def own(self, client: str) -> Host:
        host = Host([sys.executable, str(CLIENTS), client, *self.clients[client]], self._directory / f"{client}.log")
        self._all.append(host)
        return await host.start()

    async def __aenter__(self) -> Hosts:
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self._all:
            await host.end()


@dataclass(eq=False)
class Group:
    """The members of one client, and what they have done since the last mark."""

    client: str
    name: str
    members: dict[str, Host] = field(default_factory=dict)
    frozen: dict[str, Host] = field(default_factory=dict)
    own: list[Host] = field(default_factory=list)
    """Processes that no other group uses."""
    got: list[Got] = field(default_factory=list)
    seen: set[Got] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    hurry: bool = False
    """Whether nothing waits for this group any more."""

    async def ask(self, member: str, what: str, *arguments: Any) -> Any:
        answer = await self.members[member].ask(f"{self.name}-{member}", what, *arguments)
        self.got += [(partition, offset, value) for partition, offset, value in answer["got"]]
        self.errors += answer["errors"]
        if "error" in answer:
            self.errors.append(f"{what}: {answer['error']}")
            self.failed.append(what)
        return answer.get("ok")

    async def ask_all(self, what: str, *arguments: Any) -> list[Any]:
        return await asyncio.gather(*(self.ask(member, what, *arguments) for member in tuple(self.members)))

    async def close(self) -> None:
        for member, host in self.frozen.items():
            host.signal(signal.SIGCONT)
            self.members[member] = host
        try:
            await self.ask_all("stop")
        finally:
            await asyncio.gather(*(host.end() for host in self.own))

    async def until(self, what: str, timeout_s: float, done: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        end = time.monotonic() + timeout_s
        while self.members and not await done():
            if self.hurry or time.monotonic() > end:
                self.failed += [what] if what else []
                return
            await asyncio.sleep(0.05)

    async def shares(self, partitions: int) -> bool:
        """Returns whether each partition has one owner, and each member partitions if there are enough."""
        held = await self.ask_all("state")
        if any(each is None for each in held):
            return False
        owned = sorted(number for each in held for number in each)
        return owned == list(range(partitions)) and (all(held) or len(held) > partitions)

    async def read(self, ends: Mapping[int, int]) -> None:
        async def at_ends() -> bool:
            found = await self.ask_all("read", {str(partition): end for partition, end in ends.items()})
            return {number for each in found for number in each or ()} >= set(ends)

        await self.until("read", READ_S, at_ends)

    def taken(self, repeats: bool) -> list[Got]:
        """Returns the records since the last call: in the order of each partition, or only those without repeats."""
        got, self.got = self.got, []
        if repeats:
            return sorted(got, key=lambda each: each[0])
        new = sorted(set(got) - self.seen)
        self.seen.update(new)
        return new


class Twins:
    """Plays one history."""

    def __init__(self, hosts: Hosts, history: h.History) -> None:
        self._hosts, self._history = hosts, history
        self._topic = f"twin-{uuid.uuid4().hex[:8]}"
        self.groups = {client: Group(client, f"{self._topic}-{client}") for client in hosts.clients}
        self.differences: list[Difference] = []
        """What the clients did not do alike."""
        self._producers: dict[str, Producer] = {}  # by transactional id
        self._values = itertools.count()
        self._steps = 0
        self._scene = h.Scene(history.partitions)
        self._risky = {step.member for step in history.steps if isinstance(step, (h.Kill, h.Freeze))}

    async def play(self) -> list[Difference]:
        cluster = self._hosts.cluster
        await asyncio.to_thread(cluster.create_topic, self._topic, self._history.partitions)
        try:
            for step in self._history.steps:
                await getattr(self, f"_{type(step).__name__.lower()}")(step)
                self._scene = self._scene.after(step)
                self._steps += 1
        finally:
            with contextlib.suppress(Exception):
                await self._all(Group.close)
                self._producers.clear()
                await asyncio.to_thread(cluster.delete_topic, self._topic, timeout_s=0)
        return self.differences

    def broken(self, error: Exception) -> Difference:
        """Returns a difference that says why the history could not be played to its end."""
        found = {"the history": f"{type(error).__name__}: {error}"}
        errors = {client: group.errors[-3:] for client, group in self.groups.items()}
        return Difference(self._history, self._steps, "end", {**found, **errors})

    async def _all(self, do: Callable[[Group], Coroutine[Any, Any, object]]) -> None:
        """Calls `do` for all groups. A group that has a reason to differ is waited for only briefly."""
        doing = {group: asyncio.ensure_future(do(group)) for group in self.groups.values()}
        alike = Difference(self._history, self._steps, "failed", {client: ["share"] for client in self.groups})
        await asyncio.gather(*(task for group, task in doing.items() if not reasons(alike, group.client)))
        await asyncio.wait(doing.values(), timeout=GRACE_S)
        for group in doing:
            group.hurry = True
        await asyncio.gather(*doing.values())
        for group in doing:
            group.hurry = False

    # -- one method for each step ------------------------------------------------------------------------------------

    async def _produce(self, step: h.Produce) -> None:
        await asyncio.to_thread(self._append, step.partition, step.count, step.how)
        await self._ended(step.partition, step.how)

    async def _end(self, step: h.End) -> None:
        how = "committed" if step.commit else "aborted"
        await asyncio.to_thread(self._append, step.partition, 0, how, begin=False)
        await self._ended(step.partition, how)

    async def _ended(self, partition: int, how: str) -> None:
        """Waits for the markers: the coordinator confirms the end of a transaction before it has written them."""
        until = time.monotonic() + SHARE_S
        while how in ("committed", "aborted"):
            stable, end = [(await self._ends(committed=each))[partition] for each in (True, False)]
            if stable == end:
                return
            assert time.monotonic() < until, f"the end of a transaction did not become stable: {stable} of {end}"

    def _append(self, partition: int, count: int, how: str, begin: bool = True) -> None:
        name = f"{self._topic}-{partition}" if how != "plain" else ""
        if name not in self._producers:
            settings = {"bootstrap.servers": self._hosts.cluster.bootstrap, "linger.ms": 20, "log_level": 0}
            # a history may leave a transaction open for minutes
            own = {"transactional.id": name, "transaction.timeout.ms": 600_000} if name else {}
            self._producers[name] = Producer({**settings, **own})
            if name:
                self._producers[name].init_transactions(30.0)
        producer = self._producers[name]
        if name and begin:
            producer.begin_transaction()
        for _ in range(count):
            producer.produce(self._topic, f"{next(self._values)}-{how}", partition=partition)
        left = producer.flush(30.0)
        assert not left, f"{left} records were not produced"
        if how == "committed":
            producer.commit_transaction(30.0)
        elif how == "aborted":
            producer.abort_transaction(30.0)

    async def _deleterecords(self, step: h.DeleteRecords) -> None:
        end = (await self._ends(committed=False))[step.partition]
        before = end if step.before is None else min(step.before, end)
        await _result(self._hosts.admin.delete_records([TopicPartition(self._topic, step.partition, before)]))
        self._producers.pop(f"{self._topic}-{step.partition}", None)  # old brokers forget it with its records

    async def _deletetopic(self, _: h.DeleteTopic) -> None:
        # a producer of librdkafka can crash when its topic is deleted (librdkafka #5093), and its metadata get old
        self._producers.clear()
        await asyncio.to_thread(self._hosts.cluster.delete_topic, self._topic)
        await self._all(lambda group: group.until("", NOTICE_S, lambda: group.shares(0)))

    async def _createtopic(self, step: h.CreateTopic) -> None:
        await asyncio.to_thread(self._hosts.cluster.create_topic, self._topic, step.partitions)
        await self._all(lambda group: self._shared(group, step.partitions))

    async def _extend(self, step: h.Extend) -> None:
        await asyncio.to_thread(self._hosts.cluster.add_partitions, self._topic, step.partitions)
        self._producers.pop("", None)
        await self._all(lambda group: self._shared(group, step.partitions))

    async def _start(self, step: h.Start) -> None:
        risky = step.member in self._risky

        async def start(group: Group) -> None:
            host = await (self._hosts.own if risky else self._hosts.shared)(group.client)
            group.own += [host] if risky else []
            group.members[step.member] = host
            settings = self._settings(group.name, step.member, SHORT_SESSION_S if risky else SESSION_S)
            await group.ask(step.member, "start", settings, sorted(self._scene.paused))

        await self._moved(start)

    def _settings(self, group: str, member: str, session_s: float) -> dict[str, Any]:
        cluster, history = self._hosts.cluster, self._history
        return {
            "topic": self._topic,
            "zookeeper": cluster.zookeeper,
            "session_s": session_s,
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": f"{group}-{member}",
            "auto.offset.reset": history.reset,
            "enable.auto.commit": history.auto,
            "auto.commit.interval.ms": 200,
            "session.timeout.ms": int(session_s * 1000),
            "heartbeat.interval.ms": 300,
            "metadata.max.age.ms": 500,
            "fetch.max.wait.ms": 100,
            "isolation.level": "read_committed" if history.committed else "read_uncommitted",
        }

    async def _stop(self, step: h.Stop) -> None:
        async def stop(group: Group) -> None:
            await group.ask(step.member, "stop")
            group.members.pop(step.member)

        await self._moved(stop)

    async def _kill(self, step: h.Kill) -> None:
        await self._moved(lambda group: group.members.pop(step.member).end())

    async def _freeze(self, step: h.Freeze) -> None:
        async def freeze(group: Group) -> None:
            host = group.frozen[step.member] = group.members.pop(step.member)
            host.signal(signal.SIGSTOP)

        await self._moved(freeze)

    async def _thaw(self, step: h.Thaw) -> None:
        async def thaw(group: Group) -> None:
            host = group.members[step.member] = group.frozen.pop(step.member)
            host.signal(signal.SIGCONT)

        await self._moved(thaw)

    async def _moved(self, move: Callable[[Group], Coroutine[Any, Any, object]]) -> None:
        async def moved(group: Group) -> None:
            await move(group)
            if self._scene.exists:
                await self._shared(group, self._scene.partitions)

        await self._all(moved)

    async def _shared(self, group: Group, partitions: int) -> None:
        """Waits until the group has shared the partitions and knows where they start.

        One client tells that only by reading to the end, which matters with "latest".
        """
        await group.until("share", SHARE_S, lambda: group.shares(partitions))
        await group.ask_all("find")
        if self._history.reset == "latest":
            await group.read(await self._ends(partitions))

    async def _read(self, _: h.Read) -> None:
        ends = await self._ends()
        await self._all(lambda group: group.read(ends))

    async def _take(self, step: h.Take) -> None:
        await self._ask("take", step.partition, step.count, (await self._ends())[step.partition])

    async def _seek(self, step: h.Seek) -> None:
        offset = step.offset if step.offset >= 0 else (await self._ends())[step.partition] - step.offset
        await self._ask("seek", step.partition, offset)

    async def _pause(self, step: h.Pause) -> None:
        await self._ask("pause", step.partition)

    async def _resume(self, step: h.Resume) -> None:
        await self._ask("resume", step.partition)

    async def _commit(self, step: h.Commit) -> None:
        await self._ask("commit", step.partition, step.offset)

    async def _ask(self, what: str, *arguments: Any) -> None:
        await self._all(lambda group: group.ask_all(what, *arguments))

    async def _wait(self, step: h.Wait) -> None:
        await asyncio.sleep(step.seconds)

    async def _mark(self, _: h.Mark) -> None:
        await self._ask("state")  # brings what was delivered
        self._note("delivered", {client: group.taken(self._history.repeats) for client, group in self.groups.items()})
        until = time.monotonic() + (CONVERGE_S if self._history.auto and self._scene.live else 0.0)
        while True:
            committed = dict(zip(self.groups, await asyncio.gather(*map(self._committed, self.groups.values()))))
            seen = Difference(self._history, self._steps, "committed", committed)
            if not seen.unexplained() or time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        self._note("committed", committed)
        self._note("failed", {client: group.failed for client, group in self.groups.items()})
        for group in self.groups.values():
            group.failed = []

    def _note(self, facet: str, found: Mapping[str, Any]) -> None:
        if len({json.dumps(each) for each in found.values()}) > 1:
            self.differences.append(Difference(self._history, self._steps, facet, found))

    # -- offsets -----------------------------------------------------------------------------------------------------

    async def _ends(self, partitions: Optional[int] = None, committed: Optional[bool] = None) -> dict[int, int]:
        """Returns the offset after the last visible record, or marker, of each partition."""
        committed = self._history.committed if committed is None else committed
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        number = self._scene.partitions if partitions is None else partitions
        wanted = {TopicPartition(self._topic, each): OffsetSpec.latest() for each in range(number)}
        found = await self._asked(lambda admin: admin.list_offsets(wanted, isolation_level=level))
        return {each.partition: result.offset for each, result in found.items()}

    async def _committed(self, group: Group) -> dict[int, int]:
        wanted = [ConsumerGroupTopicPartitions(group.name)]
        found = await self._asked(lambda admin: admin.list_consumer_group_offsets(wanted))
        offsets = {each.partition: each.offset for result in found.values() for each in result.topic_partitions}
        return {partition: offset for partition, offset in sorted(offsets.items()) if offset >= 0}

    async def _asked(self, request: Callable[[AdminClient], Any]) -> dict[Any, Any]:
        until = time.monotonic() + READ_S
        while True:
            try:
                return await asyncio.wait_for(_result(request(self._hosts.admin)), ADMIN_S)
            except (KafkaException, asyncio.TimeoutError):  # such as a coordinator that still loads
                if time.monotonic() > until:
                    raise
                self._hosts.connect()  # a client keeps old metadata, without a topic or partition that is new
                await asyncio.sleep(0.1)


async def _result(futures: Any) -> dict[Any, Any]:
    """Returns the results of an admin request by key. The futures belong to a thread of librdkafka."""
    done = await asyncio.gather(*(asyncio.wrap_future(each) for each in futures.values()))
    return dict(zip(futures, done))


def clients_for(version: str) -> dict[str, Sequence[str]]:
    """Returns the clients that can use brokers of this version, with the arguments of their processes."""
    # Java's client 2.0 is the first that the program can use, and 4.0 the first that rejects brokers before 2.1
    java = version if number(version) >= (2,) else "2.8.2"
    path = os.pathsep.join([compiled(JAVA, java), tools_class_path(java)])
    argv = [find_java(KAFKA[java].oldest_java).executable, *QUICK_JVM, "-cp", path, "Twin"]
    newest = {"allocator-kip848": []} if number(version) >= (4,) else {}
    return {
        "allocator-zookeeper": [],
        "allocator-kafka": [],
        **newest,
        **dict.fromkeys(("aiokafka", "kafka-python", "confluent-kafka"), ()),
        "java": argv,
    }
