"""The page in a real browser, over a real ZooKeeper or generated groups."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client import CollectorRegistry

from allocator import Consumer
from allocator.assignors import GroupView
from allocator.commands.command import Command, CommandResult, Commands
from allocator.core.aio.clock import wall_ms
from allocator.documents.packed import from_ranges
from allocator.operate import Clusters
from allocator.operate.dead_letters import DeadLetterQueue, Letter, LetterFilter, Outcome
from allocator.operate.deletion import GroupRemains
from allocator.operate.what_if import GroupPlan, Scenario, plan_of
from allocator.protocols.zookeeper.client.client import ConnectionLost
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until, wait_until_async
from allocator.types import Record, TopicPartition
from allocator.viewer import Reader, Viewer
from allocator.web.actions import GroupWork, actions
from allocator.web.dead_letters import LetterDesk
from allocator.web.guard import Guard
from allocator.web.requests import CommandRequest, DeleteRequest, PlanRequest, Suppositions
from allocator.web.server import Site, serve
from allocator.web.watch import Watcher
from tests.inside import member_of
from tests.web.browsing import (
    DOWN,
    END,
    ENTER,
    HOME,
    PAGE_DOWN,
    PAGE_UP,
    PATIENCE_S,
    RIGHT,
    UP,
    Page,
    needs_browser,
    served_page,
    watcher,
)
from tests.web.generated_groups import watcher_of
from tests.web.generated_records import records_page
from tests.web.served import TOKEN, one_group, served
from tests.web.written_group import member_id, parts, written

pytestmark = needs_browser


async def test_a_page_follows_a_rebalance_without_being_loaded_again(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    name = "orders & <co>"
    async with written(zk_chroot, name, "t") as group, served(zk_chroot) as it:
        a, b = await group.join(0, 1)
        held = {a: frozenset(parts(t=8)[:4]), b: frozenset(parts(t=8)[4:])}
        await group.own(held)
        await it.settled(name, 1)

        def check() -> None:
            page.open(it.url)
            page.sees("#groups", name)
            page.run("window.loadedOnce = true; document.querySelector('#groups tbody a').click()")
            page.sees("#name", name)
            page.sees("#phase", "stable")
            page.sees("#link", "live")
            page.sees("#members", "worker-01")

        await asyncio.to_thread(check)
        (c,) = await group.join(2)
        given = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
        await group.assign({a: held[a] - given, b: held[b]}, {c: given}, {a: given})
        await asyncio.to_thread(page.sees, "#phase", "rebalancing")
        await asyncio.to_thread(page.sees, "#members", "releases 2")
        held = {a: held[a] - given, b: held[b], c: given}
        await group.claim({a: held[a]})
        await group.assign(held, generation=2)
        await group.claim(held)

        def check_again() -> None:
            page.sees("#phase", "stable")
            page.sees("#legend", "2 moved")
            page.go(f"#/group/{quote(name)}/rebalances")
            page.sees("#history", "joined: worker-02@node-2#2")
            page.sees("#history", "worker-00@node-0#0 → worker-02@node-2#2 (2)")
            page.run("document.querySelector('#history tbody a').click()")
            page.sees(".flow", "worker-02@node-2#2 (2)")
            page.sees("#moves", "t:1")
            page.go(f"#/group/{quote(name)}/member/{c}")
            page.sees("h2", "worker-02@node-2#2")
            page.sees("#shares", "2 from worker-00@node-0#0")
            page.sees("#partitions", "t:0")
            page.sees(".facts", "worker-02")
            assert page.run("return window.loadedOnce === true")
            assert page.complaints() == []

        await asyncio.to_thread(check_again)


async def test_a_page_keeps_the_focus_and_marks_old_data(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with one_group(zk_chroot, 8) as (it, group, _):

        def check() -> None:
            page.open(f"{it.url}/#/group/g")
            page.sees("#phase", "stable")
            page.sees("#link", "live")
            page.sees("#as-of", "owners as of")
            page.run("document.querySelector('#members tbody a').focus()")

        await asyncio.to_thread(check)
        await group.join(1)
        await asyncio.to_thread(page.sees, "#members", "worker-01")
        it.watcher.fail(ConnectionLost("ZooKeeper does not respond"))

        def check_again() -> None:
            page.sees("#link", "a cluster does not respond")
            page.sees("#phase", "when ZooKeeper last responded")
            page.sees("#wrong", "has not responded since")
            assert "good" not in page.run("return document.querySelector('#phase .badge').className")
            assert page.run("return document.body.classList.contains('old-zookeeper')"), "old data is grey"
            grey = "return ['#findings', '#grids', '#members'].every((it) => document.querySelector(it).closest({!r}))"
            assert page.run(grey.format(".old-zookeeper [data-from=zookeeper]"))
            assert "worker-00" in page.focused()
            assert page.violations() == []
            assert page.complaints() == []

        await asyncio.to_thread(check_again)

    def without_a_server() -> None:
        page.sees("#link", "no connection")
        page.sees("#wrong", "Everything below is as of")

    await asyncio.to_thread(without_a_server)


async def test_the_keyboard_reaches_every_partition_and_member(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "g", "t", "u") as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        held = {a: frozenset(parts(t=3, u=2)) - {TopicPartition("u", 1)}}
        await group.assign(held, {a: frozenset({TopicPartition("u", 1)})})
        await group.claim(held)

        def walk() -> None:
            page.open(f"{it.url}/#g")  # as older versions wrote it
            page.sees("#members", "worker-00")
            page.run("document.getElementById('grids').focus()")
            page.press(RIGHT)
            page.sees("#cell", "t 0 · owned by W0 worker-00@node-0#0")
            page.press(RIGHT, RIGHT, RIGHT)
            page.sees("#cell", "u 0")
            page.press(END)
            page.sees("#cell", "u 1 · goes to W0 worker-00")
            page.press(PAGE_UP, HOME)
            page.sees("#cell", "t 0")
            page.run("document.querySelector('#members tbody a').focus()")
            page.press(ENTER)
            page.sees("h2", "worker-00@node-0#0")
            assert "worker-00" in page.focused(), "the focus follows to the new view"
            page.run("document.querySelector('#partitions').parentElement.focus()")
            page.press(DOWN)
            assert page.focused() == "t:0"
            page.press(DOWN, DOWN, UP)
            assert page.focused() == "t:1"
            page.press(END)
            assert page.focused() == "u:1"
            assert page.complaints() == []

        await asyncio.to_thread(walk)


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1440, False, marks=pytest.mark.long), (390, True)])
async def test_every_view_of_a_large_group_fits_and_has_no_barrier(browser: Any, width: int, dark: bool) -> None:
    """50 groups, one of 100 members and 10,000 partitions."""
    page = Page(browser)
    async with served_page() as url:

        def fits() -> None:
            assert page.run("return document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
            assert page.violations() == []

        def walk() -> None:
            page.open(f"{url}/#/?sort=-lag", width, dark=dark)
            page.sees("h2 + p", "50 groups")
            wait_until(lambda: page.text("#groups tbody a") == "billing", 30)
            if width > 1200:
                assert page.run("return document.querySelector('th[aria-sort] button').innerText") == "lag"
            else:  # cards have no heads to press
                assert page.run("return document.querySelector('[name=sort-groups]').value") == "-lag"
            fits()
            page.run("document.querySelector('input[name=q]').focus()")
            page.press("team 3")
            page.sees("h2 + p", "of 50 groups")
            assert "q=team+3" in page.run("return location.hash")
            page.go("#/group/billing?colour=age")
            page.sees("#figures", "10\u202f000")
            page.sees("#members", "worker-02")
            page.sees("#legend", "up to 1 min")
            # the last cell of the last row is in place
            page.run("document.getElementById('grids').focus()")
            page.press(PAGE_DOWN, END)
            page.sees("#cell", "payments 3999 · owned by")
            fits()
            page.go("#/group/billing/partitions?sort=-lag")
            page.sees("#partitions", "orders:")
            page.sees(".filters", "10\u202f000 partitions")
            assert page.run("return document.querySelectorAll('#partitions tbody tr').length") < 200
            page.run("document.querySelector('#partitions tbody a').focus()")
            page.press(END)
            last = page.focused()
            page.press(HOME, END)
            assert page.focused() == last != ""
            fits()
            rebalances = page.run("return fetch('api/groups/billing').then((found) => found.json())")["rebalances"]
            page.go(f"#/group/billing/rebalance/{rebalances[1]['id']}")
            page.sees("#moves", "up to 1")
            page.sees(".figures", "117 of 10\u202f000")
            fits()
            page.go("#/group/billing/member/m-0000000000000005-0000000005")
            page.sees(".facts", "4005")
            page.sees(".facts", "0.1.0")
            page.sees("#partitions", "orders:")
            fits()
            page.go("#/group/billing/topic/payments")
            page.sees("#readers", "worker-")
            fits()
            assert page.complaints() == []

        await asyncio.to_thread(walk)


# -- actions of operators, over groups and letters in memory -----------------------------------------------------------


class RecordedWork(GroupWork):
    """Responds like the clusters and records the requests."""

    def __init__(self) -> None:
        super().__init__(Clusters())
        self.requests: list[tuple[str, Any]] = []

    def actions(self) -> dict[str, Any]:
        return {
            **actions(self),
            **{f"commands/{what}": functools.partial(self.on_commands, what) for what in ("put", "withdraw")},
        }

    async def on_commands(self, what: str, group: str, given: Any, user: str) -> dict[str, Any]:
        self.requests.append((what, given))
        return {"group": group, "command": "o-12345678", "state": "given", "state_why": "", "withdrawn": []}

    async def preview(self, group: str, command: CommandRequest, user: str) -> dict[str, Any]:
        if "partitions" not in command.arguments:
            found = (await self.planned()).to_json()
            return {"group": group, "command": {"state": "given"}, "partitions": [], "plan": found, "creates": None}
        rows = [
            {"topic": p.topic, "partition": p.partition, "owner_name": "worker-00@node-0#0", "committed": 100}
            | {"log_start": 0, "log_end": 160, "lag": 60, "to": 0 if command.kind == "seek" else None}
            for p in sorted(from_ranges(command.arguments["partitions"]))
        ]
        return {"group": group, "command": {"state": "given"}, "partitions": rows, "plan": None, "creates": None}

    async def plan(self, group: str, body: PlanRequest, user: str) -> dict[str, Any]:
        changes = {name: getattr(body, name) for name in Suppositions.__struct_fields__}
        self.requests.append(("plan", (changes, [command.kind for command in body.commands], body.apply)))
        found = await self.planned()
        return {**found.to_json(), "executed": body.apply, "applied": ["o-12345678"] if body.apply else []}

    async def planned(self) -> GroupPlan:
        state = watcher().groups["billing"].report.state
        scenario = Scenario.of(state, {"orders": 6000, "payments": 4000}).removing(next(iter(state.members)))
        return await plan_of(scenario, _view, round_trip_s=0.002)

    async def delete(self, group: str, body: DeleteRequest, user: str) -> dict[str, Any]:
        execute = body.confirm is not None
        self.requests.append(("delete", execute))
        return GroupRemains(group, (), ("/allocator/g",), 12).to_json(executed=execute)


async def _view(assignor: Any, members: Any, counts: Any, owned: Any) -> GroupView:
    return GroupView(members, dict(counts), owned)


EVERY = LetterFilter()
SEEK = "#partitions button[aria-label='Seek orders:0']"


class LettersInMemory(DeadLetterQueue):
    """The letters of a topic without brokers. Guards nothing: `DeadLetterQueue`'s own tests do."""

    def __init__(self, settled: list[tuple[str, list[str]]]) -> None:
        super().__init__("orders.dead", "nowhere:1")
        self._settled_letters = settled

    async def __aenter__(self) -> LettersInMemory:
        return self

    async def read(self, chosen: LetterFilter = EVERY, *, settled: bool = False) -> AsyncIterator[Letter]:
        removed = {name for _, names in self._settled_letters for name in names}
        for number in range(120):
            headers = [
                ("allocator.topic", b"orders"),
                ("allocator.partition", b"%d" % (number % 4)),
                ("allocator.offset", b"%d" % (1000 + number)),
                ("allocator.error", b"ValueError: a price of -1" if number % 3 else b"TimeoutError: <b>slow</b>"),
                ("allocator.attempts", b"5"),
                ("kafka_dlt-exception-stacktrace", b"Traceback\n  File handlers.py, line 7"),
            ]
            letter = Letter.of(
                Record("orders.dead", 0, number, 1_700_000_000_000, 0, b"key", b'{"price": -1}', headers)
            )
            if chosen.matches(letter) and letter.name not in removed:
                yield letter

    async def redrive(self, chosen: LetterFilter = EVERY, *, execute: bool = False, **_: Any) -> Outcome:
        found = Outcome([letter async for letter in self.read(chosen)])
        if execute:
            self._settled_letters.append(("redriven", [letter.name for letter in found.done]))
        return found


async def _topics() -> set[str]:
    return {"orders", "orders.dead", "orders.dead.settled"}


def _with_commands() -> Watcher:
    """A small group with commands about its partitions."""
    found = watcher_of(1, 4, 40)
    group = found.groups["billing"]
    state = group.report.state
    now_ms = wall_ms()
    pause = Command.make("pause", {"partitions": {"orders": "0-2"}}, who="alice", now_ms=now_ms, why="a broken schema")
    seek = Command.make("seek", {"partitions": {"orders": "3"}, "to": "earliest"}, who="bob", now_ms=now_ms)
    result = CommandResult(now_ms, "m", frozenset({TopicPartition("orders", 3)}), "sought to 0 from 70")
    commands = Commands((pause, replace(seek, results=(result,))))
    group.learn(replace(state, commands=commands, read_ms=now_ms), now_ms / 1000)
    group.judge([], group.version["state"])
    return found


async def test_an_operator_gives_commands_plans_and_settles_letters(browser: Any) -> None:
    page = Page(browser)
    work, settled = RecordedWork(), list[tuple[str, list[str]]]()
    desk = LetterDesk(lambda topic, user: LettersInMemory(settled), _topics, Viewer(Reader("nowhere:1")))

    def fill(name: str, value: str) -> None:
        page.run(
            f"const it = document.querySelector('[name={name}]'); it.value = {value!r};"
            "it.dispatchEvent(new Event('input')); it.dispatchEvent(new Event('change'))"
        )

    def opens(label: str) -> None:
        page.run(f"document.querySelector('button[aria-label=\"{label}\"]').click()")

    def records(url: str) -> None:
        page.open(f"{url}/#/group/billing/partitions?q=orders:0")
        page.sees("#partitions", "paused")
        page.run("document.querySelector('#partitions button[aria-label=\"Commands about orders:0\"]').focus()")
        page.press(ENTER)
        page.sees("dialog", "pause orders:0-2, by alice")
        page.sees("dialog", "a broken schema")
        fill("token", TOKEN)
        page.click("Withdraw pause")
        page.sees("dialog", "The command stays for its other partitions")
        page.click("Yes, withdraw pause")
        page.sees("dialog .result", "Withdrawn")
        page.click("Close")
        assert page.focused() == "paused"
        opens("Skip the partitions below")
        page.click("Skip")
        page.sees("dialog .result", "enter the offset")
        fill("record-offset", "42")
        page.click("Skip")
        page.sees("dialog .step", "committed already, so the command changes nothing")
        page.click("Close")
        opens("Seek orders:0")
        page.click("Seek")
        page.sees("dialog .step", "100 records of 1 partition would be read again")
        page.run("document.querySelector('[name=record-why]').focus()")
        page.press("a fixed handler")  # after which another command would be given than was shown
        page.click("Seek")
        page.sees("dialog .step", "100 records of 1 partition would be read again")
        assert page.violations() == []
        page.click("Yes, seek")
        page.sees("dialog .result", "is added")
        page.run(
            f"const seek = document.querySelector({SEEK!r}); seek.replaceWith(seek.cloneNode(true))"
        )  # drawn again
        closed = (
            "[...document.querySelectorAll('dialog button')].at(-1).click(); return document.activeElement.ariaLabel"
        )
        assert page.run(closed) == "Seek orders:0", "the focus comes back to the row at once"
        page.go("#/group/billing/partitions?q=orders")
        page.sees(".filters", "24 of 40 partitions")
        page.click("In force…")
        page.sees("dialog", "seek orders:3")
        page.click("Seek orders:3 back to 70")
        page.click("Yes, seek back")
        page.sees("dialog .result", "Command added")
        page.click("Close")

    def plans() -> None:
        page.go("#/group/billing/plan")
        page.click("Add to the plan")
        page.sees(".result", "enter a name")
        fill("plan-what", "remove")
        page.click("Add to the plan")
        page.sees(".plain-list", "leaves")
        assert "what=" in page.run("return location.hash"), "a link leads to this plan"
        page.click("Show the plan")
        page.sees(".result", "partitions would move; each has a standstill of about 10 ms")
        page.sees(".flow", "from")
        page.sees("#planned-members", "leaves")
        assert page.violations() == []
        page.run("document.querySelector('.plain-list button').click()")
        fill("plan-what", "command:freeze")
        page.click("Add to the plan")
        page.click("Show the plan")
        page.sees(".result", "Nothing was changed")
        page.click("Apply: add these commands")
        page.click("Yes, add these commands")
        page.sees(".result", "Added: o-12345678")

    def letters() -> None:
        page.go("#/letters?topic=orders.dead&error=timeout")
        page.click("List the letters")
        page.sees("#view", "40 letters")
        page.sees("#letters", "TimeoutError: <b>slow</b>")
        page.run("document.querySelector('#letters button[aria-label]').focus()")
        page.press(ENTER)
        page.sees("dialog", "File handlers.py, line 7")
        page.sees("dialog", "allocator.topic")
        assert page.violations() == []
        page.click("Redrive this letter…")
        page.sees("dialog .result", "1 letter of orders.dead would be written back")
        page.click("Redrive 1 letter")
        page.click("Yes, redrive 1 letter")
        page.sees("dialog .result", "1 letter redriven")
        page.click("Close")
        page.sees("#view", "39 letters")
        page.click("Redrive all that match…")
        page.sees("dialog .result", "39 letters of orders.dead")
        page.click("Close")

    def end() -> None:
        page.go("#/group/billing")
        page.sees("#phase", "stable")
        page.click("Canary…")
        page.click("Canary")
        page.sees("dialog .result", "enter how many partitions")
        fill("command-count", "2")
        page.click("Canary")
        page.sees("dialog .step", "4 members before it, count 2")
        page.sees("dialog .step", "partitions would move")
        page.click("Yes, canary")
        page.sees("dialog .result", "is added")
        page.click("Close")
        page.click("Delete…")
        page.click("Delete")
        page.sees("dialog .step", "1 znode and the committed offsets of 12 partitions")
        page.click("Yes, delete")
        page.sees("dialog .result", "enter the name of the group")
        fill("delete-confirm", "billing")
        page.click("Yes, delete")
        page.sees("dialog .result", "Deleted: 1 znode")
        page.click("Close")
        page.go("#/audit")  # with the token that the page already has
        page.sees("#changes", "deadletters/redrive")
        assert page.complaints() == []

    shown = functools.lru_cache(_with_commands)
    async with served_page(shown, actions=work.actions(), letters=desk) as url:
        await asyncio.to_thread(records, url)
        for step in (plans, letters, end):
            await asyncio.to_thread(step)
    kinds = [what for what, _ in work.requests]
    assert kinds == ["withdraw", "put", "put", "plan", "plan", "plan", "put", "delete", "delete"]
    assert work.requests[0][1] == {"kind": "pause", "arguments": {"partitions": {"orders": "0"}}}
    assert work.requests[2][1]["arguments"] == {"partitions": {"orders": "3"}, "to": "70"}
    known = [f"worker-{number:02}@node-{number}:{4000 + number}" for number in (0, 2, 3, 4)]
    assert work.requests[-3][1]["arguments"] == {"known": known, "promoted": [], "count": 2}
    assert [body for what, body in work.requests if what == "plan"][2][1:] == (["freeze"], True)
    assert settled == [("redriven", ["0:0"])]
    texts = [event.text for event in shown().log.events]
    assert (texts.count("deadletters/redrive"), texts.count("commands/put"), texts[-1]) == (1, 3, "delete")


async def test_a_group_of_kafkas_own_protocol_gets_commands_about_records_alone(
    browser: Any, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    page, topic = Page(browser), topic_factory(4)
    consumer = Consumer(
        topic, brokers=kafka_cluster.bootstrap, group=group, membership="kafka", client_id="worker", max_wait_s=0.05
    )
    async with served(None, kafka_cluster.bootstrap, kafka_groups=[group]) as it, consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 4, PATIENCE_S)

        def walk() -> None:
            page.open(f"{it.url}/#/")
            page.sees("#groups", group)
            page.go(f"#/group/{group}")
            page.sees("#phase", "stable")
            page.sees("#strategy", "assignor")
            page.sees("#members", "worker@")
            assert "generation" not in page.text("#figures"), "Kafka does not report it"
            assert page.run("return document.querySelector('#commands-section').hidden"), (
                "no command, and none to add here"
            )
            shown = "return [...document.querySelectorAll('.tabs a')].filter((a) => !a.hidden).map((a) => a.innerText)"
            assert "Plan" not in page.run(shown)
            assert page.violations() == []
            assert page.text("#acts").split("\n") == [
                "Reset offsets…",
                "Copy offsets…",
                "Mark a deployment…",
                "Delete…",
            ]
            page.go(f"#/group/{group}/partitions")
            page.sees("#partitions", f"{topic}:1")
            assert "Pin…" not in page.text("#partitions")
            page.run(f"document.querySelector('button[aria-label=\"Pause {topic}:1\"]').click()")
            page.run("document.querySelector('dialog input[name=token]').focus()")
            page.press(TOKEN)
            page.click("Pause")
            page.sees("dialog .step", f"It creates the topic {group}.orders")
            assert page.violations() == []
            page.click("Yes, pause")
            page.sees("dialog .result", "is added")
            page.click("Close")
            page.sees("#partitions", "paused")
            page.run(f"document.querySelector('button[aria-label=\"Commands about {topic}:1\"]').click()")
            page.sees("dialog .row", "by token")

        await asyncio.to_thread(walk)
        paused = TopicPartition(topic, 1)
        state = member_of(consumer).state
        await wait_until_async(lambda: not state.is_fetchable(paused), PATIENCE_S, "the pause")

        def undo() -> None:
            page.click("Withdraw pause")
            page.click("Yes, withdraw pause")
            page.sees("dialog", "No command about them")
            assert page.complaints() == []

        await asyncio.to_thread(undo)
        await wait_until_async(lambda: state.is_fetchable(paused), PATIENCE_S, "the end of the pause")


async def test_a_change_needs_the_token_and_a_second_click(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with one_group(zk_chroot) as (it, group, _):

        def check() -> None:
            page.open(f"{it.url}/#/group/g")
            page.sees("#phase", "stable")
            page.click("Rebalance…")
            page.sees("dialog", "do not stop")
            page.click("Rebalance")
            page.sees("dialog .result", "the token is missing or wrong")
            page.run("document.querySelector('dialog input[name=token]').focus()")
            page.press(TOKEN)
            page.click("Rebalance")
            page.sees("dialog .step", "No partition would move.")
            assert page.focused() == "Yes, rebalance"
            page.click("Yes, rebalance")
            page.sees("dialog .result", "the next generation will follow")
            assert page.focused() == "Rebalance"
            page.click("Close")
            assert page.focused() == "Rebalance…"
            page.click("Pause…")
            page.sees("dialog", "The group reads nothing until you resume")
            page.click("Pause")
            page.sees("dialog .step", "At most 1 member with 2 partitions would leave")
            page.click("Yes, pause")
            page.sees("dialog .result", "its members will leave")
            page.sees("#phase", "paused, still running: 1")
            page.click("Close")
            page.click("Resume…")
            page.click("Resume")
            page.click("Yes, resume")
            page.sees("#phase", "stable")
            page.click("Close")
            page.go(f"#/group/g/member/{member_id(0)}")
            for kind, inputs in {"Swap": 1, "Evacuate": 0, "Cordon": 0}.items():
                page.click(f"{kind}…")
                page.sees("#dialog-title", f"{kind} worker-00@node-0")
                assert page.run("return document.querySelectorAll('dialog select').length") == inputs, kind
                if kind != "Cordon":
                    page.click("Close")
            page.click("Cordon")
            page.sees("dialog .step", "member worker-00@node-0#0: No partition would move.")
            page.click("Yes, cordon")
            page.sees("dialog .result", "is added")
            page.click("Close")
            page.go("#/group/g")
            page.click("Mark a deployment…")
            page.run("document.querySelector('dialog input[name=note]').focus()")
            page.press("version 1.4.2")
            page.click("Mark")
            page.sees("dialog .result", "Noted")
            assert page.violations() == []
            page.click("Close")
            page.sees("#timeline", "◆")
            page.sees("#commands", "cordon member worker-00@node-0")
            assert page.focused() == "Mark a deployment…"
            page.run("document.querySelector('#commands button[aria-label]').click()")
            page.click("Withdraw")
            page.click("Yes, withdraw cordon")
            page.sees("dialog .result", "Withdrawn")
            page.click("Close")
            assert TOKEN not in page.driver.page_source
            # the token is entered once for a tab, and ends with it
            assert page.run("return document.cookie + JSON.stringify(localStorage)") == "{}"
            assert page.run("return {...sessionStorage}") == {"token": TOKEN}

        await asyncio.to_thread(check)
        assert await group.store.zk.exists(group.store.paths.assignment) is None


async def test_real_servers_are_shown_with_their_offsets_and_reset_by_hand(
    browser: Any,
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    unique_name: Callable[[], str],
) -> None:
    page = Page(browser)
    topic = await asyncio.to_thread(topic_factory, 3)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"%d" % n, n % 3) for n in range(90)])
    chroot = f"{kafka_cluster.zookeeper}/{unique_name()}"
    async with served(chroot, kafka_cluster.bootstrap) as it:
        async with Consumer(
            topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=chroot, client_id="only"
        ) as consumer:
            await wait_until_async(lambda: len(consumer.assignment()) == 3, PATIENCE_S)
            await consumer.commit(dict.fromkeys(consumer.assignment(), 20))

            def check() -> None:
                page.open(f"{it.url}/#/group/{group}/partitions")
                page.sees("#partitions", "only@")
                page.sees("#partitions", "20")
                page.sees("#as-of", "offsets as of")
                page.go("#/?q=" + group)
                page.sees("#groups", "30")  # 3 partitions of 10 records each
                page.go(f"#/group/{group}/topic/{topic}")
                page.sees("#readers", "only@")
                page.go(f"#/topics?q={topic}")
                page.sees("#topics", group)
                page.go("#/brokers")
                page.sees("#brokers", "controller")

            await asyncio.to_thread(check)

        def reset() -> None:
            page.go(f"#/group/{group}")
            page.sees("#phase", "empty")
            page.click("Reset offsets…")
            page.run("document.querySelector('dialog input[name=token]').focus()")
            page.press(TOKEN)
            page.run(
                "const kind = document.querySelector('select[name=kind]'); kind.value = 'shift';"
                "kind.dispatchEvent(new Event('change')); const amount = document.querySelector('input[name=amount]');"
                "amount.value = '-5'; amount.dispatchEvent(new Event('input'))"
            )
            page.click("Reset offsets")
            page.sees("dialog .step", "15 records of 3 partitions would be read again")
            page.run("document.querySelector('dialog input[name=confirm]').focus()")
            page.press(group)
            page.click("Yes, reset offsets")
            page.sees("dialog .result", "3 offsets committed")
            page.click("Close")
            page.go(f"#/group/{group}/partitions?q={topic}:0")
            page.sees("#partitions", "15")
            assert page.complaints() == []

        await asyncio.to_thread(reset)


async def test_a_read_only_page_offers_no_change(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with one_group(zk_chroot, token=None) as (it, _, _):

        def check() -> None:
            page.open(f"{it.url}/#/group/g")
            page.sees("#phase", "stable")
            assert page.text("#acts") == ""

        await asyncio.to_thread(check)
        assert (await it.json("/api/groups"))["read_only"] is True


async def test_names_from_znodes_are_escaped(browser: Any, zk_chroot: str) -> None:
    from allocator.protocols.zookeeper.znodes.documents import Claim, MemberInfo

    page = Page(browser)
    evil = "<img src=x onerror='window.harm=1'><script>window.harm=1</script>"
    async with written(zk_chroot, "<b>g", "t") as group, served(zk_chroot) as it:
        await group.store.prepare()
        info = MemberInfo(evil, evil, frozenset({evil}), rack=evil, strategies=(evil,))
        paths = group.store.paths
        await group.store.zk.create(paths.member(member_id(0)), info.encode(), ephemeral=True)
        held = frozenset({TopicPartition(evil, 0)})
        await group.store.zk.create(paths.claim(member_id(0)), Claim(1, held, 1).encode(), ephemeral=True)
        await group.assign({member_id(0): held})

        def check() -> None:
            page.open(f"{it.url}/#/group/{quote('<b>g')}")
            page.sees("#members", evil)
            page.sees("#grids", evil)
            for view in ("partitions", "rebalances", f"topic/{quote(evil, safe='')}", f"member/{member_id(0)}"):
                page.go(f"#/group/{quote('<b>g')}/{view}")
                page.sees("#name", "<b>g")
            page.sees("#partitions", evil)
            assert page.run("return window.harm") is None
            assert page.complaints() == []

        await asyncio.to_thread(check)


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1280, False, marks=pytest.mark.long), (390, True)])
async def test_records_are_found_opened_and_saved_and_masks_hold(browser: Any, width: int, dark: bool) -> None:
    page = Page(browser)
    records = records_page("operators", masks=["value.card"])
    site = Site(Guard.make(token=TOKEN), CollectorRegistry(), watcher=watcher(), records=records)
    async with serve(site) as port:

        def walk() -> None:
            page.open(f"http://127.0.0.1:{port}/#/", width, dark=dark)
            page.sees("h2 + p", "50 groups")
            page.run("[...document.querySelectorAll('nav a')].find((each) => each.innerText === 'Records').click()")
            page.sees("h2", "Records")
            page.run("document.querySelector('input[name=topic]').focus()")
            page.press("orders", ENTER)
            page.sees("h2", "Records of orders")
            page.run("document.querySelector('input[name=token]').focus()")
            page.press(TOKEN, ENTER)
            page.sees(".records", '{"id": 99, "card": "***"}')
            page.sees(".summary", "orders:0: offsets 50 to 99 searched; the log has 0 to 99")
            assert "text" not in page.text("select[name=value_format]"), "the bytes would show what is masked"
            assert "hex" in page.text("select[name=key_format]")
            page.run("document.querySelector('.records li:last-child summary').focus()")
            page.press(ENTER)
            page.sees(".records pre", "c1")
            page.sees(".records", "header trace")
            page.sees(".records", "(masked, 9 bytes)")  # masks hide all headers
            assert page.run("return document.documentElement.scrollWidth") <= width
            assert page.violations() == []
            page.click("Older")
            page.sees(".summary", "offsets 0 to 49 searched")
            page.go("#/records/orders?from=offset&offset=17&before=2&limit=1")
            page.sees(".summary", "offsets 15 to 17 searched")
            page.go("#/records/none")
            page.sees(".summary", "no topic 'none'")
            messages = [each for each in page.complaints() if "records" not in each]
            assert messages == []

        await asyncio.to_thread(walk)
