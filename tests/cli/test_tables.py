"""Tables of commands, on terminals of several widths and in a pipe. Pure, no servers."""

from __future__ import annotations

import io
from collections import Counter

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from allocator.cli import report
from allocator.cli.output import UNBOUNDED, Listing
from allocator.commands.command import Command
from allocator.operate.command_report import CommandReport


def printed(listing: Listing, width: int) -> list[str]:
    console = Console(width=width, force_terminal=width < UNBOUNDED, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(listing)
    return capture.get().splitlines()


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_a_table_fits_or_folds_and_a_pipe_gets_one_line_for_each_row() -> None:
    table = Listing("topic", "owner", "lag before", right={2})
    table.add(
        "invoices-of-the-whole-company." + "x" * 30, "請求書を書く人@worker-1.eu-central-1.compute.internal", 10**15
    )
    table.add("t", "no owner since the last deployment", 7)
    for width in (80, 40):
        lines = printed(table, width)
        assert max(map(cell_len, lines)) <= width
        assert Counter(squeezed("".join(lines))) >= Counter(squeezed("".join(map("".join, table.rows))))
    head, *lines = printed(table, UNBOUNDED)
    assert head.split() == " ".join(table.heads).split()
    assert [squeezed(line) for line in lines] == [squeezed("".join(row)) for row in table.rows]


def test_ten_thousand_rows_are_printed_in_linear_time() -> None:
    listing = Listing("topic", "partition", "owner", right={1})
    for number in range(10_000):
        listing.add("orders", number, f"worker-{number % 100}")
    assert printed(listing, 80)[-1] == "orders       9999  worker-99"
    screen = Console(width=80)
    # rich splits a `Text` of ten thousand lines in quadratic time
    assert all(isinstance(each, Segment) for each in listing.__rich_console__(screen, screen.options))


def test_text_that_utf_8_cannot_encode_is_shown_as_escapes() -> None:
    """A reason of a command comes from JSON in ZooKeeper, and JSON can spell lone surrogates."""
    command = Command.make("freeze", {}, who="al\udcffice", why="\ud800 x", now_ms=1000)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=out, width=200).print(report.commands_table([CommandReport(command, "kept")]))
    out.seek(0)
    text = out.read()
    assert "al\\udcffice" in text
    assert "\\ud800 x" in text
