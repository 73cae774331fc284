"""Mixed groups with clients in Go, in the same scenario as with Java."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.outside.go_clients import ASSIGNORS, program
from tests.outside.play import play
from tests.outside.scene import Scene

CASES = [
    pytest.param(client, assignor, first, handler_s, id=f"{client}-{assignor}-{first}-first")
    for client, assignors in ASSIGNORS.items()
    for assignor in assignors
    for first, handler_s in (("go", 3.0), ("allocator", 0.0))
]


@pytest.mark.long
@pytest.mark.parametrize(("client", "assignor", "first", "handler_s"), CASES)
@pytest.mark.parametrize("kafka", ["3.9.1"])
def test_no_record_is_lost_and_no_partition_has_two_owners(
    kafka: str, client: str, assignor: str, first: str, handler_s: float, scene_on: Callable[[str], Scene]
) -> None:
    program(client)  # skips before a server is started
    scene = scene_on(kafka)
    members = [lambda: scene.go(client, assignor), lambda: scene.allocator(assignor, handler_s)]
    play(scene, *(members if first == "go" else reversed(members)))
