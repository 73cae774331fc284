"""How the steering commands parse partitions and times, and what they refuse without servers."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.cli.orders import parse_expiry, parse_partitions
from allocator.errors import ConfigError
from allocator.types import TopicPartition

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def test_partitions_are_named_by_topic_and_ranges() -> None:
    assert parse_partitions("a:0-2,7 b.c-d:5") == {
        *(TopicPartition("a", number) for number in (0, 1, 2, 7)),
        TopicPartition("b.c-d", 5),
    }


@pytest.mark.parametrize("text", ["", "a", "a:", "a:x", "a:1-", "a:3-1", ":1", "a b:1", "a:1234567", "sp ace:1"])
def test_other_text_names_no_partitions(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_partitions(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("2h", 7200), ("1d", 86400), ("5s", 5), ("2026-01-01T01:00:00Z", 3600)]
)
def test_an_expiry_is_a_span_or_a_time(text: str, seconds: float) -> None:
    assert parse_expiry(text, NOW) == seconds


@pytest.mark.parametrize("text", ["", "tomorrow", "2", "1w", "-1h", "2026-01-01T01:00:00"])
def test_other_text_is_no_expiry(text: str) -> None:
    if text == "2":  # milliseconds since the epoch, long ago: the order would have expired
        assert parse_expiry(text, NOW) < 0
        return
    with pytest.raises(ConfigError, match="neither a span"):
        parse_expiry(text, NOW)


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["cordon", "billing", "m", "--brokers", "127.0.0.1:1"], "such orders have no effect", 1),
        (["pin", "billing", "t", "m", "--zookeeper", "127.0.0.1:1"], "write topic:0 or topic:0-3,7", 2),
        (["freeze", "billing", "--expires", "soon", "--zookeeper", "127.0.0.1:1"], "such as 30m, 2h or 1d", 2),
        (["plan", "billing", "--apply", "--zookeeper", "127.0.0.1:1"], "must consist of orders", 2),
        (["plan", "billing", "--add", "a=0", "--zookeeper", "127.0.0.1:1"], "is not a positive number", 2),
        (["plan", "billing", "--rack", "a", "--zookeeper", "127.0.0.1:1"], "write NAME=VALUE", 2),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_server_is_asked(arguments: list[str], says: str, code: int) -> None:
    done = CliRunner().invoke(main, ["group", *arguments])
    assert (done.exit_code, says in done.output) == (code, True), done.output
