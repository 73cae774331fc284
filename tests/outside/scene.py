"""A mixed group: starts and stops members of several clients, and checks their journals.

Every member writes a journal as `bench.faults.journal` describes it, or a text that `translate` turns into one. The
checker of the faults (`bench.faults.check`) then finds records that were lost or repeated, and partitions with two
owners.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from allocator.testing import LocalCluster, wait_until
from bench.faults.check import Verdict, check
from bench.faults.group import Settings
from bench.faults.history import History, add
from bench.faults.run import end_offsets, pinned_version
from tests.outside.go_clients import as_event, program
from tests.outside.java_tools import command, number, properties

MEMBERS = Path(__file__).parent / "members"
ROOT = Path(__file__).parent.parent.parent
SESSION_S = 6.0
PARTITIONS = 6

Event = dict[str, Any]
Translate = Callable[[Event, float], Iterable[Event]]


class Member:
    """One process. `journal` is where its lines go: its own file, or its standard output."""

    def __init__(self, name: str, argv: Sequence[str], directory: Path, translate: Translate | None) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.journal = directory / f"{name}.jsonl"
        self.died: float | None = None
        self._translate = translate
        self._read = 0
        self.events: list[Event] = []
        self.done: set[tuple[int, int]] = set()
        """(partition, offset) of the records that it worked on."""
        self.left = False
        self._held: set[int] = set()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])}
        # the difference between the clock of the journals and the wall clock, which Java and Go use
        self._offset = time.time() - time.monotonic()
        with self.log.open("wb") as log, self.journal.open("wb") as output:
            self.process = subprocess.Popen(
                argv, stdout=log if translate is None else output, stderr=log, env=environment, stdin=subprocess.DEVNULL
            )

    def read(self) -> None:
        """Reads the new lines since the last call."""
        with self.journal.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
        self._read += len(whole)
        for line in whole.splitlines():
            if self._translate is None:
                self._note(json.loads(line))
            elif line.startswith(b"{"):
                for event in self._translate(json.loads(line), self._offset):
                    self._note(event)

    def _note(self, event: Event) -> None:
        what = event["what"]
        if what == "did":
            self.done.add((event["partition"], event["offset"]))
        elif what == "own":
            self._held.update(event["partitions"])
        elif what in ("revoked", "lost"):
            self._held.difference_update(event["partitions"])
        elif what == "left":
            if self._held:
                # Java before 2.4 does not report the partitions that it revokes when it leaves
                self._note({"at": self.events[-1]["at"], "what": "revoked", "partitions": sorted(self._held)})
            self.left = True
        self.events.append(event)

    @property
    def held(self) -> frozenset[int]:
        """The partitions that it owns. Raises AssertionError if the process ended by itself."""
        self.read()
        ended = self.died is None and not self.left and self.process.poll() is not None
        assert not ended, f"{self.name} ended by itself:\n{self.tail()}"
        return frozenset(self._held)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.died = time.monotonic()
        self.read()

    def leave(self, timeout_s: float = 40.0) -> None:
        """Stops it with SIGTERM. Raises subprocess.TimeoutExpired."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout_s)
        self.read()
        assert self.left, f"{self.name} did not report that it left:\n{self.tail()}"


class Scene:
    """A group on a topic with `PARTITIONS` partitions; its journals and logs are in `directory`.

    `close` ends all its processes. `holds` is True once `verdict` has found no violation.
    """

    def __init__(self, cluster: LocalCluster, topic: str, group: str, directory: Path) -> None:
        self.cluster, self.topic, self.group, self.directory = cluster, topic, group, directory
        self.all: list[Member] = []
        self.members: list[Member] = []
        self.holds = False
        self._producer: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        self.stop_load()
        for member in self.all:
            if member.process.poll() is None:
                member.kill()

    # -- events -----------------------------------------------------------------------------------------------------

    def start(self, kind: str, argv: Sequence[str], translate: Translate | None = None) -> Member:
        member = Member(f"{len(self.all):02d}-{kind}", argv, self.directory, translate)
        self.all.append(member)
        self.members.append(member)
        return member

    def allocator(
        self, assignor: str, handler_s: float = 0.0, commit_s: float = 0.2, group_protocol: str = "classic"
    ) -> Member:
        settings = self._settings("allocator")
        consumer = {"brokers": self.cluster.bootstrap, "group": self.group, "client_id": settings["name"]}
        joins: dict[str, Any] = {"group_protocol": group_protocol, "rebalance_timeout_s": 30.0}
        if group_protocol == "classic":
            consumer["assignor"] = assignor
            joins |= {"session_timeout_s": SESSION_S, "heartbeat_interval_s": 0.3}
        settings |= {"handler_s": handler_s, "commit_s": commit_s, "consumer": consumer, "joins": joins}
        return self.start("allocator", [sys.executable, str(MEMBERS / "allocator_member.py"), json.dumps(settings)])

    def _settings(self, kind: str) -> dict[str, Any]:
        """The settings of the next member, if it is of that kind."""
        name = f"{len(self.all):02d}-{kind}"
        return {
            "name": name,
            "journal": str(self.directory / f"{name}.jsonl"),
            "brokers": self.cluster.bootstrap,
            "zookeeper": self.cluster.zookeeper,
            "group": self.group,
            "topic": self.topic,
        }

    def grouped(self, membership: str) -> Member:
        """`GroupedConsumer`, used like kiel's."""
        settings = {**self._settings("grouped"), "partitions": PARTITIONS, "membership": membership}
        return self.start("grouped", [sys.executable, str(MEMBERS / "grouped.py"), json.dumps(settings)])

    def kiel(self, python: str) -> Member:
        """kiel's own consumer, on the Python 2.7 that has it."""
        settings = {**self._settings("kiel"), "session_timeout_s": 4.0, "work_s": 0.0}
        return self.start("kiel", [python, str(ROOT / "bench/faults/members/kiel_member.py"), json.dumps(settings)])

    def java(self, version: str, assignor: str) -> Member:
        """VerifiableConsumer of that version; `assignor` may be "consumer" for the protocol of KIP-848."""
        settings: dict[str, object] = {"max_poll_interval_ms": 60000, "metadata_max_age_ms": 1000}
        arguments = ["--topic", self.topic, "--group-id", self.group, "--reset-policy", "earliest"]
        if assignor == "consumer":
            arguments += ["--group-protocol", "consumer"]
        else:
            settings["heartbeat_interval_ms"] = 300
            arguments += ["--session-timeout", str(int(SESSION_S * 1000)), "--assignment-strategy", JAVA[assignor]]
        file = properties(self.directory / f"{len(self.all):02d}-java.properties", **settings)
        arguments += ["--broker-list" if number(version) < (2, 5) else "--bootstrap-server", self.cluster.bootstrap]
        arguments += ["--consumer.config", file]
        return self.start("java", command(version, "VerifiableConsumer", *arguments), verifiable)

    def go(self, client: str, assignor: str) -> Member:
        """franz, sarama or kafkago."""
        argv = [program(client), self.cluster.bootstrap, self.group, self.topic, assignor]
        return self.start(client, argv, as_event)

    def produce(self, version: str, rate: int = 150) -> None:
        """VerifiableProducer, until `stop_load`; `rate` in records a second."""
        brokers = "--broker-list" if number(version) < (2, 5) else "--bootstrap-server"
        arguments = ["--topic", self.topic, brokers, self.cluster.bootstrap, "--throughput", str(rate)]
        with (self.directory / "producer.jsonl").open("wb") as output:
            self._producer = subprocess.Popen(
                command(version, "VerifiableProducer", *arguments), stdout=output, stderr=subprocess.STDOUT
            )

    def stop_load(self) -> None:
        if self._producer is not None:
            self._producer.terminate()
            self._producer.wait(30)
            self._producer = None

    def kill(self, member: Member) -> None:
        self.members.remove(member)
        member.kill()

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.leave()

    # -- waiting --------------------------------------------------------------------------------------------

    def shared(self, timeout_s: float = 60.0) -> None:
        """Waits until each partition has one owner, and each member owns some."""

        def done() -> bool:
            held = [member.held for member in self.members]
            return all(held) and sorted(n for each in held for n in each) == list(range(PARTITIONS))

        wait_until(done, timeout_s, lambda: f"every partition to have one owner\n{self.shown()}", interval_s=0.1)

    def moving(self, timeout_s: float = 60.0) -> None:
        """Waits until each member has processed new records."""
        before = {member: len(member.done) for member in self.members if member.held}
        wait_until(
            lambda: all(member.held and len(member.done) > count for member, count in before.items()),
            timeout_s,
            lambda: f"each member to get records\n{self.shown()}",
            interval_s=0.1,
        )

    def all_done(self, timeout_s: float = 60.0) -> None:
        """Waits until every record was processed."""
        ends = self.ends()
        wanted = {(partition, offset) for partition, end in ends.items() for offset in range(end)}

        def missing() -> set[tuple[int, int]]:
            for member in self.members:
                member.read()
            return wanted.difference(*(member.done for member in self.all))

        wait_until(
            lambda: not missing(), timeout_s, lambda: f"{sorted(missing())[:20]} ...\n{self.shown()}", interval_s=0.2
        )

    def ends(self) -> dict[int, int]:
        return end_offsets(self.cluster, self.topic, Settings(partitions=PARTITIONS, kafka=self.cluster.version))

    def committed(self) -> dict[int, int]:
        """Partition -> committed offset, read with kafka-python from the group's coordinator."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap.split(","),
            group_id=self.group,
            enable_auto_commit=False,
            api_version=pinned_version(self.cluster.version),
        )
        try:
            found = {n: consumer.committed(TopicPartition(self.topic, n)) for n in range(PARTITIONS)}
        finally:
            consumer.close()
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def shown(self) -> str:
        lines = []
        for member in self.all:
            member.read()
            state = member.process.poll()
            lines.append(f"{member.name} ({'runs' if state is None else state}) holds {sorted(member._held)}")
        return "\n".join([*lines, f"journals and logs are in {self.directory}"])

    def history(self) -> History:
        history = History(ends=self.ends(), final=self.committed())
        for member in self.all:
            member.read()
            add(history, member.name, member.events, member.died)
        return history

    def verdict(self) -> Verdict:
        """Returns the result of the checker, after the last member has left."""
        verdict = check(self.history(), notified=True)
        self.holds = verdict.holds
        return verdict


JAVA = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def verifiable(line: Event, offset: float) -> Iterable[Event]:
    """VerifiableConsumer's events in the form of a journal. Its times are truncated to milliseconds."""
    name, at = line["name"], line["timestamp"] / 1000 - offset
    if name == "startup_complete":
        yield {"at": at, "what": "joined"}
    elif name == "partitions_assigned":
        yield {"at": at + 0.001, "what": "own", "partitions": [p["partition"] for p in line["partitions"]]}
    elif name == "partitions_revoked":
        yield {"at": at, "what": "revoked", "partitions": [p["partition"] for p in line["partitions"]]}
    elif name == "records_consumed":
        for part in line["partitions"]:
            if part["count"]:
                for number_ in range(part["minOffset"], part["maxOffset"] + 1):
                    yield {"at": at, "from": at, "what": "did", "partition": part["partition"], "offset": number_}
    elif name == "offsets_committed":
        offsets = {str(each["partition"]): each["offset"] for each in line["offsets"]}
        if offsets:
            yield {"at": at, "what": "commit" if line["success"] else "refused", "offsets": offsets}
    elif name == "shutdown_complete":
        yield {"at": at, "what": "left"}
