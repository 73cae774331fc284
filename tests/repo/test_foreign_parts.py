"""foreign_parts.md lists all that the code uses of kafka-python and kazoo, and the tests that notice a change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest
from kazoo.client import KazooClient

from tests.repo.repository import ROOT, sources

Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The syntax trees of the package. They are freed soon, because they slow each garbage collection down."""
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sources()}


def table_of(library: str) -> list[list[str]]:
    """The cells of the rows of the table about a library."""
    text = Path(__file__).with_name("foreign_parts.md").read_text()
    table = text.partition(f"| of {library} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def listed(library: str) -> set[str]:
    return {name for row in table_of(library) for name in re.findall(r"`([^`]+)`", row[0])}


def imported(library: str, trees: Trees) -> set[str]:
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
                submodules = {f"{library}.{each.name}" for each in node.names}
                found |= submodules if node.module == library else {node.module}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
    return {name for name in found if name.partition(".")[0] == library}


def private_names(*things: Any) -> set[str]:
    return {name for thing in things for name in dir(thing) if re.match("_[a-z]", name)}


def private_uses(names: set[str], trees: Trees) -> Iterator[str]:
    """Attributes with one of these names, of other objects than `self`."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in names
                and ast.unparse(node.value) not in ("self", "cls")
            ):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(("library", "package"), [("kafka-python", "kafka"), ("kazoo", "kazoo")])
def test_each_module_that_the_code_imports_is_listed(library: str, package: str, trees: Trees) -> None:
    assert {name for name in listed(library) if name.startswith(f"{package}.")} == imported(package, trees)


def test_no_private_part_of_kafka_python_is_used(trees: Trees) -> None:
    mechanisms = [get_sasl_mechanism(name) for name in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")]
    names = private_names(ApiMessage, MetadataRequest(), BrokerVersionData((4, 1)), *mechanisms)
    assert {"_min_version", "_max_version", "_struct"} <= names
    assert not list(private_uses(names, trees))


def test_the_private_parts_of_kazoo_are_listed(trees: Trees) -> None:
    client = KazooClient()
    names = private_names(client, client.handler, client._connection)
    assert {"_invoke", "_session_callback"} <= names
    used = {use.rpartition(".")[2] for use in private_uses(names, trees)}
    assert used == {name.rpartition(".")[2] for name in listed("kazoo") if "._" in name}
