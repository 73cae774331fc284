"""The scenario of the mixed groups."""

from __future__ import annotations

from collections.abc import Callable

from tests.outside.scene import Member, Scene

Start = Callable[[], Member]


def play(scene: Scene, first: Start, other: Start, *, producer: str = "3.9.1") -> None:
    """Members of both kinds join, one is killed, and the leader leaves; then the checker reads their journals.

    `first` and `other` start a member of one kind each. `producer` is the version of Kafka's producer.
    """
    scene.produce(producer)
    leader = first()
    scene.shared()
    victim = other()
    scene.shared()
    last = other()
    scene.shared()
    scene.moving()
    scene.kill(victim)
    scene.shared()
    second = first()
    scene.shared()
    scene.leave(leader)
    scene.shared()
    scene.moving()
    scene.stop_load()
    scene.all_done()
    scene.leave(last)
    scene.shared()
    scene.leave(second)
    verdict = scene.verdict()
    assert verdict.holds, f"{verdict}\n{scene.shown()}"
    assert verdict.produced > 500
