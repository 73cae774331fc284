"""Fixtures of the tests of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from old_groups import OldGroup

from allocator.testing import LocalCluster
from allocator.testing.plugin import ClusterFactory

PARTITIONS = 6


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits documents of some hundred bytes over several znodes, as large ones are."""
    monkeypatch.setattr("allocator.core.znodes.documents.SHARD_BYTES", 200)


@pytest.fixture
def group_of(
    cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str
) -> Iterator[Callable[[str], OldGroup]]:
    made: list[OldGroup] = []

    def make(version: str) -> OldGroup:
        cluster: LocalCluster = cluster_factory(kafka=version)
        old = OldGroup(cluster, topic_factory(PARTITIONS, cluster=cluster), group, PARTITIONS)
        made.append(old)
        return old

    yield make
    for old in made:
        old.close()
