"""Fixtures for mixed groups."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allocator.testing.plugin import ClusterFactory
from tests.outside.scene import PARTITIONS, Scene


@pytest.fixture
def scene_on(
    cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str
) -> Iterator[Callable[[str], Scene]]:
    """`scene_on("3.9.1")`: a group on a new topic of that version's cluster. After a failure, the journals are kept."""
    scenes: list[Scene] = []

    def make(version: str) -> Scene:
        cluster = cluster_factory(kafka=version)
        directory = Path(tempfile.mkdtemp(prefix="allocator-outside-"))
        scenes.append(Scene(cluster, topic_factory(PARTITIONS, cluster=cluster), group, directory))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()
        if scene.holds:
            shutil.rmtree(scene.directory)
