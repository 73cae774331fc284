"""The committed pages in docs/reference agree with the code."""

from __future__ import annotations

import pytest

from tests.repo import reference_pages


@pytest.mark.parametrize("page", list(reference_pages.PAGES))
def test_the_page_is_generated_from_the_present_code(page: str) -> None:
    if page == "metrics":
        pytest.importorskip("prometheus_client", reason="pip install 'zk-partition-allocator[web]'")
    committed = (reference_pages.DOCS / "reference" / f"{page}.md").read_text()
    # versions of click wrap lines in their own ways
    same = committed.split() == reference_pages.expected(page).split()
    assert same, f"docs/reference/{page}.md is outdated: run python -m tests.repo.reference_pages"
