"""The pages in docs/reference, from the docstrings, the help texts and the metrics.

`python -m tests.repo.reference_pages` rewrites the generated part of each page. The pages are committed, so that they
are readable without a build. `tests/docs/test_reference.py` compares them with the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from allocator.core.consumer import MembershipOptions
from tests.repo.public_api import _signature

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- generated: begin; `python -m tests.repo.reference_pages` writes it -->", "<!-- generated: end -->"
CONSUMERS = [
    *("Consumer", "ZooKeeper", "Kafka", "Fixed", "Kiel", "OldConsumers", "Pykafka", "SwitchingConsumer"),
    *("GroupedConsumer", "GroupCommands", "KafkaGroupCommands", "Command", "CommandReport", "CommandResult"),
    *("SingleConsumer", "ConsumerGroup", "ConsumerGroupConfig", "Generation", "PartitionStart"),
    *("RebalanceListener", "RecordsLost", "Batch", "Record", "Allocation", "ChildrenOf"),
    *("Producer", "RecordMetadata", "KielProducer"),
]
TYPES = [
    *("MembershipName", "GroupProtocol", "OffsetStorage", "OffsetReset", "IsolationLevel", "Assignors"),
    *("Deserializer", "ColumnDeserializer", "Offset", "OnCommit", "Listener", "Serializer", "Acks", "Compression"),
]
SERVERS = ["LocalCluster", "Node", "FaultProxy", "produce", "wait_until", "wait_until_async"]


def cli() -> Iterator[str]:
    """The help text of each command."""
    from allocator.cli.commands import main

    yield from _command(main, "allocator", None)


def _command(command: click.Command, path: str, above: click.Context | None) -> Iterator[str]:
    width = {"terminal_width": 100, "max_content_width": 100}
    context = click.Context(command, above, path.split()[-1], **{**command.context_settings, **width})
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{path} {name}", context)


def consumer() -> Iterator[str]:
    yield from _things("allocator", CONSUMERS)
    yield "## Types for signatures"
    module = importlib.import_module("allocator.types")
    for name in TYPES:
        values = get_args(getattr(module, name)) if get_origin(getattr(module, name)) is Literal else ()
        listed = " or ".join(f"`{value!r}`" for value in values)
        yield f"- `allocator.types.{name}`" + (f": {listed}" if listed else "")


def assignors() -> Iterator[str]:
    module = importlib.import_module("allocator.assignors")
    yield from _things("allocator.assignors", module.__all__)


def errors() -> Iterator[str]:
    module = importlib.import_module("allocator.errors")
    rows = ["| error | based on | retry can help | meaning |", "|---|---|---|---|"]
    for name in module.__all__:
        kind = getattr(module, name)
        public = [b for base in kind.__bases__ for b in (base.__bases__ if base.__name__[0] == "_" else (base,))]
        bases = ", ".join(f"`{base.__name__}`" for base in public)
        meaning = " ".join((inspect.getdoc(kind) or "").split())
        rows.append(f"| `{name}` | {bases} | {'yes' if kind.retriable is True else 'no'} | {_cell(meaning)} |")
    yield "\n".join(rows)


def metrics() -> Iterator[str]:
    from allocator.migrate import Mirror, MirrorSettings
    from allocator.web.metrics import ConsumerCollector, GroupCollector
    from allocator.web.mirror_metrics import MirrorCollector

    class Watcher:
        clusters: tuple[str, ...] = ()
        problems: tuple[str, ...] = ()
        groups: dict[str, Any] = {}

    mirrored = MirrorSettings("old:9092", "new:9092", topics=("orders",), zookeeper="zk:2181")
    collectors = (
        ("Metrics of a consumer", ConsumerCollector([])),
        ("Metrics of groups", GroupCollector(Watcher())),  # type: ignore[arg-type]
        ("Metrics of a mirror", MirrorCollector(Mirror(mirrored))),
    )
    for title, collector in collectors:
        rows = ["| metric | type | meaning |", "|---|---|---|"]
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append(f"| `{name}` | {family.type} | {_cell(family.documentation)} |")
        yield f"## {title}\n\n" + "\n".join(rows)


def testing() -> Iterator[str]:
    yield from _things("allocator.testing", SERVERS)
    plugin = importlib.import_module("allocator.testing.plugin")
    rows = ["| fixture | provides |", "|---|---|"]
    source = inspect.getsource(plugin)
    fixture = re.compile(r'^@pytest\.fixture.*?\ndef ([a-z]\w*)\(.*?\).*?:\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
    for name, text in fixture.findall(source):
        rows.append(f"| `{name}` | {_cell(' '.join(text.split()))} |")
    yield "## Fixtures\n\n" + "\n".join(rows)


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "cli": cli,
    "consumer": consumer,
    "assign": assignors,
    "errors": errors,
    "metrics": metrics,
    "testing": testing,
}


def expected(page: str) -> str:
    """The page with its generated part rewritten."""
    text = (DOCS / "reference" / f"{page}.md").read_text()
    before, _, rest = text.partition(BEGIN)
    generated = "\n\n".join(part.strip() for part in PAGES[page]())
    generated = "\n".join(line.rstrip() for line in generated.splitlines())
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{rest.partition(END)[2]}"


# -- classes and functions -----------------------------------------------------------------------------------------


def _things(module: str, names: list[str]) -> Iterator[str]:
    for name in names:
        thing = getattr(importlib.import_module(module), name)
        if name == "Record":  # the compiled class has the same members, and may be absent
            thing = importlib.import_module("allocator.core.record").PlainRecord
        if inspect.isclass(thing):
            yield f"## {name}"
            if "__init__" in vars(thing) and thing.__module__.startswith("allocator"):
                yield _code(f"{name}{_signature(thing.__init__, bound=True)}")
            yield tabled(inspect.getdoc(thing) or "")
            if not issubclass(thing, MembershipOptions):  # whose methods are for the consumer
                yield from _members(thing)
        elif callable(thing) and get_origin(thing) is None:  # an alias of a type is callable before Python 3.14
            yield f"## {name}"
            yield _code(f"{name}{_signature(thing)}")
            yield tabled(inspect.getdoc(thing) or "")


def _members(thing: type[Any]) -> Iterator[str]:
    """The public methods and properties that have a docstring, in the order of the source."""
    kinds = [kind for kind in reversed(thing.__mro__) if kind.__module__.startswith("allocator")]
    for name in dict.fromkeys(name for kind in kinds for name in vars(kind)):
        member = inspect.getattr_static(thing, name)
        function = getattr(member, "__func__", member)
        text = inspect.getdoc(member.fget if isinstance(member, property) else function)
        if name.startswith("_") or not text or not (inspect.isfunction(function) or isinstance(member, property)):
            continue
        yield f"### {name}"
        if inspect.isfunction(function):
            prefix = "async " if inspect.iscoroutinefunction(function) else ""
            yield _code(f"{prefix}{name}{_signature(function, bound=not isinstance(member, staticmethod))}")
        yield tabled(text)


def _code(signature: str) -> str:
    wrapped = textwrap.wrap(signature, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "```text\n" + "\n".join(wrapped) + "\n```"


_NAMES = r"(\w+(?:(?:, | or )\w+)*)"
_FIRST = re.compile(_NAMES + r" {2,}(\S.*)")
_NEXT = re.compile(_NAMES + r" +(\S.*)")  # one space may follow a long name


def tabled(text: str) -> str:
    """`text`, with each run of two or more lines "name  meaning" as a Markdown table."""
    lines: list[str] = []
    rows: list[tuple[str, str]] = []
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        item = (_NEXT if rows else _FIRST).fullmatch(line)
        if item:
            rows.append((item[1], item[2]))
        elif rows and re.match(r" {8,}\S", line):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            lines += _table(rows)
            rows = []
            lines.append(line)
    return "\n".join(lines)


def _table(rows: list[tuple[str, str]]) -> list[str]:
    if len(rows) < 2:
        return [f"{name}  {meaning}" for name, meaning in rows]
    names = [", ".join(f"`{name}`" for name in re.split(r", | or ", names)) for names, _ in rows]
    return [
        "",
        "| argument | |",
        "|---|---|",
        *(f"| {n} | {_cell(meaning)} |" for n, (_, meaning) in zip(names, rows)),
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / "reference" / f"{page}.md").write_text(expected(page))
