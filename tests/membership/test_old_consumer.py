"""Ours among members of Kafka 0.8's own consumer and of pykafka, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from old_groups import OldGroup


def test_ours_and_javas_share_a_group_and_follow_each_other(
    group_of: Callable[[str], OldGroup], tmp_path: Path
) -> None:
    group = group_of("0.9.0.1")
    group.produce(60)
    ours = group.ours("consumers")
    group.claimed(1)
    group.all_read()
    theirs = group.java(tmp_path)
    group.claimed(2)
    group.produce(60)
    group.all_read()
    assert theirs.values
    ours.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again = group.ours("consumers")
    group.claimed(2)
    theirs.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again.stop()


@pytest.mark.long
def test_ours_and_pykafkas_share_a_group_and_follow_each_other(group_of: Callable[[str], OldGroup]) -> None:
    group = group_of("0.9.0.1")
    group.produce(60)
    ours = group.ours("pykafka")
    group.claimed(1)
    group.all_read()
    theirs = group.pykafka()
    group.claimed(2)
    group.produce(60)
    group.all_read()
    assert theirs.values
    ours.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again = group.ours("pykafka")
    group.claimed(2)
    theirs.kill()
    group.claimed(1)
    group.produce(60)
    group.all_read()
    again.stop()
