"""The pictures of the performance page agree with its tables."""

from __future__ import annotations

import pytest

from bench.graphs import DOCS, pictures

PAGE = (DOCS / "performance.md").read_text()


@pytest.mark.parametrize("name", sorted(pictures(PAGE)))
def test_a_picture_is_drawn_from_its_table(name: str) -> None:
    assert (DOCS / name).read_text() == pictures(PAGE)[name], "run python -m bench.graphs"
    assert f"]({name})" in PAGE
