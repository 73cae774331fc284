"""The committed pages in docs/reference agree with the code."""

from __future__ import annotations

import pytest
import reference_pages


@pytest.mark.parametrize("page", list(reference_pages.PAGES))
def test_the_page_is_generated_from_the_present_code(page: str) -> None:
    if page == "metrics":
        pytest.importorskip("prometheus_client", reason="pip install 'zk-partition-allocator[web]'")
    committed = (reference_pages.DOCS / "reference" / f"{page}.md").read_text()
    # versions of click wrap lines in their own ways
    same = committed.split() == reference_pages.expected(page).split()
    assert same, f"docs/reference/{page}.md is outdated: run python tests/repo/reference_pages.py"


def test_no_page_has_a_placeholder() -> None:
    pages = [*(reference_pages.DOCS / "reference").glob("*.md")]
    assert pages
    text = "".join(page.read_text() for page in pages if page.stem != "settings")
    assert ":::" not in text
    assert "<!-- commands -->" not in text


def test_arguments_in_a_docstring_become_a_table() -> None:
    items = ["brokers, zookeeper  where | they are,", "                    and more", "a_longer_name_of_it the end"]
    table = reference_pages.tabled("\n".join(["What it is.", "", *items, "", "Done."]))
    assert [line for line in table.splitlines() if line] == [
        "What it is.",
        "| argument | |",
        "|---|---|",
        r"| `brokers`, `zookeeper` | where \| they are, and more |",
        "| `a_longer_name_of_it` | the end |",
        "Done.",
    ]


def test_prose_is_unchanged() -> None:
    text = "One line.\n\nAnother  with two spaces.\n\n    code  here\n"
    assert "|" not in reference_pages.tabled(text)
