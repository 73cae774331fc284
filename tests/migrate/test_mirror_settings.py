"""Settings that a mirror refuses before it connects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.errors import ConfigError
from allocator.migrate.mirror_settings import MirrorSettings

VALID: dict[str, Any] = {"old": "a:9092,b:9092", "new": "c:9092", "group": "g", "topics": ["t"], "membership": "kafka"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"new": "c:9092, B:9092"}, "the old and the new cluster share an address: a:9092,b:9092 and c:9092, B:9092"),
        ({"topics": []}, "no topic to mirror"),
        ({"pattern": "t"}, "topics and a pattern are both given: omit one"),
        ({"topics": [], "pattern": "(?!t)", "membership": "zookeeper", "zookeeper": "z:1"}, "without lookaround"),
        ({"sync_group_offsets": "r.*"}, "zookeeper is missing .*groups that sync_group_offsets names may have members"),
        ({"back_of": "h"}, "zookeeper is missing .*groups that back_of names may have members"),
        ({"group": "move 1"}, "group 'move 1' is in the name of the offset map: .* is not a topic name"),
        ({"group": 239 * "g"}, "is not a topic name: use 1 to 249"),
        ({"back_of": "g/h", "nowhere": True}, "back_of 'g/h' is in the name of the offset map: "),
        ({"recreated": {"u": "earliest"}}, "recreated names 'u', which is not among the topics to mirror"),
        ({"root": "groups"}, "root 'groups' must be an absolute path"),
        ({"membership": "fixed"}, "membership is 'fixed', not 'zookeeper' or 'kafka'"),
        ({"throttle_bytes_s": 0}, "throttle_bytes_s = 0: must be a number .bytes a second., more than 0"),
    ],
    ids=str,
)
def test_an_invalid_setting_is_refused_by_its_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MirrorSettings(**{**VALID, **changed}).check()


def test_a_caller_may_state_that_no_ensemble_has_members() -> None:
    MirrorSettings(**VALID, sync_group_offsets="r.*", back_of="h", nowhere=True).check()


def test_a_file_needs_only_how_to_connect(tmp_path: Path) -> None:
    """The command is refused for another reason, before it connects."""
    command = ["mirror", "a:1", "b:1", "--membership", "kafka"]
    file = tmp_path / "security.toml"
    for option in ("--config", "--to-config"):
        file.write_text('[kafka]\nsecurity_protocol = "SSL"\n')
        done = CliRunner().invoke(main, [*command, option, str(file)])
        assert (done.exit_code, "no topic to mirror" in done.stderr) == (2, True)
        file.write_text('[kafak]\nsecurity_protocol = "SSL"\n')
        done = CliRunner().invoke(main, [*command, option, str(file)])
        assert (done.exit_code, "did you mean [kafka]?" in done.stderr) == (2, True)
