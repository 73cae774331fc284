"""Groups of allocator's members and Java's VerifiableConsumer, with five versions of Kafka's client.

The first member is the leader; when it leaves, the coordinator chooses another.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from allocator.testing.versions import NEWEST
from tests.outside.play import play
from tests.outside.scene import Member, Scene

pytestmark = pytest.mark.long

# the assignors of each version of the Java client
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
    for first, handler_s in (("java", 3.0), ("allocator", 0.0), ("java", 0.0), ("allocator", 3.0))
    # the other assignors move all partitions in each rebalance: fewer combinations
    if "sticky" in assignor or assignor == "consumer" or (first == "java") == (handler_s > 0)
]


def allocator_member(scene: Scene, assignor: str, handler_s: float) -> Callable[[], Member]:
    protocol = {"group_protocol": "consumer"} if assignor == "consumer" else {}
    return lambda: scene.allocator(assignor, handler_s, **protocol)


@pytest.mark.parametrize(("version", "assignor", "first", "handler_s"), CASES)
def test_no_record_is_lost_and_no_partition_has_two_owners(
    version: str, assignor: str, first: str, handler_s: float, scene_on: Callable[[str], Scene]
) -> None:
    scene = scene_on(version)
    sides = [lambda: scene.java(version, assignor), allocator_member(scene, assignor, handler_s)]
    play(scene, *(sides if first == "java" else reversed(sides)), producer=version)


def test_a_java_leader_reads_generations_from_the_user_data(scene_on: Callable[[str], Scene]) -> None:
    """The Java client of 2.8 reads each member's generation from the user data of `cooperative-sticky`."""
    scene = scene_on("3.9.1")
    play(scene, lambda: scene.java("2.8.2", "cooperative-sticky"), allocator_member(scene, "cooperative-sticky", 3.0))


@pytest.mark.parametrize("leader", ["java", "allocator"])
def test_commits_at_every_moment_of_a_rebalance_cost_no_partition(
    leader: str, scene_on: Callable[[str], Scene]
) -> None:
    """The coordinator refuses a commit between two generations; the member repeats it in the next one."""
    scene = scene_on("3.9.1")
    scene.produce("3.9.1")
    sides = [
        lambda: scene.java("3.9.1", "cooperative-sticky"),
        lambda: scene.allocator("cooperative-sticky", commit_s=0.02),
    ]
    for start in sides if leader == "java" else reversed(sides):
        start()
        scene.shared()
    for _ in range(6):
        other = scene.allocator("cooperative-sticky", commit_s=0.02)
        scene.shared()
        scene.leave(other)
        scene.shared()
    scene.stop_load()
    scene.all_done()
    for member in tuple(scene.members):
        scene.leave(member)
    verdict = scene.verdict()
    assert verdict.holds, f"{verdict}\n{scene.shown()}"
