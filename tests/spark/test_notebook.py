"""Tables in a notebook."""

from __future__ import annotations

from allocator.core.text.html import table

SCRIPT = "<script>alert(1)</script>"


def test_a_table_escapes_every_text_and_has_twenty_rows() -> None:
    shown = table((SCRIPT, "count"), [(SCRIPT, number) for number in range(30)], 30, SCRIPT)
    assert SCRIPT not in shown
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 22
    assert '<td style="text-align: right">19</td>' in shown
    assert "and 10 more" in shown
