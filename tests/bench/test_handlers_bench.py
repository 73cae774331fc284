"""The bench of handlers runs, on batches in memory."""

from __future__ import annotations

import pytest

from bench.handlers import __main__ as handlers


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_the_cost_of_an_empty_handler_is_measured(ordering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "EMPTY_RECORDS", 20)
    assert handlers.cpu(ordering, plain=False) > 0
