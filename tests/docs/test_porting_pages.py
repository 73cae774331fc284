"""Compares the tables of the porting pages with the classes.

What the methods do is tested in tests/consumer/test_porting.py.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

import aiokafka
import kafka
import pytest

from allocator import Consumer, Kafka
from allocator.core.client.security import KEYS
from tests.repo.repository import ROOT

CODE = re.compile(r"`([^`]+)`")
TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "consumer").glob("test_*.py")))


class Page(NamedTuple):
    path: str
    client: type[Any]
    settings: set[str]


PAGES = [
    Page("docs/howto/kafka-python.md", kafka.KafkaConsumer, set(kafka.KafkaConsumer.DEFAULT_CONFIG)),
    Page(
        "docs/howto/aiokafka.md",
        aiokafka.AIOKafkaConsumer,
        set(inspect.signature(aiokafka.AIOKafkaConsumer).parameters) - {"topics"},
    ),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)


def rows(page: Page, section: str) -> list[tuple[str, str, str]]:
    text = (ROOT / page.path).read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(there, here, "".join(rest)) for there, here, *rest in cells[1:]]


def called(text: str) -> set[str]:
    """The methods that a cell calls: `await seek(partition)` -> seek."""
    return {found for code in CODE.findall(text) for found in re.findall(r"(?<!\w)(?<!\.)([a-z]\w*)\(", code)}


@each_page
def test_every_method_of_the_other_client_has_a_row(page: Page) -> None:
    public = {name for name, _ in inspect.getmembers(page.client, inspect.isroutine) if not name.startswith("_")}
    assert {name for there, _, _ in rows(page, "Methods") for name in called(there)} == public


@each_page
def test_replacements_exist_are_awaited_as_shown_and_are_tested(page: Page) -> None:
    for there, here, _ in rows(page, "Methods"):
        assert called(here) or "async for" in here or "Consumer(" in here or "errors" in here or here == "none", there
        for code in CODE.findall(here):
            for name in called(f"`{code}`"):
                method = getattr(Consumer, name)
                if "`Consumer(...)`" not in here:  # a row that only mentions methods
                    assert inspect.iscoroutinefunction(method) == code.startswith("await "), code
                assert re.search(rf"\.{name}\(", TESTS), f"no test of consumers calls {name}"
                known = inspect.signature(method).parameters
                arguments = re.findall(r"[*\w]+", code[code.index("(") :])
                assert {word.lstrip("*") for word in arguments} <= known.keys(), (code, list(known))


@each_page
def test_a_method_that_exists_here_is_its_own_replacement(page: Page) -> None:
    for there, here, differs in rows(page, "Methods"):
        for name in called(there):
            if hasattr(Consumer, name):
                assert name in called(here), f"{name} is there, and the page names {here}"
            elif called(here):
                assert called(here) == {"start"} or "another name" in differs or name in ("poll", "last_stable_offset")


@each_page
def test_every_setting_of_the_other_client_has_a_row_and_its_replacement_exists(page: Page) -> None:
    known = set(inspect.signature(Consumer).parameters)
    listed: list[str] = []
    for there, here, _ in rows(page, "Settings"):
        names = CODE.findall(there)
        listed += names
        for name in CODE.findall(here):
            if "(" in name:
                method, argument = re.fullmatch(r"(\w+)\((\w+)=?\)", name).groups()  # type: ignore[union-attr]
                called_with = Kafka if method == "Kafka" else getattr(Consumer, method)
                assert argument in inspect.signature(called_with).parameters
            else:
                assert name in known, name
        if here == "`security`":
            assert set(names) <= set(KEYS), names
        else:
            assert not set(names) & set(KEYS), names
            assert here == "none" or len(names) == 1, there
    assert sorted(listed) == sorted(page.settings)


@each_page
def test_differing_defaults_are_documented(page: Page) -> None:
    """A default that differs silently is the worst difference."""
    if page.client is kafka.KafkaConsumer:
        defaults = dict(kafka.KafkaConsumer.DEFAULT_CONFIG)
    else:
        defaults = {name: each.default for name, each in inspect.signature(page.client).parameters.items()}
    known = inspect.signature(Consumer).parameters
    for there, here, differs in rows(page, "Settings"):
        (name, *others), taken = CODE.findall(there), CODE.findall(here)
        if others or not taken or "(" in taken[0] or known[taken[0]].default is inspect.Parameter.empty:
            continue
        here, there = known[taken[0]].default, defaults[name]
        if name.endswith("_ms") and isinstance(there, (int, float)) and here is not None:
            here *= 1000
        if here != there and name not in ("client_id", "client_rack", "enable_auto_commit", "rebalance_timeout_ms"):
            assert "default" in differs or name == "partition_assignment_strategy", (name, there, here)
