"""The bench of handlers runs, on batches in memory."""

from __future__ import annotations

import pytest

from bench.handlers.__main__ import cpu


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_the_cost_of_an_empty_handler_is_measured(ordering: str) -> None:
    assert cpu(ordering, plain=False, records=20) > 0
