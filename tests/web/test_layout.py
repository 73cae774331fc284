"""Where things stand on the page: measured in a real browser, over groups that were made in memory."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from browsing import PATIENCE_S, Page, by_person, made, needs_browser, nothing
from made_groups import group_of, state_of, watcher_of, without
from made_records import records_page
from served import TOKEN
from written_group import member_id

from allocator.core.client.metadata import PartitionMetadata, TopicMetadata
from allocator.operate.group_report import Logs
from allocator.testing.waiting import wait_until
from allocator.types import OffsetAndMetadata
from allocator.web.history import News
from allocator.web.watch import Watcher

pytestmark = needs_browser

# Of each visible row the box, and of each of its cells the box, the boxes of its text, and whether text is cut off
ROWS = """
const box = (node) => node.getBoundingClientRect().toJSON();
const texts = (cell) => {
  const found = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    range.selectNodeContents(node);
    if (node.textContent.trim()) found.push({ ...box(range), label: !!node.parentElement.closest('.head') });
  }
  return found;
};
const about = (cell) => ({
  ...box(cell), numeric: cell.classList.contains('n'), cut: cell.scrollWidth > cell.clientWidth + 1, texts: texts(cell),
});
const rows = [...document.querySelectorAll(`#${arguments[0]} tbody tr:not(.gap)`)];
return rows.map((row) => ({ ...box(row), cells: [...row.children].map(about) }));
"""


def rows_of(page: Page, table: str) -> list[Any]:
    wait_until(
        lambda: page.run(f"return document.querySelectorAll('#{table} tbody tr:not(.gap)').length"), PATIENCE_S, table
    )
    return list(page.driver.execute_script(ROWS, table))


def apart(one: Any, other: Any) -> bool:
    """Whether two boxes do not overlap."""
    return bool(
        one["right"] <= other["left"] + 1
        or other["right"] <= one["left"] + 1
        or one["bottom"] <= other["top"] + 1
        or other["bottom"] <= one["top"] + 1
    )


@functools.lru_cache(maxsize=1)
def several() -> Watcher:
    """The groups of `watcher`, one of a single member, and one of twelve."""
    found = watcher_of()
    found.groups["solo"] = group_of("solo", 1, {"orders": 6}, time.time())
    found.groups["twelve"] = group_of("twelve", 12, {"orders": 240, "payments": 160}, time.time(), seed=4)
    return found


def tables(watched: Watcher) -> dict[str, str]:
    """Views by the id of the table in them."""
    rebalance = watched.groups["twelve"].history.rebalances[0].id
    return {
        "groups": "#/?sort=-lag",
        "topics": "#/topics",
        "brokers": "#/brokers",
        "members": "#/group/twelve",
        "partitions": "#/group/billing/partitions?sort=-lag",
        "history": "#/group/twelve/rebalances",
        "moves": f"#/group/twelve/rebalance/{rebalance}",
        "readers": "#/group/twelve/topic/orders",
    }


@pytest.mark.parametrize("width", [1440, 1280])
async def test_each_row_of_a_wide_table_is_one_line_and_no_number_is_cut_off(browser: Any, width: int) -> None:
    page = Page(browser)
    async with made(several) as url:

        def look() -> None:
            page.open(url, width)
            for table, view in tables(several()).items():
                page.go(view)
                rows = rows_of(page, table)
                heights = {round(row["bottom"] - row["top"]) for row in rows}
                assert max(heights) <= 36, f"{table}: {heights}"
                cells = [cell for row in rows for cell in row["cells"]]
                assert not [cell for cell in cells if cell["numeric"] and cell["cut"]], table
                heads = (
                    "[...document.querySelectorAll('#%s thead button')].filter((b) => b.scrollWidth > b.clientWidth)"
                )
                assert page.run(f"return {heads % table}.map((b) => b.innerText)") == [], table
            # the row in the focus shows all of its text
            page.go("#/group/twelve/rebalances")
            cut = [row for row in rows_of(page, "history") if any(cell["cut"] for cell in row["cells"])]
            assert cut, "two hundred partitions went to eleven members, which no line can say"
            page.run("document.querySelector('#history tbody tr:last-child a, #history tbody a').focus()")
            page.run("for (const row of document.querySelectorAll('#history tbody tr:not(.gap)')) row.focus()")
            assert not any(cell["cut"] for cell in rows_of(page, "history")[-1]["cells"])
            assert page.text("#history thead").split("\n")[0].split("\t")[2:4] == ["duration", "standstill"]
            page.sees("#history", "worker-01@node-1:4001#1 → ")
            page.sees("#history", "→ worker-12@node-5:4012#12 (17)")
            assert page.complaints() == []

        await by_person(look)


@pytest.mark.parametrize("dark", [False, True])
async def test_in_a_narrow_window_a_row_is_a_card_of_aligned_figures(browser: Any, dark: bool) -> None:
    page = Page(browser)
    async with made(several, actions={"orders/put": nothing}) as url:

        def look() -> None:
            page.open(url, 390, 844, dark)
            for table, view in tables(several()).items():
                page.go(view)
                rows = rows_of(page, table)
                assert len(rows) > 1, table
                for row in rows:
                    figures = [cell for cell in row["cells"] if cell["numeric"]]
                    assert figures, table
                    assert row["right"] <= 390
                    for cell in figures:
                        assert [text["label"] for text in cell["texts"]] == [True, False], f"{table}: label and figure"
                        assert not cell["cut"], table
                    for number, cell in enumerate(row["cells"]):
                        assert row["left"] <= cell["left"]
                        assert cell["right"] <= row["right"]
                        for other in row["cells"][number + 1 :]:
                            assert all(apart(a, b) for a in cell["texts"] for b in other["texts"]), table
                for number, cell in enumerate(rows[0]["cells"]):
                    if cell["numeric"]:
                        starts = {round(row["cells"][number]["texts"][1]["left"]) for row in rows}
                        assert len(starts) == 1, f"{table}: figures start at {starts}"
            page.go("#/?sort=-lag")
            page.sees("#groups tbody", "billing")
            page.run(
                "const by = document.querySelector('[name=sort-groups]'); by.value = '-members';"
                "by.dispatchEvent(new Event('change'))"
            )
            assert "sort=-members" in page.run("return location.hash")
            wait_until(lambda: page.text("#groups tbody tr:nth-child(3) a") == "twelve", PATIENCE_S)
            for view in ("#/", "#/topics", "#/brokers"):
                page.go(view)
                page.sees("h2", {"#/": "Groups"}.get(view, view[2:].capitalize()))
                assert page.violations() == []
            assert page.complaints() == []

        await by_person(look)


def heights(page: Page, *selectors: str) -> list[tuple[float, float]]:
    found = "const box = document.querySelector({!r}).getBoundingClientRect(); return [box.top, box.bottom]"
    return [tuple(page.run(found.format(selector))) for selector in selectors]


@pytest.mark.parametrize(
    ("group", "width", "height"),
    [("billing", 1440, 900), ("solo", 1440, 900), ("twelve", 1280, 800), ("twelve", 390, 844)],
)
async def test_the_first_screen_shows_figures_findings_owners_and_members(
    browser: Any, group: str, width: int, height: int
) -> None:
    page = Page(browser)
    async with made(several, actions={"orders/put": nothing}) as url:

        def look() -> None:
            page.open(f"{url}/#/group/{group}", width, height)
            page.sees("#members", "worker-00")
            page.sees("#figures", "committed")
            page.sees("#findings", "No warnings" if group != "billing" else "Start more members")
            rows_of(page, "members")
            wait_until(
                lambda: heights(page, "#grids canvas")[0][1] > heights(page, "#grids canvas")[0][0] + 20, PATIENCE_S
            )
            figures, findings, grids = heights(page, "#figures", "#findings", "#grids")
            assert 0 < figures[1] < findings[0] < findings[1] < grids[0]
            shown = min(height, grids[1]) - grids[0]
            assert shown >= min(120, grids[1] - grids[0]), "owners"
            lines = {1440: 8 if group == "billing" else 1, 1280: 8, 390: 1}[width]
            row = f"#members tbody tr:not(.gap):nth-child({lines + 1})"
            (member,) = heights(page, f"{row} .member")
            assert member[1] <= height, f"member {lines} ends at {member[1]}"

        await by_person(look)


@pytest.mark.parametrize("width", [1440, 390])
async def test_a_panel_without_content_is_one_line(browser: Any, width: int) -> None:
    page = Page(browser)
    async with made(several, actions={"orders/put": nothing}) as url:

        def look() -> None:
            page.open(f"{url}/#/group/solo", width, 844)
            page.sees("#orders-section", "No commands.")
            page.sees("#view", "Only one member.")
            for panel in ("#orders-section", "#findings", "section[aria-labelledby=s-load-by-member]"):
                ((top, bottom),) = heights(page, panel)
                assert bottom - top <= 52, panel
            if width > 1000:
                ((top, bottom),) = heights(page, "section[aria-labelledby=s-rebalances]")
                assert bottom - top <= 52, "no rebalance"

        await by_person(look)


async def test_a_member_that_left_keeps_its_name(browser: Any) -> None:
    page, shown = Page(browser), watcher_of(2, 5, 40)
    group = shown.groups["billing"]
    document = group.report.state.document
    assert document is not None
    leaving = member_id(2)
    async with made(lambda: shown) as url:

        def look() -> None:
            page.open(f"{url}/#/group/billing/member/{member_id(1)}")
            page.sees("h2", "worker-01@node-1:4001#1")  # the page is opened long after it crashed
            page.sees("#view", "has left the group")
            page.sees("#shares", "to worker-")
            page.go(f"#/group/billing/member/{leaving}")
            page.sees(".facts", "4002")

        await by_person(look)
        names = frozenset({"orders", "payments"})
        held = {member: parts for member, parts in document.owners.items() if member != leaving}
        now = time.time()
        group.learn(state_of("billing", 3, held, topics=names), now, News(now, frozenset({leaving})))
        group.learn(state_of("billing", 4, without(document.owners, leaving), topics=names), now + 0.1)
        shown.changed()

        def look_again() -> None:
            page.sees("#view", "has left the group")
            page.sees("h2", "worker-02@node-2:4002#2")
            page.sees("#shares", "to worker-")
            assert page.run("return document.title").startswith("worker-02@node-2:4002#2 of billing")
            assert page.complaints() == []

        await by_person(look_again)


def _with_many_topics() -> Watcher:
    found = watcher_of(2, 4, 40)
    assert found.metadata is not None
    one = TopicMetadata({0: PartitionMetadata(1, 5, (1, 2))}, False, None)
    found.metadata = found.metadata.__class__(
        found.metadata.brokers, {**found.metadata.topics, **{f"many-{n:04}": one for n in range(5000)}}, controller=1
    )
    return found


async def test_topics_and_brokers_have_lists_and_records_a_picker_of_topics(browser: Any) -> None:
    page, watched = Page(browser), functools.lru_cache(_with_many_topics)
    async with made(watched, records=records_page("viewers")) as url:

        def offered() -> list[str]:
            return list(page.run("return [...document.querySelectorAll('#record-topics option')].map((o) => o.value)"))

        def look() -> None:
            page.open(f"{url}/#/")
            page.sees("nav.tabs", "Brokers")
            page.run("[...document.querySelectorAll('nav.tabs a')].find((a) => a.innerText === 'Topics').click()")
            page.sees("h2 + p", "5\u202f004 topics")
            assert page.run("return document.querySelectorAll('#topics tbody tr').length") < 100
            page.run("document.querySelector('input[name=q]').focus()")
            page.press("payments")
            page.sees("h2 + p", "1 of 5\u202f004 topics")
            found = page.text("#topics tbody").split()
            assert (found[:4], found[-1]) == (["payments", "16", "3", "0"], "billing")
            page.run("[...document.querySelectorAll('#topics a')].find((a) => a.innerText === 'billing').click()")
            page.sees("h2", "Topic payments")
            page.go("#/topics?q=unread")
            page.sees("#topics", "none")
            page.go("#/brokers")
            page.sees("#brokers", "broker-1.example:9092")
            page.sees("#brokers", "not in the cluster")
            page.sees("#brokers", "controller")
            page.go("#/records")
            page.run("document.querySelector('input[name=topic]').focus()")
            wait_until(lambda: len(offered()) == 100, PATIENCE_S, "no more than a hundred at once")
            page.press("pay")
            wait_until(lambda: offered() == ["payments"], PATIENCE_S)
            ((top, bottom), (label_top, label_bottom)) = heights(page, ".check input", ".check span")
            assert abs((top + bottom) - (label_top + label_bottom)) <= 8, "the box and its label are in one line"
            gap = page.run(
                "return document.querySelector('.check span').getBoundingClientRect().left"
                " - document.querySelector('.check input').getBoundingClientRect().right"
            )
            assert 0 <= gap <= 16
            assert page.complaints() == []

        await by_person(look)


@pytest.mark.parametrize("width", [1440, 390])
async def test_nothing_moves_while_figures_change(browser: Any, width: int) -> None:
    page, shown = Page(browser), watcher_of(2, 4, 40)
    group = shown.groups["billing"]
    partitions = sorted(group.report.partitions)
    watch = (
        "window.moved = []; new PerformanceObserver((list) => { for (const each of list.getEntries())"
        " window.moved.push([each.value, ...each.sources.map((it) => it.node?.outerHTML?.slice(0, 80))]); })"
        ".observe({ type: 'layout-shift' })"
    )
    async with made(lambda: shown) as url:

        def start() -> None:
            page.open(f"{url}/#/group/billing", width, 844)
            page.sees("#members", "worker-00")
            page.sees("#charts", "committed")
            wait_until(lambda: page.run("return document.fonts.status") == "loaded", PATIENCE_S)
            page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            page.run(watch)

        await by_person(start)
        at = time.time()
        for number, lag in enumerate((7, 12_345, 0, 1_234_567, 999, 88)):
            ends = dict.fromkeys(partitions, 200_000 + 5000 * number + lag)
            committed = {p: OffsetAndMetadata(200_000 + 5000 * number, "", -1) for p in partitions}
            group.measure(Logs(committed, dict.fromkeys(partitions, 0), ends), frozenset(partitions), at + 5 * number)
            shown.changed()
            figure = {7: "280", 12_345: "494k", 0: "0", 1_234_567: "49M", 999: "40k", 88: "3.5k"}[lag]
            await by_person(page.sees, "#figures div:nth-child(6)", f"\n{figure}")

        def end() -> None:
            page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert page.run("return window.moved") == []
            page.run("document.getElementById('figures').style.marginTop = '90px'")
            wait_until(lambda: page.run("return window.moved.length"), PATIENCE_S, "the browser reports what moves")
            assert TOKEN not in page.driver.page_source

        await by_person(end)


async def test_what_a_view_still_does_brings_it_back_no_more_once_it_was_left(browser: Any) -> None:
    page = Page(browser)
    async with made(several) as url:

        def look() -> None:
            page.open(f"{url}/#/")
            page.sees("h2 + p", "52 groups")
            page.run(
                "location.hash = '#/topics'; const search = document.querySelector('input[name=q]');"
                "search.value = 'bill'; search.dispatchEvent(new Event('input'))"
            )
            page.sees("h2", "Topics")
            assert page.run("return location.hash") == "#/topics"
            assert page.complaints() == []

        await by_person(look)
