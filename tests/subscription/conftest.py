"""Time in the tests of this room stands still until they move it."""

from __future__ import annotations

import pytest
from hand_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
