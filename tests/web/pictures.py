"""Draws the pictures of the page for the documents: `make pictures`. The groups are generated; no server is needed.

Needs chromium with its driver, and Pillow for the film.
"""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

from PIL import Image
from prometheus_client import CollectorRegistry

from allocator.web.events import Event
from allocator.web.guard import Guard
from allocator.web.history import News
from allocator.web.server import Site, serve
from allocator.web.watch import Watcher
from tests.web.browsing import Page, chromium
from tests.web.generated_groups import group_of, state_of, watcher_of, without
from tests.web.written_group import member_id

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TOPICS = {"orders": 240, "payments": 160}
# name, view, width, height, dark
SHOTS = (
    ("groups", "#/?sort=-lag", 1280, 800, False),
    ("status-page", "#/group/orders", 1280, 900, False),
    ("ten-thousand-partitions", "#/group/billing", 1280, 900, True),
    ("rebalance", "#/group/orders/rebalance/{rebalance}", 1280, 900, False),
    ("partitions", "#/group/billing/partitions?sort=-lag", 1280, 700, True),
)
FILM_WIDTH, FILM_HEIGHT = 960, 640
FILM_SCALE = 0.75  # smaller: the window of the film is larger, and its text smaller
COLOURS = 96  # of the film; higher: smoother edges; lower: a smaller file


class Camera(Page):
    def __init__(self, url: str) -> None:
        super().__init__(chromium("--hide-scrollbars"))
        self.url = url
        self.frames: list[tuple[Image.Image, int]] = []

    def view(self, view: str, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        self.open(f"{self.url}/{view}", width, height, dark, scale)
        time.sleep(1.5)  # fonts and the first events

    def shoot(self, name: str) -> None:
        image = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        image.quantize(192, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            IMAGES / f"{name}.png", optimize=True
        )

    def film(self, seconds: float, pause_s: float = 0.4) -> None:
        """Adds a picture that the film shows for `seconds`."""
        time.sleep(pause_s)
        image = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        self.frames.append((image, int(1000 * seconds)))

    def save(self, path: Path) -> None:
        # one palette for all frames, so that unchanged parts are omitted
        sheet = Image.new("RGB", (FILM_WIDTH, FILM_HEIGHT * 4))
        for at, number in enumerate((0, len(self.frames) // 3, 2 * len(self.frames) // 3, -1)):
            sheet.paste(self.frames[number][0], (0, at * FILM_HEIGHT))
        palette = sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in self.frames]
        durations = [duration for _, duration in self.frames]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def pictures(camera: Camera, watcher: Watcher) -> None:
    rebalance = watcher.groups["orders"].history.rebalances[0].id
    for name, view, width, height, dark in SHOTS:
        camera.view(view.format(rebalance=rebalance), width, height, dark)
        camera.shoot(name)


def film(camera: Camera, watcher: Watcher, loop: asyncio.AbstractEventLoop) -> None:
    """Shows all groups, then one. A member crashes, others take over, and the page names the moves."""
    group = watcher.groups["orders"]
    before = dict(group.report.state.document.owners)  # type: ignore[union-attr]
    names, crashed = frozenset(TOPICS), member_id(3)

    def see(*state: Any, news: Any = None, **options: Any) -> None:
        def learn() -> None:
            group.learn(state_of(*state, topics=names, **options), time.time(), news)
            watcher.changed()

        loop.call_soon_threadsafe(learn)

    camera.view("#/", round(FILM_WIDTH / FILM_SCALE), round(FILM_HEIGHT / FILM_SCALE), scale=FILM_SCALE)
    camera.film(2.0)
    camera.run(
        "[...document.querySelectorAll('#groups thead button')].find((each) => each.innerText === 'lag').click()"
    )
    camera.film(2.0)
    camera.run("location.hash = '#/group/orders'")
    camera.film(3.0, 1.0)
    camera.run("document.querySelector('.columns').scrollIntoView()")
    camera.film(2.0)
    rest = {member: held for member, held in before.items() if member != crashed}
    after = without(before, crashed)
    see("orders", 3, rest, news=News(time.time(), frozenset({crashed})))
    camera.film(1.5, 0.8)
    claimed = dict(rest)
    see("orders", 4, after, claimed=dict(claimed))
    camera.film(1.0, 0.5)
    for member in after:
        claimed[member] = after[member]
        see("orders", 4, after, claimed=dict(claimed))
        camera.film(0.4, 0.3)
    camera.film(2.0, 0.5)
    camera.run("location.hash = '#/group/orders/rebalances'")
    camera.film(3.0, 1.0)
    camera.run("document.querySelector('#history tbody a').click()")
    camera.film(4.0, 1.2)
    camera.run("document.querySelector('#moves').scrollIntoView()")
    camera.film(3.0)
    camera.run("location.hash = '#/group/billing?colour=lag'")
    camera.film(1.0, 1.0)
    camera.run("document.querySelector('.columns').scrollIntoView()")
    camera.film(2.5)


async def main() -> None:
    watcher = watcher_of()
    watcher.groups["orders"] = group_of("orders", 12, TOPICS, time.time(), seed=4)
    watcher.log.add(Event(time.time() - 150, "deployment", "version 1.4.2", "orders", "alice"))
    async with serve(Site(Guard(), CollectorRegistry(), watcher=watcher)) as port:
        camera = Camera(f"http://127.0.0.1:{port}")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, pictures, camera, watcher)
            await loop.run_in_executor(None, film, camera, watcher, loop)
            await loop.run_in_executor(None, camera.save, IMAGES / "film.gif")
        finally:
            camera.driver.quit()
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size // 1000} kB")
    print(f"the film takes {sum(duration for _, duration in camera.frames) / 1000:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
