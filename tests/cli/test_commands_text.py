"""How the steering commands parse partitions and times, and refuse them without servers."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.cli.operator_commands import ARGUMENTS, parse_expiry
from allocator.commands import KINDS
from allocator.errors import ConfigError
from allocator.operate import parse_partitions
from allocator.protocols.zookeeper import Paths
from allocator.testing.topics import zookeeper_client
from allocator.types import TopicPartition

PATHS = Paths("/allocator", "billing")
NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def test_partitions_are_named_by_topic_and_ranges() -> None:
    assert parse_partitions("a:0-2,7 b.c-d:5") == {
        *(TopicPartition("a", number) for number in (0, 1, 2, 7)),
        TopicPartition("b.c-d", 5),
    }
    for wrong in ("", "a", "a:", "a:x", "a:1-", "a:3-1", ":1", "a b:1", "a:1234567", "sp ace:1"):
        with pytest.raises(ConfigError):
            parse_partitions(wrong)


def test_an_expiry_is_a_span_or_a_time() -> None:
    texts = {"30m": 1800, "2h": 7200, "1d": 86400, "5s": 5, "2026-01-01T01:00:00Z": 3600}
    assert {text: parse_expiry(text, NOW) for text in texts} == texts
    assert parse_expiry("2", NOW) < 0, "milliseconds since the epoch, long ago"
    for wrong in ("", "tomorrow", "1w", "-1h", "2026-01-01T01:00:00"):
        with pytest.raises(ConfigError, match="neither a span"):
            parse_expiry(wrong, NOW)


def test_the_command_line_has_every_kind_of_command_with_the_text_of_its_declaration() -> None:
    assert set(ARGUMENTS) == set(KINDS)
    for kind in KINDS.values():
        shown = " ".join(CliRunner().invoke(main, ["group", kind.name, "--help"], terminal_width=1000).output.split())
        assert kind.summary.partition("PARTITION")[0].split("\n")[0].strip() in shown


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["cordon", "billing", "m", "--brokers", "127.0.0.1:1"], "such commands have no effect", 1),
        (["pin", "billing", "t", "m", "--zookeeper", "127.0.0.1:1"], "write topic:0 or topic:0-3,7", 2),
        (["pause", "billing", "t:0-1000000000", "--zookeeper", "127.0.0.1:1"], "a partition above 999999, which is", 2),
        (["freeze", "billing", "--expires", "soon", "--zookeeper", "127.0.0.1:1"], "such as 30m, 2h or 1d", 2),
        (["plan", "billing", "--apply", "--zookeeper", "127.0.0.1:1"], "must consist of them", 2),
        (["plan", "billing", "--add", "a=0", "--zookeeper", "127.0.0.1:1"], "--add: weight = 0: must be", 2),
        (["plan", "billing", "--weight", "a=2e6", "--zookeeper", "127.0.0.1:1"], "at most 1e+06", 2),
        (["plan", "billing", "--partitions", "t=8.5", "--zookeeper", "127.0.0.1:1"], "partitions = 8.5: must be", 2),
        (["skip", "billing", "t:0", "3", "--undo", "--dry-run", "--zookeeper", "127.0.0.1:1"], "not its withdrawal", 2),
        (["plan", "billing", "--weight", "a", "--zookeeper", "127.0.0.1:1"], "write NAME=VALUE", 2),
    ],
)
def test_wrong_arguments_are_refused_before_any_request(arguments: list[str], message: str, code: int) -> None:
    done = CliRunner().invoke(main, ["group", *arguments])
    assert (done.exit_code, message in done.output) == (code, True), done.output


def test_a_command_about_records_of_an_unknown_group_says_which_groups_there_are(zk_chroot: str) -> None:
    with zookeeper_client(zk_chroot) as client:
        for path in (PATHS.members, PATHS.claims):
            client.ensure_path(path)
    for arguments in (["pause", "biling", "t:0"], ["commands", "biling"]):
        done = CliRunner().invoke(main, ["group", *arguments, "--zookeeper", zk_chroot])
        assert done.exit_code == 1
        assert "ZooKeeper has no group 'biling' under /allocator; groups there: billing\n" in done.output
    seek = CliRunner().invoke(main, ["group", "seek", "billing", "t:0", "--to", "5", "--zookeeper", zk_chroot])
    assert (seek.exit_code, "offset 5 cannot be checked against the log" in seek.output) == (2, True), seek.output


def test_a_reservation_of_an_unknown_group_cannot_be_ended(zk_chroot: str) -> None:
    done = CliRunner().invoke(main, ["group", "release", "biling", "i-1", "--zookeeper", zk_chroot])
    assert (done.exit_code, "ZooKeeper has no group 'biling'" in done.output) == (1, True), done.output
