"""All settings and defaults are in one table, and all users of it agree."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import settings_page
from repository import module_name, part, sources

from allocator import Consumer, ConsumerGroupConfig, GroupedConsumer, SingleConsumer, SwitchingConsumer
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.core.memberships import known_memberships, options_of
from allocator.core.settings.table import REQUIRED, SETTINGS, keyword_faults
from allocator.daemon.config import SECTIONS
from allocator.spark.options import Options

OPTIONS = {name: options_of(name) for name in known_memberships()}
EVERYWHERE = set(SETTINGS)
# signatures and values of kiel, and what a member of another library writes about itself
APART = {
    ("allocator.compat.grouped", "min_bytes"),
    ("allocator.compat.grouped", "max_bytes"),
    ("allocator.compat.single", "min_bytes"),
    ("allocator.compat.single", "max_bytes"),
    ("allocator.core.assignors.types", "weight"),
    ("allocator.core.znodes.documents", "weight"),
    ("allocator.protocols.kafka_classic.plan", "weight"),
    # names of the part itself
    ("allocator.core.client.client", "client_id"),
    ("allocator.migrate.mirror_settings", "group"),
    # what other clients of generations offer
    ("allocator.compat.group_config", "assignor"),
    # a stream joins no group by default
    ("allocator.spark.options", "membership"),
}


def defaults(tree: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """(line, name, default) of every parameter and every annotated field."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            positional = [*node.args.posonlyargs, *node.args.args]
            with_default = positional[len(positional) - len(node.args.defaults) :]
            pairs = [*zip(with_default, node.args.defaults), *zip(node.args.kwonlyargs, node.args.kw_defaults)]
            yield from ((given.lineno, given.arg, value) for given, value in pairs if value is not None)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.lineno, node.target.id, node.value


def literal(value: ast.expr) -> bool:
    """A default other than "not given", also as the second argument of `setting` or of `field`."""
    if isinstance(value, ast.Call):
        given = [*value.args[1:2], *(keyword.value for keyword in value.keywords if keyword.arg == "default")]
        return any(map(literal, given))
    try:
        return bool(ast.literal_eval(value))
    except ValueError:
        return False


def test_no_default_is_declared_twice() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path in sources()
        for line, name, value in defaults(ast.parse(Path(path).read_text()))
        if name in EVERYWHERE
        and literal(value)
        and (module_name(path), name) not in APART
        and part(module_name(path), 1) != "testing"  # stands alone, with names of its own
    ]
    assert not found


@pytest.mark.parametrize("entrance", [Consumer, GroupedConsumer, SingleConsumer, SwitchingConsumer, MembershipConfig])
def test_the_defaults_of_a_signature_are_the_tables(entrance: Any) -> None:
    module = inspect.getmodule(entrance)
    for name, parameter in inspect.signature(entrance).parameters.items():
        if name in EVERYWHERE and module is not None and (module.__name__, name) not in APART:
            assert parameter.default in (SETTINGS[name].default, inspect.Parameter.empty, ()), name


@pytest.mark.parametrize("section", [*SECTIONS.values(), *OPTIONS.values(), ConsumerGroupConfig, Options])
def test_the_defaults_of_fields_are_the_tables(section: Any) -> None:
    for field in dataclasses.fields(section):
        if field.name not in SETTINGS or (section.__module__, field.name) in APART:
            continue
        declared = SETTINGS[field.name]
        if section is Options and field.name == "security":
            continue  # options of its own by prefix
        if section is ConsumerGroupConfig:
            wanted = (declared.default, "", REQUIRED)
        else:
            wanted = (declared.default, None) if declared.default is REQUIRED else (declared.default,)
        assert field.default in wanted, field.name
        if "setting" in field.metadata and field.name != "topics":
            assert field.metadata["setting"].kind is declared.kind, field.name


def test_every_default_is_allowed() -> None:
    assert not keyword_faults({name: each.default for name, each in SETTINGS.items() if each.default is not REQUIRED})


def test_the_page_is_written_out_of_the_code() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "run: python tests/repo/settings_page.py"
