"""Draws a flame graph of one contender that reads 100 B records, from the samples of py-spy.

    pip install py-spy
    python -m bench.consume.flame --contender "ours, records" --svg docs/flame.svg

It includes C code; time in the kernel counts for the call that entered it (`recv_into`, `send`). py-spy stops the
process for each sample, so only shares count.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from allocator.testing import LocalCluster

from .contenders import CONTENDERS
from .fill import fill
from .settings import Job

__all__ = ["Frame", "draw", "grown"]

ROOT = Path(__file__).resolve().parents[2]
RECORDS, SIZE, PARTITIONS = 4_000_000, 100, 4
SAMPLES_A_SECOND = 200
HIDDEN = 0.004
"""What is less of the whole is not drawn."""
START = "_until_over"
"""The contenders' function that reads; what comes before is the interpreter's start."""
WIDTH, LINE = 1180, 17
COLOURS = {"allocator": "#8cc8f0", "asyncio": "#d9d9d9", "native": "#f0c48c", "other": "#e8e2c8"}


class Frame(NamedTuple):
    name: str
    samples: int
    children: tuple[Frame, ...]


def grown(lines: Iterable[str]) -> Frame:
    """The tree of py-spy's raw output: "outer;inner;innermost 12" in each line. Lines without `START` are left out."""
    return _tree("all", [stack for stack in _stacks(lines) if stack[0]])


def _stacks(lines: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    for line in lines:
        text, _, count = line.rstrip().rpartition(" ")
        names = [name for name in map(_short, text.split(";")) if name]
        start = next((place for place, name in enumerate(names) if name.startswith(START)), None)
        yield (names[start + 1 :] if start is not None else []), int(count)


def _short(frame: str) -> str:
    """The name without a line number; "" for unknown addresses and for frames that only call others."""
    name, _, where = frame.partition(" (")
    if name.startswith(("0x", "task_step", "Handle._run", "_call_with_frames")):
        return ""
    name = re.sub(r"__pyx_\w+?_allocator_\d+_records_\d*", "", name.split(".<locals>.")[-1])
    place = where.rstrip(")").partition(":")[0]
    return f"{name} ({place.rpartition('/')[2]})" if place else name


def _tree(name: str, stacks: list[tuple[list[str], int]]) -> Frame:
    inner: dict[str, list[tuple[list[str], int]]] = {}
    for names, count in stacks:
        if names:
            inner.setdefault(names[0], []).append((names[1:], count))
    children = tuple(_tree(child, rest) for child, rest in sorted(inner.items()))
    return Frame(name, sum(count for _, count in stacks), children)


def draw(title: str, root: Frame) -> str:
    """Draws each frame below its caller, as wide as its share."""
    parts: list[str] = []
    depth = _draw(root, 0, 0.0, root.samples, parts)
    height = 40 + (depth + 1) * LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 20}" height="{height}" '
            f'viewBox="0 0 {WIDTH + 20} {height}" font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="10" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _draw(frame: Frame, depth: int, x: float, whole: int, parts: list[str]) -> int:
    share = frame.samples / whole
    wide, y = share * WIDTH, 34 + depth * LINE
    text = frame.name if len(frame.name) * 6.2 < wide else frame.name.partition(" (")[0]
    if len(text) * 6.2 > wide:
        text = text[: max(0, int(wide / 6.2) - 1)]
    label = f'<text x="{10 + x + 3:.1f}" y="{y + 12}">{escape(text)}</text>' if len(text) > 1 else ""
    parts.append(
        f'<g><title>{escape(frame.name)}: {share:.1%}</title><rect x="{10 + x:.1f}" y="{y}" width="{wide:.1f}" '
        f'height="{LINE - 1}" fill="{_colour(frame.name)}" stroke="#ffffff" stroke-width="0.5"/>{label}</g>'
    )
    deepest = depth
    for child in frame.children:
        if child.samples / whole >= HIDDEN:
            deepest = max(deepest, _draw(child, depth + 1, x, whole, parts))
        x += child.samples / whole * WIDTH
    return deepest


def _colour(name: str) -> str:
    if name.endswith((".c)", ".so)", ".6)", ".0)")) or ".so" in name:
        return COLOURS["allocator" if "_records" in name else "native"]
    ours = {path.name for path in (ROOT / "allocator").rglob("*.py")}
    place = name.rpartition("(")[2].rstrip(")")
    if place in ours:
        return COLOURS["allocator"]
    return COLOURS["asyncio" if place.endswith("events.py") or place in ("runners.py", "selectors.py") else "other"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.consume.flame", description=__doc__)
    parser.add_argument("--contender", choices=[name for name in CONTENDERS if name[:4] == "ours"], required=True)
    parser.add_argument("--svg", type=Path, required=True)
    options = parser.parse_args()
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        parser.error("py-spy is not installed; run: pip install py-spy")
    with LocalCluster(kafka="3.9.1", heap="1g") as cluster, tempfile.TemporaryDirectory() as directory:
        cluster.create_topic("flame", PARTITIONS)
        fill(cluster.bootstrap, "flame", PARTITIONS, RECORDS, SIZE, "none")
        job = Job("throughput", cluster.bootstrap, cluster.zookeeper, "flame", PARTITIONS, records=RECORDS)
        raw = Path(directory) / "raw.txt"
        command = [spy, "record", "--native", "--rate", str(SAMPLES_A_SECOND), "--format", "raw", "--output", str(raw)]
        worker = [sys.executable, "-m", "bench.consume.worker", options.contender, job.dump()]
        subprocess.run([*command, "--", *worker], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        tree = grown(raw.read_text().splitlines())
    options.svg.write_text(draw(f"{options.contender}, {SIZE} B: {tree.samples} samples", tree))


if __name__ == "__main__":
    main()
