"""A cluster in memory, and each decoder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.fetch_decoders import DECODERS, name_of


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture(params=DECODERS, ids=name_of, scope="session")
def decoder(request: pytest.FixtureRequest) -> Any:
    return request.param
