"""The move of a group to the new layout, beside unmodified members of kiel 0.9.3."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from tests.groups.old_groups import OldGroup


def adopt(group: OldGroup, *options: str) -> tuple[int, str]:
    arguments = ["group", "adopt", group.group, "--zookeeper", group.cluster.zookeeper, *options]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


@pytest.mark.long
def test_a_group_without_kiel_members_moves_to_the_new_layout_without_a_restart(
    group_of: Callable[[str], OldGroup],
) -> None:
    group = group_of("0.9.0.1")
    group.produce(60)
    first = group.allocator("kiel", settle_s=1.0)
    group.shared(first)
    kiel, second = group.kiel(), group.allocator("kiel", settle_s=1.0)
    group.shared(first, second, kiel)
    code, output = adopt(group, "--execute")
    assert code == 1
    assert "still has members that run kiel" in output
    kiel.stop()
    group.shared(first, second)
    code, output = adopt(group, "--execute")
    assert code == 0, output
    assert "2 members own 6 partitions under /allocator" in output
    group.shared(first, second)
    group.produce(60)
    group.all_read()
    # a kiel member that is started by mistake fails before it joins; an allocator member joins correctly
    late = group.kiel()
    assert late.process.wait(60) != 0
    assert not late.reported("joined")
    third = group.allocator("kiel")
    group.shared(first, second, third)
    first.kill()
    fourth = group.allocator("zookeeper")
    group.shared(second, third, fourth)
    group.produce(60)
    group.all_read()
    for member in (second, third, fourth):
        member.stop()
    assert group.overlaps(lambda *kinds: kinds == ("allocator", "allocator")) == {}
