"""Fixtures of the tests of groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from allocator.protocols.zookeeper.znodes import documents
from allocator.testing import LocalCluster
from allocator.testing.plugin import ClusterFactory
from tests.constants import SetConstant
from tests.groups.old_groups import OldGroup

PARTITIONS = 6


@pytest.fixture
def small_shards(set_constant: SetConstant) -> None:
    """Splits documents of some hundred bytes over several znodes, as large ones are."""
    set_constant(documents, SHARD_BYTES=200)


@pytest.fixture
def quiet() -> Iterator[None]:
    """A simulation logs thousands of lines. A run that fails prints its schedule instead."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def group_of(
    cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str
) -> Iterator[Callable[[str], OldGroup]]:
    groups: list[OldGroup] = []

    def create(version: str) -> OldGroup:
        cluster: LocalCluster = cluster_factory(kafka=version)
        old = OldGroup(cluster, topic_factory(PARTITIONS, cluster=cluster), group, PARTITIONS)
        groups.append(old)
        return old

    yield create
    for old in groups:
        old.close()
