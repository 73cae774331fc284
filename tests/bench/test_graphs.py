"""The pictures of the performance page agree with its tables."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.bars import Bar, draw
from bench.graphs import DOCS, pictures, tables

PAGE = (DOCS / "performance.md").read_text()


@pytest.mark.parametrize("name", sorted(pictures(PAGE)))
def test_a_picture_is_drawn_from_the_table_that_stands_there(name: str) -> None:
    assert (DOCS / name).read_text() == pictures(PAGE)[name], "python -m bench.graphs draws it anew"
    assert f"]({name})" in PAGE


def test_another_figure_is_another_picture() -> None:
    assert "| clean leave | ours, `sticky` | 52 " in PAGE
    other = PAGE.replace("| clean leave | ours, `sticky` | 52 ", "| clean leave | ours, `sticky` | 53 ")
    assert pictures(other)["rebalance.svg"] != pictures(PAGE)["rebalance.svg"]


def test_tables_are_read_by_heading() -> None:
    page = "# A\n\n| x | y |\n|---|---:|\n| 1 | 2 |\n\nand\n\n| z |\n|---|\n| 3 |\n\n## B\n\n| w |\n|---|\n"
    assert tables(page, "A") == [[["x", "y"], ["1", "2"]], [["z"], ["3"]]]


def test_the_longest_bar_of_each_group_is_as_long() -> None:
    drawn = draw("t", [("a", [Bar("ours", 1, "1"), Bar("x & y", 4, "4")]), ("b", [Bar("kiel", 9, "9")]), ("c", [])])
    rects = list(ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect"))[1:]
    widths = [float(rect.attrib["width"]) for rect in rects]
    assert widths[0] * 4 == widths[1] == widths[2]
