"""Shows the progress of long commands: a line with a bar, the rate and the remaining time.

Writes only to a terminal, on stderr. The line disappears when the work ends or is interrupted.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Optional

import click
from rich.console import Console, RenderableType
from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from allocator.cli.output import duration

REFRESHES = 4  # updates per second
BAR = 24  # maximum width in columns
LEAST_BAR = 8  # minimum width in columns; with fewer columns there is no bar
GAP = 1  # spaces between cells

quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress bar.")


@dataclass(frozen=True)
class Step:
    """The work in progress."""

    what: str
    done: float = 0
    total: Optional[float] = None
    """None if the total is unknown."""
    unit: str = ""
    rate: Optional[float] = None
    """Units per second; None to compute it from `done`."""
    left_s: Optional[float] = None
    """Remaining seconds; None to compute them from `done`, infinite if they are unknown."""

    @property
    def name(self) -> str:
        """`what` without the part in brackets, which changes during the work."""
        return self.what.partition(" (")[0]


class Meter:
    """Holds the current step. Any thread may set `step`."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._most = 0.0

    def left(
        self, left: float, what: str, unit: str, rate: Optional[float] = None, left_s: Optional[float] = None
    ) -> None:
        """Sets a step of which `left` units remain. The bar starts at the largest remainder since `what` started."""
        step = Step(what, unit=unit, rate=rate, left_s=left_s)
        self._most = max(left, self._most if step.name == self.step.name else 0.0)
        self.step = replace(step, done=self._most - left, total=self._most)


def is_shown(quiet: bool) -> bool:
    return not quiet and sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


@contextlib.contextmanager
def progress(what: str, quiet: bool, source: Optional[Callable[[], Step]] = None) -> Iterator[Meter]:
    """Shows a progress line during the block. It shows the step of the meter, or the result of `source`.

    Another thread calls `source`.
    """
    meter = Meter(Step(what))
    if not is_shown(quiet):
        yield meter
        return
    # rich prints other output above the progress line. If stdout is a file, its output must not go to stderr.
    with ProgressDisplay(source or (lambda: meter.step), Console(stderr=True), redirect_stdout=sys.stdout.isatty()):
        yield meter


def say(text: str, err: bool = False) -> None:
    """Prints a line above the progress line. `click.echo` would break that line, because it bypasses rich."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


class ProgressDisplay(Progress):
    """Displays the current step. rich estimates the rate and the remaining time."""

    def __init__(self, source: Callable[[], Step], console: Console, **options: Any) -> None:
        self._source = source
        self._what = ""
        super().__init__(console=console, refresh_per_second=REFRESHES, transient=True, **options)
        self.add_task("")

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:  # empty during __init__
            step = self._source()
            if step.name != self._what:
                self._what = step.name
                self.reset(task.id)
            task.total = step.total  # `update` would restart the estimate at each new total
            self.update(task.id, completed=step.done)
            yield line(step, task, self.console.width)


def line(step: Step, task: Task, width: int) -> Table:
    """Returns the line for a step in `width` columns. If it is too long, drops the bar, then the last cells."""
    total = "" if not step.total else f" of {step.total:,.0f}"
    rate = task.speed if step.rate is None else step.rate
    words = [step.what, *([f"{step.done:,.0f}{total} {step.unit}".rstrip()] if step.done or step.total else [])]
    words += [] if rate is None else [f"{rate:,.0f}/s"]
    left_s = task.time_remaining if step.left_s is None else step.left_s
    if left_s is not None and step.total and step.done < step.total:
        words.append("remaining time unknown" if left_s == math.inf else f"{duration(left_s)} left")
    while len(words) > 1 and sum(len(word) + GAP for word in words) > width:
        del words[-1]
    room = min(BAR, width - 1 - sum(len(word) + GAP for word in words))
    grid = Table.grid(padding=(0, GAP, 0, 0))
    cells: list[RenderableType] = [Text(word, no_wrap=True, overflow="ellipsis") for word in words]
    if room >= LEAST_BAR and step.total:
        cells.insert(1, ProgressBar(total=step.total, completed=step.done, width=room))
    grid.add_row(*cells)
    return grid
