"""Charts of reports: what they show of some numbers. Pure."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.html import grid, page, section
from allocator.spark.charts import SLOTS, bars, gini, lorenz


def paths(svg: str, kind: str) -> str:
    return "".join(re.findall(f'<path class="{kind}" d="([^"]*)"', svg))


def test_a_bar_stands_for_each_value_and_a_mark_for_each_zero() -> None:
    drawn = bars([5, 0, 10], "bytes <of> 3", 5.0)
    assert paths(drawn, "bars").count("M") == 2
    assert paths(drawn, "none").count("M") == 1
    heights = [float(high) for high in re.findall(r"v-([0-9.]+)", paths(drawn, "bars"))]
    assert heights[1] == pytest.approx(2 * heights[0])
    assert "bytes &lt;of&gt; 3" in drawn


def test_ten_thousand_partitions_share_bars_and_no_peak_and_no_gap_is_lost() -> None:
    values = [1.0] * 10_000
    values[7777], values[5] = 1000.0, 0.0
    drawn = bars(values, "bytes", 1.1)
    assert paths(drawn, "bars").count("M") == SLOTS
    assert paths(drawn, "none").count("M") == 1
    assert ">1 k<" in drawn
    assert len(drawn) < 20_000
    assert len(lorenz(values, "curve")) < 20_000


@given(st.lists(st.integers(0, 100), max_size=30))
def test_gini_is_between_an_even_spread_and_one_that_has_all(values: list[int]) -> None:
    assert 0 <= gini(values) < 1
    assert gini([7] * 5) == pytest.approx(0)
    assert gini([0] * 9 + [3]) == pytest.approx(0.9)
    assert gini([2 * value for value in values]) == pytest.approx(gini(values))
    assert bars(values, "any", 0.0)
    assert lorenz(values, "any")


def test_a_page_is_one_file_that_loads_nothing_and_escapes_its_texts() -> None:
    shown = page("<b>", section("<i>", grid("<u>", ("<s>", "n"), [("<a>", 1), (None, 2.5)])))
    assert not re.search("<[biusa]>", shown)
    assert '<td>&lt;a&gt;</td><td class="n">1</td>' in shown
    assert "--paper:" in shown, "the stylesheet of the status page"
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\(", shown)
