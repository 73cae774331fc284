"""Virtual time for the tests of this room."""

from __future__ import annotations

import pytest
from hand_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
