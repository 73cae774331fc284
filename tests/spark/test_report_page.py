"""Pages of reports. Pure."""

from __future__ import annotations

import re

from allocator.spark.report_html import grid, page, section


def test_a_page_is_one_file_that_loads_nothing_and_escapes_its_texts() -> None:
    shown = page("<b>", section("<i>", grid("<u>", ("<s>", "n"), [("<a>", 1), (None, 2.5)])))
    assert not re.search("<[biusa]>", shown)
    assert '<td>&lt;a&gt;</td><td class="n">1</td>' in shown
    assert "--paper:" in shown, "the stylesheet of the status page"
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\(", shown)
