"""The pictures of the performance page show the numbers of its tables."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.graphs import DOCS, pictures

PAGE = (DOCS / "performance.md").read_text()


def shown(svg: str) -> tuple[list[str], list[float]]:
    """Returns the texts of a picture in order, and the lengths of its bars in shares of the longest one."""
    drawn = ElementTree.fromstring(svg)
    bars = [float(each.get("width", 0)) for each in drawn.iterfind(".//{*}rect") if each.get("x")]
    return [each.text or "" for each in drawn.iterfind(".//{*}text")], [round(bar / max(bars), 2) for bar in bars]


@pytest.mark.parametrize("name", sorted(pictures(PAGE)))
def test_a_picture_shows_the_numbers_of_its_table(name: str) -> None:
    texts, bars = shown((DOCS / name).read_text())
    assert (texts, bars) == shown(pictures(PAGE)[name]), "run python -m bench.graphs"
    assert f"]({name})" in PAGE
    assert len(bars) > 5
