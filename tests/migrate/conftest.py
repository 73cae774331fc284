"""Clusters between which topics and groups move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from allocator.testing import LocalCluster
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import NEWEST
from tests.migrate.cutting import World
from tests.migrate.mirroring import Pair


@pytest.fixture
def make_pair(cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str) -> Any:
    """`await make_pair(old, new, partitions, config, **settings)`: a topic on the old cluster, and its mirror.

    `old` and `new` are versions of Kafka, or clusters.
    """

    async def make(
        old: str | LocalCluster = "3.9.1",
        new: str | LocalCluster = NEWEST,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Pair:
        clusters = [
            await asyncio.to_thread(cluster_factory, kafka=each) if isinstance(each, str) else each
            for each in (old, new)
        ]
        pair = Pair(*clusters, topic_factory, group, **options)
        await pair.add_topic(partitions, config)
        return pair

    return make


@pytest.fixture
def make_world(cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str, tmp_path: Path) -> Any:
    """`await make_world(old, new)`: a topic with three partitions, and a group that a plan moves."""

    async def make(old: str = "0.9.0.1", new: str = "3.9.1") -> World:
        clusters = [await asyncio.to_thread(cluster_factory, kafka=version) for version in (old, new)]
        topic = await asyncio.to_thread(topic_factory, 3, 1, None, clusters[0])
        return World(clusters[0], clusters[1], topic, group, tmp_path)

    return make
