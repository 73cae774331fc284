"""The page in a real browser, over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from served import TOKEN, served
from written_group import WrittenGroup, dealt, member_id, parts

from allocator.testing.waiting import wait_until
from allocator.types import TopicPartition
from allocator.zookeeper.client import ConnectionLost, ZooKeeper

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver (Debian: chromium-driver)"),
    pytest.mark.deadline(200),
]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """What a person sees and does; runs in a thread, since the driver waits."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        self.driver.get("about:blank")  # the same address with another fragment would load nothing
        self.complaints()  # of the page before, whose server is gone
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(url)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def text(self, selector: str) -> str:
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def sees(self, selector: str, text: str) -> None:
        wait_until(lambda: text in self.text(selector), PATIENCE_S, lambda: f"{text!r} in {self.text(selector)!r}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def complaints(self) -> list[str]:
        """What the browser says of scripts, of the policy, of what could not be loaded."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


async def by_person(work: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


@contextlib.asynccontextmanager
async def written(zookeeper: str, name: str, *topics: str) -> AsyncIterator[WrittenGroup]:
    zk = ZooKeeper(zookeeper)
    await zk.connect(10)
    try:
        yield WrittenGroup(zk, "/allocator", name, list(topics))
    finally:
        await zk.close()


async def test_a_page_follows_a_rebalance_without_being_loaded_again(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "orders & <co>", "t") as group, served(zk_chroot) as it:
        a, b = await group.join(0, 1)
        held = {a: frozenset(parts(t=8)[:4]), b: frozenset(parts(t=8)[4:])}
        await group.assign(held)
        await group.claim(held)
        await it.settled("orders & <co>", 1)

        def look() -> None:
            page.open(it.url)
            page.sees("#name", "orders & <co>")
            page.sees("#phase", "stable")
            page.sees("#link", "live")
            page.sees("#members", "worker-01")
            page.run("window.loadedOnce = true")

        await by_person(look)
        (c,) = await group.join(2)
        given = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
        await group.assign({a: held[a] - given, b: held[b]}, {c: given}, {a: given})
        await by_person(page.sees, "#phase", "rebalancing")
        await by_person(page.sees, "#members", "releases 2")
        held = {a: held[a] - given, b: held[b], c: given}
        await group.claim({a: held[a]})
        await group.assign(held, generation=2)
        await group.claim(held)

        def look_again() -> None:
            page.sees("#phase", "stable")
            page.sees("#legend", "2 moved")
            page.sees("#history", "joined: worker-02@node-2#2")
            page.sees("#history", "worker-00@node-0#0 → worker-02@node-2#2 2")
            assert page.run("return window.loadedOnce === true")
            assert page.complaints() == []

        await by_person(look_again)


async def test_a_page_keeps_the_focus_and_says_when_what_it_shows_is_old(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "g", "t") as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        held = {a: frozenset(parts(t=8))}
        await group.assign(held)
        await group.claim(held)
        await it.settled("g", 1)

        def look() -> None:
            page.open(it.url)
            page.sees("#phase", "stable")
            page.sees("#link", "live")
            page.run("document.querySelector('#groups a').focus(); window.link = document.activeElement")

        await by_person(look)
        it.watcher.fail(ConnectionLost("ZooKeeper does not answer"))

        def look_again() -> None:
            page.sees("#link", "a cluster does not answer")
            page.sees("#phase", "stable when ZooKeeper last answered")
            assert "good" not in page.run("return document.querySelector('#phase').className")
            assert page.run("return window.link !== document.querySelector('#groups a')"), "the list was not drawn anew"
            assert page.run("return document.activeElement === document.querySelector('#groups a')")
            assert page.complaints() == []

        await by_person(look_again)


async def test_the_keyboard_reaches_every_partition_and_member(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "g", "t", "u") as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        held = {a: frozenset(parts(t=3, u=2)) - {TopicPartition("u", 1)}}
        await group.assign(held, {a: frozenset({TopicPartition("u", 1)})})
        await group.claim(held)

        def walk() -> None:
            page.open(it.url)
            page.sees("#members", "worker-00")
            page.run("document.getElementById('grids').focus()")
            page.press("\ue014")  # right
            page.sees("#cell", "t 0 · owned by A worker-00@node-0#0")
            page.press("\ue014", "\ue014", "\ue014")
            page.sees("#cell", "u 0")
            page.press("\ue010")  # end
            page.sees("#cell", "u 1 · goes to A worker-00")
            page.press("\ue00e", "\ue011")  # page up, home
            page.sees("#cell", "t 0")
            page.run("document.querySelector('#members button').focus()")
            page.press(" ")
            wait_until(lambda: page.run("return document.querySelector('#members button').ariaPressed") == "true", 30)
            assert page.complaints() == []

        await by_person(walk)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
async def test_ten_thousand_partitions_of_a_hundred_members_fit_the_page(
    browser: Any, zk_chroot: str, width: int, dark: bool
) -> None:
    page = Page(browser)
    async with written(zk_chroot, "large", "t", "u") as group, served(zk_chroot) as it:
        members = await group.join(*range(100))
        held = dealt(parts(t=6000, u=4000), members)
        await group.assign(held)
        await group.claim(held)
        await it.settled("large", 1)

        def look() -> None:
            page.open(f"{it.url}/#large", width, dark=dark)
            page.sees("#figures", "10\u202f000")
            page.sees("#members", "worker-99")
            assert page.run("return document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
            high = page.run("return document.getElementById('grids').getBoundingClientRect().height")
            assert high < 1600, "all of it at a glance"
            # the last cell of the last row is where it is to be
            page.run("document.getElementById('grids').focus()")
            page.press("\ue00f", "\ue010")
            page.sees("#cell", "u 3999 · owned by")
            # nobody shares colour, texture and shade with another
            looks = page.run(
                "return [...document.querySelectorAll('#members .swatch')].map((each) => each.toDataURL())"
            )
            assert len(set(looks)) == 100
            assert page.complaints() == []

        await by_person(look)


async def test_a_change_is_asked_for_twice_and_needs_the_token(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "g", "t") as group, served(zk_chroot) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=2))})
        await group.claim({a: frozenset(parts(t=2))})
        await it.settled("g", 1)

        def press(words: str) -> None:
            page.run(f"[...document.querySelectorAll('button')].find((each) => each.innerText === {words!r}).click()")

        def ask() -> None:
            page.open(it.url)
            page.sees("#phase", "stable")
            page.run("document.getElementById('act').click()")
            press("Rebalance")
            page.sees("dialog .answer", "the token is missing or wrong")
            page.run("document.querySelector('dialog input[name=token]').focus()")
            page.press(TOKEN)
            press("Rebalance")
            page.sees("dialog .answer", "the next generation will follow")
            press("Pause")
            page.sees("dialog .answer", "its members will leave")
            page.sees("#phase", "paused, going on: 1")
            press("Resume")
            page.sees("#phase", "stable")
            assert TOKEN not in page.driver.page_source
            assert page.run(
                "return document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"
            ) == ("{}{}")

        await by_person(ask)
        assert await group.store.zk.exists(group.store.paths.assignment) is None


async def test_a_read_only_page_offers_no_change(browser: Any, zk_chroot: str) -> None:
    page = Page(browser)
    async with written(zk_chroot, "g", "t") as group, served(zk_chroot, token=None) as it:
        (a,) = await group.join(0)
        await group.assign({a: frozenset(parts(t=2))})
        await group.claim({a: frozenset(parts(t=2))})
        await it.settled("g", 1)

        def look() -> None:
            page.open(it.url)
            page.sees("#phase", "stable")
            assert page.run("return document.getElementById('act').checkVisibility()") is False

        await by_person(look)
        assert (await it.json("/api/groups"))["read_only"] is True


async def test_names_from_znodes_are_text_and_nothing_else(browser: Any, zk_chroot: str) -> None:
    from allocator.groups.zookeeper.znodes import Claim, MemberInfo

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

        def look() -> None:
            page.open(it.url)
            page.sees("#members", evil)
            page.sees("#grids", evil)
            assert page.run("return window.harm") is None
            assert page.complaints() == []

        await by_person(look)
