"""The tables of all commands, on terminals of several widths and in a pipe. Pure, no servers."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from allocator.cli import planning, report
from allocator.cli.deadletters import letters_table
from allocator.cli.offsets import copy_table
from allocator.cli.output import UNBOUNDED, Indented, Listing
from allocator.core.commands.orders import Order
from allocator.core.commands.steering import Budget
from allocator.core.record import Record
from allocator.core.znodes.documents import AssignmentDocument, Claim, MemberInfo
from allocator.migrate.offsets import CopyPlan, Row
from allocator.migrate.storage import OffsetStore
from allocator.operate import GroupReport, Logs, ResetPlan
from allocator.operate.dead_letters import Letter
from allocator.operate.dead_letters.waiting import WaitingRecords
from allocator.operate.group_report import GroupState
from allocator.operate.order_report import OrderReport
from allocator.operate.what_if import GroupPlan, PlannedMember, PlannedMove
from allocator.types import OffsetAndMetadata, TopicPartition

TOPIC = "invoices-of-the-whole-company." + "x" * 30
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(10_000)]
SOME = PARTITIONS[-200:]
NAMES = [f"m-{number:016x}-{number:010}" for number in range(100)]
MEMBERS = {
    name: MemberInfo(
        f"請求書を書く人-{at:03}", f"worker-{at}.eu-central-1.compute.internal", frozenset({TOPIC}), pid=1 << 20
    )
    for at, name in enumerate(NAMES)
}
HELD = {name: frozenset(PARTITIONS[at::100]) for at, name in enumerate(NAMES)}
STATE = GroupState(
    "the-service-that-writes-invoices",
    MEMBERS,
    {name: Claim(1, held) for name, held in HELD.items()},
    AssignmentDocument(generation=70_000, strategy="naive", owners=HELD),
)
FAR = 10**15
LOGS = Logs(
    dict.fromkeys(PARTITIONS, OffsetAndMetadata(FAR, "", -1)),
    dict.fromkeys(PARTITIONS, 0),
    dict.fromkeys(PARTITIONS, FAR + 12_345_678),
)
GROUP = GroupReport(STATE, LOGS, frozenset(PARTITIONS))
ORDER = OrderReport(
    Order.make("cordon", {"member": "請求書を書く人-007"}, who="alice@example.com", why="its disk fails", now_ms=1),
    "not kept",
    "the member " + "left and has not come back since " * 5,
)
PLAN = GroupPlan(
    "billing",
    "naive",
    tuple(PlannedMove(each, NAMES[0], NAMES[99]) for each in SOME),
    tuple(PlannedMember(name, STATE.name_of(name), "leaves", (100, 0), (FAR, None)) for name in NAMES),
    (),
    Budget(),
    {},
    {name: STATE.name_of(name) for name in NAMES},
)
STORE = OffsetStore("old1:9092", "billing", "kafka", (), "/allocator", None, None)
HEADERS = [("allocator.topic", TOPIC.encode()), ("error", b"no " * 99)]
LETTER = Letter.of(Record("dead", 0, FAR, 1000, 0, b"k", b"v", HEADERS))
TABLES: dict[str, Callable[[], Listing]] = {
    "report.groups_table": lambda: report.groups_table([GROUP] * 3),
    "report.members_table": lambda: report.members_table(GROUP),
    "report.offsets_table": lambda: report.offsets_table(GROUP),
    "report.orders_table": lambda: report.orders_table([ORDER] * 100),
    "report.retries_table": lambda: report.retries_table([WaitingRecords(TOPIC, FAR, FAR // 1000)] * 9),
    "report.reset_table": lambda: report.reset_table(
        ResetPlan("billing", dict.fromkeys(SOME, FAR), dict.fromkeys(SOME, 0))
    ),
    "planning.members_table": lambda: planning.members_table(PLAN),
    "planning.moves_table": lambda: planning.moves_table(PLAN),
    "deadletters.letters_table": lambda: letters_table([LETTER] * 100),
    "offsets.copy_table": lambda: copy_table(
        CopyPlan(
            STORE,
            STORE,
            "offset",
            tuple(Row(each, FAR, None, FAR, 0, "", f"offset {FAR} is outside, 0 to 17") for each in SOME),
            (),
        )
    ),
}


def printed(listing: Listing | Indented, width: int) -> list[str]:
    console = Console(width=width, force_terminal=width < UNBOUNDED, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(listing)
    return capture.get().splitlines()


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_or_folds_and_a_pipe_gets_one_line_for_each_row(name: str) -> None:
    table = TABLES[name]()
    for width in (80, 40):
        lines = printed(table, width)
        assert max(map(cell_len, lines)) <= width
        assert Counter(squeezed("".join(lines))) >= Counter(squeezed("".join(map("".join, table.rows))))
    head, *lines = printed(table, UNBOUNDED)
    assert head.split() == " ".join(table.heads).split()
    assert len(lines) == len(table.rows)
    for line, row in zip(lines, table.rows):
        assert squeezed(line) == squeezed("".join(row))


def test_ten_thousand_rows_are_printed_in_linear_time() -> None:
    listing = Listing("topic", "partition", "owner", right={1})
    for number in range(10_000):
        listing.add("orders", number, f"worker-{number % 100}")
    assert printed(listing, 80)[-1] == "orders       9999  worker-99"
    screen = Console(width=80)
    # rich splits a `Text` of ten thousand lines in quadratic time
    assert all(isinstance(each, Segment) for each in listing.__rich_console__(screen, screen.options))


def test_a_narrow_terminal_folds_long_text_in_its_column_and_leaves_numbers_whole() -> None:
    listing = Listing("topic", "owner", "lag before", right={2})
    listing.add("t", "東京の請求書を書く人", 12345)
    listing.add("t", "no owner since the last deployment", 7)
    assert printed(listing, 30) == [
        "topic  owner               lag",
        "                        before",
        "t      東京の請求書を    12345",
        "       書く人",
        "t      no owner since        7",
        "       the last",
        "       deployment",
    ]


def test_a_terminal_too_narrow_for_columns_gets_a_line_for_each_cell() -> None:
    listing = Listing("topic", "owner", "committed", "lag", right={2, 3})
    listing.add("t", "東京の請求書を書く人", 10**15, 12345)
    listing.add("t", None, 10**15, 7)
    assert printed(listing, 30) == [
        "topic      t",
        "owner      東京の請求書を書く",
        "           人",
        "committed  1000000000000000",
        "lag        12345",
        "",
        "topic      t",
        "owner      -",
        "committed  1000000000000000",
        "lag        7",
    ]


def test_text_that_utf_8_cannot_encode_is_shown_as_escapes() -> None:
    """A reason of an order comes from JSON in ZooKeeper, and JSON can spell lone surrogates."""
    order = Order.make("freeze", {}, who="al\udcffice", why="\ud800 x", now_ms=1000)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=out, width=200).print(report.orders_table([OrderReport(order, "kept")]))
    out.seek(0)
    text = out.read()
    assert "al\\udcffice" in text
    assert "\\ud800 x" in text


def test_an_unknown_time_is_not_shown_as_a_date() -> None:
    head, row = printed(letters_table([Letter.of(Record("dead", 0, 5, -1, None, b"k", b"v", []))]), 80)
    assert dict(zip(head.split(), row.split()))["written"] == "-"
    assert printed(report.retries_table([WaitingRecords("retry", 3, 0)]), 80)[1].split() == ["retry", "3", "-"]


def test_indented_text_folds_on_a_terminal_without_trailing_spaces() -> None:
    text = Indented('value: {\n  "name": "請求書を書く人"\n}')
    folded = printed(text, 18)
    assert max(map(cell_len, folded)) <= 18
    assert len(folded) > 3
    assert all(line.startswith("  ") for line in folded)
    assert squeezed("".join(folded)) == squeezed(text.text)
    assert printed(text, UNBOUNDED) == ["  value: {", '    "name": "請求書を書く人"', "  }"]
