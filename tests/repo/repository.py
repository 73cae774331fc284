"""Paths and helpers for tests of the repository."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from allocator import TopicPartition
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster, wait_until

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "allocator"


def sources() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """`allocator.assignors.basic` for allocator/assignors/basic.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str, number: int) -> str:
    """The `number`th name of a dotted path; "" if it is shorter."""
    return (module.split(".") + [""] * number)[number]


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of each import in a file, also those inside functions or for type checking alone."""
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
    return found


def code_blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of a Markdown file that are in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


async def committed(cluster: LocalCluster, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The group's offset of each partition that has one."""
    async with KafkaClient(cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group)
        found = await offsets.fetch([TopicPartition(topic, number) for number in range(partitions)])
        await offsets.close()
    return {partition.partition: each.offset for partition, each in found.items() if each.offset > 0}


class Program:
    """A program that runs until it is stopped, with its output."""

    def __init__(self, command: list[str], output: Path, environ: Mapping[str, str] | None = None) -> None:
        self.command, self.output, self.environ = command, output, environ

    def __enter__(self) -> Program:
        with open(self.output, "w") as file:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=self.environ, stdout=file, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def says(self, text: str) -> None:
        """Waits until the program has printed `text`."""
        wait_until(
            lambda: text in self.output.read_text() or self.process.poll() is not None,
            60,
            lambda: f"{text!r}; it printed {self.output.read_text()[-2000:]}",
        )
        assert text in self.output.read_text()

    def prints(self, count: int) -> None:
        """Waits until the program has printed `count` records."""
        wait_until(
            lambda: self.process.poll() is None and self.output.read_text().count("value") >= count,
            60,
            lambda: f"{count} records; exit code {self.process.poll()}; it printed {self.output.read_text()[-2000:]}",
        )
