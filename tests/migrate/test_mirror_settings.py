"""Settings that a mirror refuses before it connects."""

from __future__ import annotations

from typing import Any

import pytest

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
