"""The page in a real browser, for tests: actions of a user, and a server over generated groups."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from allocator.testing.waiting import wait_until
from allocator.web.guard import Guard
from allocator.web.server import Site, serve
from allocator.web.watch import Watcher
from tests.web.generated_groups import watcher_of
from tests.web.served import TOKEN

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

needs_browser = [
    pytest.mark.skipif(importlib.util.find_spec("selenium") is None, reason="selenium is not installed"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver (Debian: chromium-driver)"),
    pytest.mark.deadline(200),
]

PATIENCE_S = 60.0
AXE = Path(__file__).with_name("vendor") / "axe.min.js"
DOWN, UP, RIGHT, HOME, END, PAGE_UP, PAGE_DOWN, ENTER = "\ue015\ue013\ue014\ue011\ue010\ue00e\ue00f\ue007"


def chromium(*more: str) -> Any:
    """A driver of a new browser."""
    from selenium import webdriver as selenium

    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *more):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))


class Page:
    """Actions of a user in the browser; runs in a thread, because the driver blocks."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, height: int = 1000, dark: bool = False, scale: float = 1) -> None:
        self.driver.get("about:blank")  # the same address with another fragment would load nothing
        self.complaints()  # of the previous page, whose server has ended
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
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

    def click(self, words: str) -> None:
        """Clicks the visible button with this text, once there is one."""
        button = (
            f"[...document.querySelectorAll('button')].find((b) => b.checkVisibility() && b.innerText === {words!r})"
        )
        wait_until(lambda: self.run(f"return {button} !== undefined"), PATIENCE_S, f"a button {words!r}")
        self.run(f"{button}.click()")

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:  # to the page, because it may replace the focused element at any moment
            ActionChains(self.driver).send_keys(key).perform()

    def go(self, hash_: str) -> None:
        """Shows another view of the open page."""
        self.run(f"location.hash = {hash_!r}")

    def focused(self) -> str:
        return str(self.run("return document.activeElement?.innerText ?? ''"))

    def violations(self) -> list[str]:
        """Accessibility violations, by axe-core."""
        if not self.run("return 'axe' in window"):
            self.run(AXE.read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document).then((all) => done([all.passes.length, all.violations.map("
            "(each) => `${each.id}: ${each.nodes.map((node) => node.target.join(' ')).join(', ')}`)]))"
        )
        assert found[0] > 10, "axe did not run"
        return list(found[1])

    def complaints(self) -> list[str]:
        """Messages of the browser about scripts, the content policy, and failed requests."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@functools.lru_cache(maxsize=1)
def watcher() -> Watcher:
    """50 groups, one of 100 members and 10,000 partitions. No test changes them."""
    return watcher_of()


@contextlib.asynccontextmanager
async def served_page(watched: Callable[[], Watcher] = watcher, **offered: Any) -> AsyncIterator[str]:
    """The URL of a page over generated groups."""
    actions = {"rebalance": nothing, **offered.pop("actions", {})}
    site = Site(Guard.make(token=TOKEN), CollectorRegistry(), watcher=watched(), actions=actions, **offered)
    async with serve(site) as port:
        yield f"http://127.0.0.1:{port}"


async def nothing(group: str, given: Any, user: str) -> dict[str, Any]:
    return {}
