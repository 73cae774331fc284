"""The versions of Kafka that tests run on. Those of a new version in `allocator.testing.versions` run on it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from allocator.testing.versions import KAFKA

# they speak the protocols of the versions beside them: only tests of servers, of the doctor and of moves run on them
BETWEEN = ("4.2.2", "4.3.1")


def versions(since: str = "0.8.1.1", without: Sequence[str] = ()) -> list[str]:
    return [v for v in tuple(KAFKA)[tuple(KAFKA).index(since) :] if v not in (*BETWEEN, *without)]


def on_versions(*quick: str, since: str = "0.8.1.1", without: Sequence[str] = ()) -> list[Any]:
    """Returns parameters of a test: the versions `quick`, and with `--long` the others from `since` on."""
    others = versions(since, (*quick, *without))
    return [*quick, *(pytest.param(v, marks=pytest.mark.long) for v in others)]


def detected(version: str) -> tuple[int, ...]:
    """Returns the version as the client detects it: 0.8.2, 0.9, 0.10.2, 1.1. kafka-python knows versions up to 4.3."""
    number = KAFKA[version].number
    short = number[:2]
    return min(number[:3] if short in ((0, 8), (0, 10)) else short, (4, 3))
