"""`GroupedConsumer` in the place of kiel 0.9.3's, alone and beside unmodified members of kiel.

What a group shared with kiel promises is less than what a group of ours does, and tests/groups/test_kiel.py has the
rest of it; kiel's members take a partition without waiting for the one that has it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from old_groups import kiel_python
from scene import PARTITIONS, Scene

from bench.faults.check import Verdict, overlaps
from bench.faults.group import Load, Settings
from bench.faults.run import commit_zero

long = pytest.mark.long


def settled(scene: Scene) -> None:
    scene.shared()
    scene.moving()


def judged(scene: Scene, load: Load) -> Verdict:
    load.end()
    assert load.error is None
    scene.all_done()
    for member in tuple(scene.members):
        scene.leave(member)
    return scene.verdict()


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("0.8.2.2", marks=long)])
@pytest.mark.parametrize("membership", ["zookeeper", pytest.param("kiel", marks=long)])
def test_a_commit_that_nobody_waits_for_is_done_before_a_partition_moves(
    version: str, membership: str, scene_on: Callable[[str], Scene]
) -> None:
    scene = scene_on(version)
    with Load(scene.cluster, scene.topic, Settings(partitions=PARTITIONS, rate=300.0, kafka=version)) as load:
        first = scene.grouped(membership)
        settled(scene)
        for _ in range(3):
            other = scene.grouped(membership)
            settled(scene)
            scene.leave(first)
            settled(scene)
            first = other
        verdict = judged(scene, load)
    scene.holds = not (verdict.lost or verdict.duplicates or verdict.overlaps)
    assert scene.holds, f"{verdict}\n{scene.shown()}"
    assert verdict.produced > 500


@long
@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1"])
@pytest.mark.parametrize("first", ["kiel", "ours"])
def test_nothing_is_lost_beside_unmodified_members_of_kiel(
    version: str, first: str, scene_on: Callable[[str], Scene]
) -> None:
    python = kiel_python()  # skips before a server is started
    scene = scene_on(version)
    settings = Settings(partitions=PARTITIONS, rate=100.0, kafka=version)
    commit_zero(scene.cluster, scene.topic, scene.group, settings)
    kinds = [lambda: scene.kiel(python), lambda: scene.grouped("kiel")]
    start, other = kinds if first == "kiel" else reversed(kinds)
    with Load(scene.cluster, scene.topic, settings) as load:
        # one change at a time: when two come together, kiel's members skip records without us, too
        leader = start()
        settled(scene)
        other()
        settled(scene)
        victim = other()
        settled(scene)
        scene.kill(victim)
        settled(scene)
        start()
        settled(scene)
        scene.leave(leader)
        settled(scene)
        verdict = judged(scene, load)
    ours = [turn for turn in scene.turns() if turn.member.endswith("grouped")]
    scene.holds = not verdict.lost and not overlaps(ours)
    assert scene.holds, f"{verdict}\n{scene.shown()}"
