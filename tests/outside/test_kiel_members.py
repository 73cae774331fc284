"""`GroupedConsumer` in a group with unmodified members of kiel 0.9.3.

Such a group promises less: kiel's members read a partition without waiting for its former owner.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.faults.check import overlaps
from bench.faults.group import Load, Settings
from bench.faults.run import commit_zero
from tests.groups.old_groups import kiel_python
from tests.outside.scene import PARTITIONS, Scene


@pytest.mark.long
@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1"])
@pytest.mark.parametrize("first", ["kiel", "allocator"])
def test_no_record_is_lost_beside_unmodified_members_of_kiel(
    version: str, first: str, scene_on: Callable[[str], Scene]
) -> None:
    python = kiel_python()  # skips before a server is started
    scene = scene_on(version)
    settings = Settings(partitions=PARTITIONS, rate=100.0, kafka=version)
    commit_zero(scene.cluster, scene.topic, scene.group, settings)
    kinds = [lambda: scene.kiel(python), lambda: scene.grouped("kiel")]
    start, other = kinds if first == "kiel" else reversed(kinds)

    def settle() -> None:
        scene.shared()
        scene.moving()

    with Load(scene.cluster, scene.topic, settings) as load:
        # one change at a time: after two changes at once, kiel's members skip records in groups of kiel alone, too
        leader = start()
        settle()
        other()
        settle()
        victim = other()
        settle()
        scene.kill(victim)
        settle()
        start()
        settle()
        scene.leave(leader)
        settle()
        load.end()
        assert load.error is None
        scene.all_done()
        for member in tuple(scene.members):
            scene.leave(member)
        verdict = scene.verdict()
    grouped = [each for each in scene.history().tenures if each.member.endswith("grouped")]
    scene.holds = not verdict.lost and not overlaps(grouped)
    assert scene.holds, f"{verdict}\n{scene.shown()}"
