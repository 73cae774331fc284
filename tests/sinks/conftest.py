"""Databases for the tests of sinks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sinks.postgres import postgres_server
from tests.sinks.sink_member import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    with postgres_server() as url:
        yield url


NUMBERS = itertools.count()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database: a path, or a URL."""
    return str(tmp_path / "effects.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture
def new_store(place: str) -> Iterator[Callable[[], Store]]:
    """Returns a function that creates stores on the same two new tables, each for another process."""
    number, stores = next(NUMBERS), []

    def make() -> Store:
        stores.append(Store(place, f"effects_{number}", f"offsets_{number}"))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
