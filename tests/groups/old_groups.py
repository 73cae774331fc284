"""Groups with members of allocator and of other clients, each member in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from kazoo.exceptions import NoNodeError

from allocator.testing import LocalCluster, wait_until
from allocator.testing.classes import using
from allocator.testing.jars import cache_directory, class_path
from allocator.testing.java import find_java
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import kafka_release
from tests.outside.java_tools import QUICK_JVM

HERE = Path(__file__).parent


def find_python(version: str) -> str | None:
    """An interpreter of exactly this version (as "2.7") that works: on PATH, or one of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}*/bin/python{version}"))]
    for path in filter(None, found):
        shown = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if shown.stdout.strip() == version:
            return str(path)
    return None


def python_with(name: str, versions: Sequence[str], packages: Sequence[str]) -> str:
    """The Python of an environment with these packages, created once in the cache; skips without an interpreter."""
    interpreter = next(filter(None, map(find_python, versions)), None)
    if interpreter is None:
        pytest.skip(f"{name} needs Python {' or '.join(versions)}, which is neither on PATH nor among pyenv's")
    place = cache_directory() / "clients" / name
    python, done = place / "bin" / "python", place / "done"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            tool = place / "tool"
            pip = ["-m", "pip", "install", "-q"]
            for command in (
                [sys.executable, "-m", "venv", str(tool)],
                [str(tool / "bin" / "python"), *pip, "virtualenv<20.22"],  # the last that knows 2.7
                [str(tool / "bin" / "virtualenv"), "-q", "-p", interpreter, str(place)],
                [str(python), *pip, *packages],
            ):
                ended = subprocess.run(command, capture_output=True, text=True)
                if ended.returncode:
                    pytest.skip(f"{name} could not be installed: {(ended.stderr or ended.stdout).strip()[-500:]}")
            done.touch()
    return str(python)


def kiel_python() -> str:
    """Python 2.7: on a newer one kiel 0.9.3 writes text to a znode, which is a TypeError there."""
    packages = ["kiel==0.9.3", "tornado==4.5.3", "kazoo==2.6.1", "six"]
    return python_with("kiel-0.9.3", ["2.7"], packages)


def pykafka_python() -> str:
    return python_with("pykafka-2.8", ["3.8", "3.9", "3.10"], ["pykafka==2.8.0"])


class Member:
    """One process; `output` holds its lines, `log` its errors."""

    def __init__(self, kind: str, command: Sequence[str]) -> None:
        self.kind = kind
        self.output: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # Kafka's console consumer prints nothing but the values
            entry = json.loads(line)
            self.output.append(
                entry if isinstance(entry, dict) else {"what": "got", "values": [entry], "t": time.time()}
            )

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def reported(self, what: str) -> bool:
        return any(line["what"] == what for line in self.output)

    @property
    def values(self) -> list[int]:
        return [value for line in tuple(self.output) if line["what"] == "got" for value in line["values"]]

    @property
    def held(self) -> set[int]:
        if self.process.poll() is not None:
            return set()
        return set(_held(tuple(self.output))[0])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._gone()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._gone()
        assert self.process.returncode == 0, "".join(self.log)[-4000:]

    def _gone(self) -> None:
        self.process.wait(60)
        for reader in self._readers:
            reader.join(10)


class OldGroup:
    """Members of one group on one topic, and their processing."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, partitions: int) -> None:
        self.cluster, self.topic, self.group, self.partitions = cluster, topic, group, partitions
        self.members: list[Member] = []
        self.produced = 0

    def start(self, kind: str, command: Sequence[str]) -> Member:
        member = Member(kind, command)
        self.members.append(member)
        return member

    def allocator(self, membership: str, settle_s: float = 3.0, **options: Any) -> Member:
        arguments = {
            "topic": self.topic,
            "brokers": self.cluster.bootstrap,
            "group": self.group,
            "zookeeper": self.cluster.zookeeper,
            "membership": membership,
            "joins": {"session_timeout_s": 4.0, "settle_s": settle_s},
            **options,
        }
        return self.start("allocator", [sys.executable, str(HERE / "allocator_member.py"), json.dumps(arguments)])

    def kiel(self) -> Member:
        script = str(HERE / "kiel_member.py")
        cluster = self.cluster
        return self.start("kiel", [kiel_python(), script, cluster.bootstrap, cluster.zookeeper, self.group, self.topic])

    def pykafka(self) -> Member:
        cluster = self.cluster
        arguments = [cluster.bootstrap, cluster.zookeeper, self.group, self.topic, str(cluster.version)[:5]]
        return self.start("pykafka", [pykafka_python(), str(HERE / "pykafka_member.py"), *arguments])

    def java(self, directory: Path, **settings: str) -> Member:
        """Kafka's console consumer of 0.8.2.2, whatever the cluster is."""
        java = find_java()
        written = directory / f"consumer-{len(self.members)}.properties"
        lines = {
            "group.id": self.group,
            "zookeeper.connect": self.cluster.zookeeper,
            "zookeeper.session.timeout.ms": "4000",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": "200",
            **settings,
        }
        written.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        jars = kafka_release("0.8.2.2").jars
        command = [java.executable, *QUICK_JVM, *using(java, jars), "-cp", class_path(jars)]
        command += ["kafka.tools.ConsoleConsumer", "--zookeeper", self.cluster.zookeeper, "--topic", self.topic]
        return self.start("java", [*command, "--consumer.config", str(written)])

    def close(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.kill()

    def produce(self, count: int) -> None:
        numbers = range(self.produced, self.produced + count)
        records = [(None, json.dumps(number).encode(), number % self.partitions) for number in numbers]
        self.cluster.produce(self.topic, records)
        self.produced += count

    @contextlib.contextmanager
    def producing(self) -> Iterator[None]:
        """Produces records during the block."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.2):
                self.produce(12)

        producer = threading.Thread(target=run)
        producer.start()
        try:
            yield
        finally:
            stop.set()
            producer.join()

    # -- conditions ---------------------------------------------------------------------------------------------

    def shared(self, *members: Member, timeout_s: float = 60.0) -> None:
        """Waits until each of these members owns about equally many partitions, and each partition has one owner."""

        def even() -> bool:
            held = [member.held for member in members]
            whole = sorted(number for parts in held for number in parts) == list(range(self.partitions))
            return whole and max(map(len, held)) - min(map(len, held)) <= 1

        wait_until(even, timeout_s, lambda: f"every partition to be held once: {self.shown()}")

    def claims(self) -> dict[str, set[int]]:
        """Member -> partitions, from the owner znodes, in the layout of Kafka or pykafka."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        base = f"/consumers/{self.group}/owners"
        with zookeeper_client(self.cluster.zookeeper) as client:
            for path in (f"{base}/{self.topic}", f"{base}/b'{self.topic}'"):
                for name in client.get_children(path) if client.exists(path) else ():
                    with contextlib.suppress(NoNodeError):
                        found[client.get(f"{path}/{name}")[0].decode()].add(int(name.rpartition("-")[2]))
        return dict(found)

    def in_zookeeper(self) -> dict[int, int]:
        """The offsets that are committed in ZooKeeper, by partition."""
        path = f"/consumers/{self.group}/offsets/{self.topic}"
        with zookeeper_client(self.cluster.zookeeper) as client:
            names = client.get_children(path) if client.exists(path) else ()
            return {int(name): int(client.get(f"{path}/{name}")[0]) for name in names}

    def claimed(self, members: int, timeout_s: float = 60.0) -> None:
        """Waits until so many members claim all partitions, about equally many each."""

        def even() -> bool:
            held = list(self.claims().values())
            whole = sorted(number for parts in held for number in parts) == list(range(self.partitions))
            return whole and len(held) == members and max(map(len, held)) - min(map(len, held)) <= 1

        wait_until(even, timeout_s, lambda: f"{members} to claim: {self.claims()}\n{self.shown()}", interval_s=0.2)

    def all_read(self, timeout_s: float = 60.0) -> None:
        wait_until(lambda: not self.lost(), timeout_s, lambda: f"{sorted(self.lost())} to be read\n{self.shown()}")

    def shown(self) -> str:
        return "\n".join(
            f"{m.kind} {m.process.pid} ({m.process.poll()}): {sorted(m.held)}; {len(m.values)} values; "
            + "".join(m.log[-3:])
            for m in self.members
        )

    # -- the history ---------------------------------------------------------------------------------------------

    def lost(self) -> set[int]:
        return set(range(self.produced)) - {value for member in self.members for value in member.values}

    def repeated(self) -> int:
        """Number of repeated records."""
        counts = Counter(value for member in self.members for value in member.values)
        return sum(count > 1 for count in counts.values())

    def overlaps(self, kinds: Callable[[str, str], bool]) -> dict[int, float]:
        """Seconds in which two members of such kinds held a partition, by partition."""
        spans = defaultdict(list)
        for index, member in enumerate(self.members):
            for number, begin, end in _spans(member.output):
                spans[number].append((begin, end, index, member.kind))
        found: defaultdict[int, float] = defaultdict(float)
        for number, all_of_it in spans.items():
            for place, (begin, end, index, kind) in enumerate(all_of_it):
                for other_begin, other_end, other, other_kind in all_of_it[:place]:
                    both = min(end, other_end) - max(begin, other_begin)
                    if other != index and both > 0 and kinds(kind, other_kind):
                        found[number] += both
        return dict(found)


Span = tuple[int, float, float]
"""(partition, from, to)."""


def _held(output: Iterable[dict[str, Any]]) -> tuple[dict[int, float], list[Span]]:
    """Returns the partitions that a member holds after this output, each with its start, and the ended spans."""
    since: dict[int, float] = {}
    spans: list[Span] = []
    for line in output:
        what, at, parts = line["what"], line["t"], set(line.get("partitions", ()))
        held = {"holds": parts, "begin": since.keys() | parts, "end": since.keys() - parts, "left": set()}.get(what)
        if held is not None:
            spans += [(number, since.pop(number), at) for number in since.keys() - held]
            since |= dict.fromkeys(held - since.keys(), at)
    return since, spans


def _spans(output: list[dict[str, Any]]) -> list[Span]:
    """A killed member held its partitions until its last line."""
    since, spans = _held(output)
    return spans + [(number, begin, output[-1]["t"]) for number, begin in since.items()]
