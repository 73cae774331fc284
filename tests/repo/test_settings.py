"""All settings and defaults are in one table, and all users of it agree."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from allocator import Consumer, ConsumerGroupConfig, GroupedConsumer, SingleConsumer, SwitchingConsumer
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.core.memberships import known_memberships, options_of
from allocator.core.settings.table import REQUIRED, SETTINGS, keyword_faults
from allocator.daemon.config import SECTIONS
from allocator.spark.options import Options
from tests.repo import settings_page

OPTIONS = {name: options_of(name) for name in known_memberships()}
# (module, name): this default differs from the table on purpose
APART = {
    # kiel's signatures
    *(
        (f"allocator.compat.{name}", setting)
        for name in ("grouped", "single")
        for setting in ("min_bytes", "max_bytes")
    ),
    # what other clients of generations offer
    ("allocator.compat.group_config", "assignor"),
    # a stream joins no group by default
    ("allocator.spark.options", "membership"),
}


@pytest.mark.parametrize("entrance", [Consumer, GroupedConsumer, SingleConsumer, SwitchingConsumer, MembershipConfig])
def test_the_defaults_of_a_signature_are_those_of_the_table(entrance: Any) -> None:
    module = inspect.getmodule(entrance)
    for name, parameter in inspect.signature(entrance).parameters.items():
        if name in SETTINGS and module is not None and (module.__name__, name) not in APART:
            assert parameter.default in (SETTINGS[name].default, inspect.Parameter.empty, ()), name


@pytest.mark.parametrize("section", [*SECTIONS.values(), *OPTIONS.values(), ConsumerGroupConfig, Options])
def test_the_defaults_of_fields_are_those_of_the_table(section: Any) -> None:
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
    assert settings_page.PAGE.read_text() == settings_page.page(), "run: python -m tests.repo.settings_page"
