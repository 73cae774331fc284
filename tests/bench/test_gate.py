"""The gate fails if a ratio got worse, and only then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gate


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["gate", "--only", "decode", *arguments])
    return gate.main()


def test_a_loss_counts_if_it_shows_each_time(
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
    assert "15% lost: decode: a\n" in (said := capsys.readouterr().err)
    assert "15% lost: decode: b\n" in said


def test_ratios_above_one_mean_that_ours_is_better() -> None:
    result = {"cpu_s": 1.0, "count": 100}
    found = gate.consume(
        {
            "throughput": [{"results": {"ours, records": result, "confluent-kafka": {"cpu_s": 4.0, "count": 100}}}],
            "idle": [
                {
                    "results": {
                        "ours, records": {"cpu_s": 0.2, "count": 0},
                        "confluent-kafka": {"cpu_s": 0.1, "count": 0},
                    }
                }
            ],
        }
    )
    assert found == {"ours, records, CPU, confluent-kafka": 4.0, "ours, records, idle CPU, confluent-kafka": 0.5}
    events = {"join": {"ours": {"last_s": 0.1}, "confluent-coop": {"last_s": 2.0}}}
    assert gate.rebalance({"cases": [{"events": events}]}) == {"join, ms, confluent-kafka's cooperative-sticky": 20.0}
    clients = {"ours": {"first_s": [2, 9, 1], "commit_s": [1]}, "aiokafka": {"first_s": [4], "commit_s": [0.5]}}
    assert gate.group({"clients": clients}) == {"first record, ms, aiokafka": 2.0, "commits, ms, aiokafka": 0.5}
