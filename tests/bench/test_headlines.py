"""`make gate` covers the first table of the performance page."""

from __future__ import annotations

import json
import re

import pytest

from bench import gate
from bench.graphs import DOCS

HEADLINES = (DOCS / "performance.md").read_text().split("\n\n")[1].splitlines()[2:]


@pytest.mark.parametrize("row", HEADLINES)
def test_the_gate_has_a_ratio_to_each_client_of_a_headline(row: str) -> None:
    _, _, others, covered = (cell.strip() for cell in row.strip("|").split(" | "))
    if covered.startswith("none: "):
        return
    stored = json.loads(gate.RATIOS.read_text())
    for ratio in re.findall("`(.*?)`", covered):
        assert ratio.partition(": ")[0] in gate.BENCHES
        peers = [what.rpartition(", ")[2] for what in stored if what.startswith(f"{ratio}, ")]
        for other in others.split(", "):
            assert any(other.startswith(peer) for peer in peers), f"{ratio} of {other} is not in the gate"
