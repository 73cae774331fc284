"""A cluster in memory for each test."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()
