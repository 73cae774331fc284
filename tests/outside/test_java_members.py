"""Groups of allocator's members and Java's VerifiableConsumer, with five versions of Kafka's client.

The first member is the leader; when it leaves, the coordinator chooses another.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable

import pytest
from java_tools import command, number, properties
from play import play
from scene import PARTITIONS, Member, Scene

from allocator.testing import wait_until
from allocator.testing.versions import NEWEST

long = pytest.mark.long

# as many assignors as that version of the Java client has
JAVA = {
    "0.10.2.2": ("range", "roundrobin"),
    "1.1.1": ("range", "roundrobin", "sticky"),
    "2.8.2": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "3.9.1": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    NEWEST: ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer"),
}
CASES = [
    pytest.param(version, assignor, first, handler_s, id=f"{version}-{assignor}-{first}-first-{handler_s:g}s")
    for version, assignors in JAVA.items()
    for assignor in assignors
    for first, handler_s in (("java", 3.0), ("ours", 0.0), ("java", 0.0), ("ours", 3.0))
    # all combinations of assignors with which members keep their partitions
    if "sticky" in assignor or assignor == "consumer" or (first == "java") == (handler_s > 0)
]


def ours(scene: Scene, assignor: str, handler_s: float) -> Callable[[], Member]:
    protocol = {"group_protocol": "consumer"} if assignor == "consumer" else {}
    return lambda: scene.ours(assignor, handler_s, **protocol)


@long
@pytest.mark.parametrize(("version", "assignor", "first", "handler_s"), CASES)
def test_nothing_is_lost_and_nobody_owns_together(
    version: str, assignor: str, first: str, handler_s: float, scene_on: Callable[[str], Scene]
) -> None:
    scene = scene_on(version)
    sides = [lambda: scene.java(version, assignor), ours(scene, assignor, handler_s)]
    play(scene, *(sides if first == "java" else reversed(sides)), producer=version)


@long
def test_a_java_leader_without_generations_of_its_own_in_the_metadata(scene_on: Callable[[str], Scene]) -> None:
    """The Java client of 2.8 reads each member's generation from the user data of `cooperative-sticky`."""
    scene = scene_on("3.9.1")
    play(scene, lambda: scene.java("2.8.2", "cooperative-sticky"), ours(scene, "cooperative-sticky", 3.0))


@long
@pytest.mark.parametrize("leader", ["java", "ours"])
def test_commits_at_every_moment_of_a_rebalance_cost_no_partition(
    leader: str, scene_on: Callable[[str], Scene]
) -> None:
    """A commit that the coordinator refuses because it comes between two generations belongs to the next one."""
    scene = scene_on("3.9.1")
    scene.produce("3.9.1")
    sides = [lambda: scene.java("3.9.1", "cooperative-sticky"), lambda: scene.ours("cooperative-sticky", commit_s=0.02)]
    for start in sides if leader == "java" else reversed(sides):
        start()
        scene.shared()
    for _ in range(6):
        other = scene.ours("cooperative-sticky", commit_s=0.02)
        scene.shared()
        scene.leave(other)
        scene.shared()
    scene.stop_load()
    scene.all_done()
    for member in tuple(scene.members):
        scene.leave(member)
    verdict = scene.verdict()
    assert verdict.holds, f"{verdict}\n{scene.shown()}"


@long
@pytest.mark.parametrize("first", ["java", "ours"])
@pytest.mark.parametrize("version", [version for version in JAVA if version != "0.10.2.2"])
def test_the_console_consumer_and_ours_deliver_each_record_once(
    version: str, first: str, scene_on: Callable[[str], Scene]
) -> None:
    """The console consumer does not report partitions, so the test counts records by their values and kills no
    process.

    Not with 0.10.2: its console consumer leaves without flushing its last lines of output.
    """
    scene = scene_on(version)
    consoles: list[Console] = []
    try:
        scene.produce(version)
        if first == "java":
            consoles.append(Console(scene, version))
            wait_until(consoles[0].values, 60, "the console consumer to print records")
        ours = scene.ours("range")
        if first == "ours":
            scene.shared()
            consoles.append(Console(scene, version))
        wait_until(lambda: 0 < len(ours.held) < PARTITIONS, 60, lambda: f"ours to have a share\n{scene.shown()}")
        scene.moving()
        before = len(consoles[0].values())
        wait_until(lambda: len(consoles[0].values()) > before, 60, "the console consumer to print more")
        consoles[0].leave()
        scene.shared()
        consoles.append(Console(scene, version))
        wait_until(lambda: len(ours.held) < PARTITIONS, 60, lambda: f"ours to give up a share\n{scene.shown()}")
        wait_until(consoles[1].values, 60, "the second console consumer to print records")
        scene.stop_load()
        scene.leave(ours)
        sent = scene.acknowledged()
        found = {place: value for place, value in sent.items() if place in ours.done}

        def delivered() -> list[int]:
            return [*found.values(), *(value for console in consoles for value in console.values())]

        wait_until(lambda: set(delivered()) == set(sent.values()), 60, lambda: f"all of {len(sent)} records")
        repeated = {value: count for value, count in Counter(delivered()).items() if count > 1}
        assert not repeated
        assert len(sent) > 300
        scene.holds = True
    finally:
        for console in consoles:
            console.end()


class Console:
    """ConsoleConsumer of that version; the values are VerifiableProducer's numbers."""

    def __init__(self, scene: Scene, version: str) -> None:
        settings = {
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "metadata_max_age_ms": 1000,
            "auto_offset_reset": "earliest",
            "group_id": scene.group,
            "partition_assignment_strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        }
        count = len(list(scene.directory.glob("console-*.out")))
        file = properties(scene.directory / f"console-{count}.properties", **settings)
        self._out = scene.directory / f"console-{count}.out"
        # the older option makes newer consoles print a warning among the values
        config = "--command-config" if number(version) >= (4, 2) else "--consumer.config"
        arguments = ["--topic", scene.topic, "--bootstrap-server", scene.cluster.bootstrap, config, file]
        with self._out.open("wb") as out, (scene.directory / f"console-{count}.log").open("wb") as log:
            self._process = subprocess.Popen(command(version, "ConsoleConsumer", *arguments), stdout=out, stderr=log)

    def values(self) -> list[int]:
        assert self._process.poll() is None or self._left, self._out.with_suffix(".log").read_text()[-2000:]
        text = self._out.read_text()
        return [int(line) for line in text[: text.rfind("\n") + 1].split()]

    _left = False

    def leave(self) -> None:
        """A clean stop: it commits the records that it has printed."""
        self._left = True
        self._process.terminate()
        self._process.wait(40)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
