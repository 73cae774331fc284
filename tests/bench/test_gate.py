"""The gate fails if a ratio got worse, and only then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gate


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["gate", "--only", "decode", *arguments])
    return gate.main()


def test_a_loss_counts_if_each_run_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "RATIOS", tmp_path / "gate.json")
    measured = [{"decode: a": 2.0, "decode: b": 10.0}]
    monkeypatch.setattr(gate, "measure", lambda name: measured.pop(0))
    assert run(monkeypatch, "--write") == 0
    assert json.loads(gate.RATIOS.read_text()) == {"decode: a": 2.0, "decode: b": 10.0}
    measured = [{"decode: a": 1.71, "decode: b": 12.0}]  # within 15 %: one run is enough
    assert run(monkeypatch) == 0
    measured = [{"decode: a": 1.5, "decode: b": 10.0}, {"decode: a": 1.9, "decode: b": 5.0}]
    assert run(monkeypatch) == 0
    measured = [{"decode: a": 1.5}] * 3  # and b was not measured at all
    assert run(monkeypatch) == 1
    assert "15% lost: decode: a\n" in (shown := capsys.readouterr().err)
    assert "15% lost: decode: b\n" in shown
