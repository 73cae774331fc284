"""Mixed groups with clients in Go and Python, in the same scenario as with Java."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from go_clients import ASSIGNORS, program
from kafka_clients import AIOKAFKA, KAFKA_PYTHON
from play import play
from scene import Scene

long = pytest.mark.long

PYTHON = {"kafka-python": tuple(KAFKA_PYTHON), "aiokafka": tuple(AIOKAFKA)}


def cases(clients: dict[str, tuple[str, ...]]) -> list[object]:
    return [
        pytest.param("3.9.1", client, assignor, first, handler_s, id=f"{client}-{assignor}-{first}-first")
        for client, assignors in clients.items()
        for assignor in assignors
        for first, handler_s in (("theirs", 3.0), ("ours", 0.0))
    ]


@long
@pytest.mark.parametrize(("kafka", "client", "assignor", "first", "handler_s"), cases(ASSIGNORS))
def test_with_clients_in_go(
    kafka: str, client: str, assignor: str, first: str, handler_s: float, scene_on: Callable[[str], Scene]
) -> None:
    program(client)  # skips before a server is started
    scene = scene_on(kafka)
    sides = [lambda: scene.go(client, assignor), lambda: scene.ours(assignor, handler_s)]
    play(scene, *(sides if first == "theirs" else reversed(sides)))


@long
@pytest.mark.parametrize(("kafka", "client", "assignor", "first", "handler_s"), cases(PYTHON))
def test_with_clients_in_python(
    kafka: str, client: str, assignor: str, first: str, handler_s: float, scene_on: Callable[[str], Scene]
) -> None:
    scene = scene_on(kafka)
    sides = [lambda: scene.python(client, assignor), lambda: scene.ours(assignor, handler_s)]
    play(scene, *(sides if first == "theirs" else reversed(sides)))
