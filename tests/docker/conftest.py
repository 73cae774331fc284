"""The image of the daemon, built once for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.docker.docker_engine import bases, docker, need_images


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    need_images(bases("Dockerfile"))
    name = f"allocator-test:{uuid4().hex[:8]}"
    docker("build", "--file", "docker/Dockerfile", "--tag", name, ".", timeout_s=1500)
    yield name
    docker("image", "rm", "--force", name)
