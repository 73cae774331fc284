"""The code blocks of a Markdown page, and their tests.

A test runs each block, unless the line above has a mark:

    <!-- test: write orders.toml -->    it becomes a file of that name, beside the page's other files
    <!-- test: until TEXT -->           a program that does not end: interrupted once it has printed TEXT
    <!-- test: keep TEXT -->            runs in the background once it has printed TEXT, until the page ends
    <!-- test: code 2 -->               ends with that exit code; 0 is what the others end with
    <!-- test: output -->               what the block before it prints, among other lines; `...` stands for anything
    <!-- test: shows -->                the same of a program in the background, which is waited for: its new lines only
    <!-- test: skip REASON -->          not run, only checked

Blocks in other languages (`text` without a mark, `console`, ...) are ignored.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import click

from allocator.testing import wait_until

RUN = ("python", "sh", "bash")
READ = (*RUN, "toml", "json", "yaml", "ini")
END_S = 60.0
FENCE = re.compile(
    r"(?:^<!-- test: (?P<verb>\w+)(?: (?P<rest>[^\n]*?))? -->\n)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    verb: str = ""
    """The mark's first word, "" for none."""
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(path.name, line, match["language"], code, match["verb"] or "", match["rest"] or ""))
    return found


# -- running -------------------------------------------------------------------------------------------------------


@dataclass
class Session:
    """One page's files, programs and variables."""

    directory: Path
    places: dict[str, str]
    """The address of a server on the page -> its address in the test."""
    programs: Path = Path(sys.executable).parent
    """The directory of `python` and `allocator`."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    printed: str = ""
    """By the last block that ended."""
    variables: dict[str, str] = field(default_factory=dict)
    unseen: dict[Path, int] = field(default_factory=dict)
    """The logs of programs in the background -> how many characters of each were shown already."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):  # all of its group have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def take(self, block: Block) -> None:
        """Handles a block by its mark. Fails with the place of the block and its output."""
        code = self._placed(block.code)
        if block.verb == "write":
            (self.directory / block.rest).write_text(code)
        elif block.verb == "output":
            missing = unmatched(code, self.printed)
            assert not missing, f"{block}: not printed: {missing}; but:\n{self.printed}"
        elif block.verb == "shows":
            wait_until(
                lambda: any(self._shows(code, log) for log in self.unseen),
                END_S,
                lambda: f"{block}: not shown: {[log.read_text()[begin:] for log, begin in self.unseen.items()]}",
            )
        elif block.verb != "skip" and block.language in RUN:
            self._run(block, code)

    def _run(self, block: Block, code: str) -> None:
        for name, value in re.findall(r"^export (\w+)=(\S+)", code, re.MULTILINE):
            self.variables[name] = value
        log = self.directory / f".{block.line}.log"
        process = self._start(block, code, log)
        self.running.append(process)
        if block.verb in ("until", "keep"):
            wait_until(
                lambda: block.rest in log.read_text() or process.poll() is not None,
                END_S,
                lambda: f"{block} to print {block.rest!r}; it printed:\n{log.read_text()}",
            )
            assert block.rest in log.read_text(), f"{block} ended with {process.poll()}:\n{log.read_text()}"
            if block.verb == "keep":
                self.unseen[log] = 0
                return
            os.killpg(process.pid, signal.SIGINT)
        process.wait(END_S)
        self.printed = log.read_text()
        if block.verb != "until":
            expected = int(block.rest) if block.verb == "code" else 0
            assert process.returncode == expected, f"{block} ended with {process.returncode}:\n{self.printed}"

    def _shows(self, code: str, log: Path) -> bool:
        printed = log.read_text()
        if unmatched(code, printed[self.unseen[log] :]):
            return False
        self.unseen[log] = len(printed)
        return True

    def _start(self, block: Block, code: str, log: Path) -> subprocess.Popen[bytes]:
        program = self.directory / f".{block.line}.{block.language}"
        in_shell = block.language != "python"
        program.write_text(code + ("wait\n" if in_shell and block.verb == "keep" else ""))
        command = ["bash", "-eu", program.name] if in_shell else [str(self.programs / "python"), program.name]
        path = f"{self.programs}{os.pathsep}{os.environ.get('PATH', '')}"
        environ = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONPATH": "."}
        environ["XDG_STATE_HOME"] = str(self.directory / ".state")  # leaves the user's files alone
        environ.update(self.variables)
        with open(log, "wb") as output:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _placed(self, code: str) -> str:
        for name, place in self.places.items():
            code = code.replace(name, place)
        return code


def unmatched(expected: str, printed: str) -> list[str]:
    """The lines of `expected` that `printed` does not have, in that order; `...` matches anything."""
    lines = iter([line.rstrip() for line in printed.splitlines()])
    missing = []
    for wanted in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.strip().split("...")))
        if wanted.strip() and not any(pattern.fullmatch(line.strip()) for line in lines):
            missing.append(wanted)
    return missing


# -- checking ------------------------------------------------------------------------------------------------------


def faults(block: Block) -> Iterator[str]:
    """The faults of a block that show without running it."""
    if block.language == "python":
        yield from _python_faults(block.code)
    elif block.language in ("sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, timeout=30)
        if done.returncode:
            yield done.stderr
        yield from command_faults(block.code)
    elif block.language == "toml":
        yield from _toml_faults(block.code)
    elif block.language == "json":
        try:
            json.loads(block.code)
        except ValueError as error:
            yield str(error)


def _python_faults(code: str) -> Iterator[str]:
    try:
        tree = compile(code, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        yield str(error)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "allocator":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ImportError:
                        yield f"line {node.lineno}: {node.module} has no {alias.name}"


def _toml_faults(code: str) -> Iterator[str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(re.sub(r"^.*# a typo$", "", code, flags=re.MULTILINE))
    except tomllib.TOMLDecodeError as error:
        yield str(error)
        return
    from allocator.daemon.config import SECTIONS

    if "handler" not in document:
        return  # the settings of another program
    for name, values in document.items():
        if name in SECTIONS:
            unknown = set(values) - set(SECTIONS[name].__dataclass_fields__)
            yield from (f"[{name}] has no setting {each}" for each in sorted(unknown))


def command_faults(code: str) -> Iterator[str]:
    """Commands `allocator ...` whose words or options do not exist."""
    from allocator.cli.commands import main

    for line in re.sub(r"\\\n", " ", code).splitlines():
        found = re.match(r"\s*(?:\$ )?allocator ([^#|<>&;$]*)", line)
        if found is None:
            continue
        command: Optional[click.Command] = main
        words = found[1].split()
        context = click.Context(main)
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            inner = command.get_command(context, words[0])
            if inner is None:
                default = getattr(command, "get_command", None)
                inner = default(context, "show") if default is not None else None
            else:
                words.pop(0)
            if inner is None:
                yield f"{line.strip()}: no such command"
                break
            command = inner
        else:
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            known |= {"--help", "--version"}
            for word in words:
                if word.startswith("-") and word.partition("=")[0] not in known:
                    yield f"{line.strip()}: no option {word}"
