"""Settings of a mirror."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Optional, Union

from allocator.core.settings import DEFAULT, Number, Whole, check_path, check_pattern, check_topic, keyword_faults
from allocator.errors import ConfigError
from allocator.migrate.topics import SUFFIX
from allocator.protocols.zookeeper import same_cluster

RECREATED: Final = ("earliest", "continue")
RANGES: Final[Mapping[str, Union[Number, Whole]]] = {
    "replication": Whole(1, 2**15 - 1),
    "commit_interval_s": Number(above=True),
    "buffer_bytes": Whole(1, 2**63 - 1, unit="bytes"),
    "throttle_bytes_s": Number(above=True, unit="bytes a second"),
}


@dataclass(frozen=True)
class MirrorSettings:
    """The settings of a mirror. Times are in seconds.

    old, new            brokers, "host:port,host:port"
    topics or pattern   the topics to mirror; a pattern is matched at the start of a topic's name
    exclude             regular expression: of the topics that match the pattern, leave out those whose name it matches
                        completely
    skip_settings       settings of old topics that new topics do not get, such as "segment.bytes"
    group               the group of the mirror's processes. Its offsets on the old cluster are the positions, and the
                        topic "<group>.offset-map" of the new cluster has the offset map
    membership          membership of the group: "zookeeper" (needs `zookeeper`) or "kafka"
    old_zookeeper       the old cluster's ensemble, with its chroot: brokers before 0.11 do not report topic settings
    zookeeper           the ensemble of the groups, with its chroot: of the own one, of those that are synced, and of
                        `back_of`
    root                the znode with these groups
    nowhere             no ensemble has members of these groups; `sync_group_offsets` and `back_of` need this or
                        `zookeeper`
    create              create the chroot in `zookeeper` if it does not exist; otherwise a missing chroot is an error
    replication         replication factor of created topics, at most the number of brokers
    throttle_bytes_s    maximum bytes that this process sends in a second; None: no limit
    append              append to new partitions that already hold records; without it, such a partition is an error
    accept_loss         end without an error although the old cluster deleted records before they were mirrored, and
                        mirror records that the new cluster deletes at once; without it, their topic stops
    recreated           how to continue with old topics that were deleted and created again, or lost their tail;
                        without it they stop. topic -> "earliest": from its earliest record, after the former records
                        on the new cluster; "continue": where the log was cut, or at the stored position, as if it were
                        the same topic
    back_of             group of the mirror in the other direction, whose producers a cutover has moved: each partition
                        begins at its first record after the move, and that mirror ends
    sync_group_offsets  regular expression: keep the offsets of the groups whose whole name matches translated on the
                        new cluster, as MirrorMaker 2 does with sync.group.offsets.enabled
    restart             topics to mirror again from the earliest old record, after the new topic's records, if the new
                        topic was deleted, created again or truncated; without it they stop
    commit_interval_s   Higher: more records are compared after a crash; lower: more requests.
    buffer_bytes        maximum bytes that are read and not acknowledged
    """

    old: str
    new: str
    topics: Sequence[str] = ()
    pattern: Optional[str] = None
    exclude: Optional[str] = None
    skip_settings: Sequence[str] = ()
    group: str = "allocator-mirror"
    membership: Literal["zookeeper", "kafka"] = DEFAULT["membership"]
    zookeeper: Optional[str] = None
    root: str = DEFAULT["root"]
    nowhere: bool = False
    create: bool = False
    old_zookeeper: Optional[str] = None
    old_security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    new_security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    replication: int = 3
    throttle_bytes_s: Optional[float] = None
    append: bool = False
    accept_loss: bool = False
    recreated: Mapping[str, str] = field(default_factory=dict)
    back_of: Optional[str] = None
    sync_group_offsets: Optional[str] = None
    restart: Sequence[str] = ()
    commit_interval_s: float = 1.0
    buffer_bytes: int = 64 << 20
    session_timeout_s: float = DEFAULT["session_timeout_s"]

    def check(self) -> None:
        """Raises one ConfigError that lists every fault, or MissingExtra. Does not connect."""
        faults = []
        if not self.topics and not self.pattern:
            faults.append("no topic to mirror: give topics (--topic) or a pattern (--pattern)")
        if self.topics and self.pattern:
            faults.append("topics and a pattern are both given: omit one")
        if self.exclude is not None and not self.pattern:
            faults.append("exclude leaves out topics of a pattern; there is no pattern (--pattern)")
        for name in "exclude", "sync_group_offsets":
            try:
                re.compile(getattr(self, name) or "")
            except re.error as error:
                faults.append(f"{name} is no regular expression: {getattr(self, name)!r}: {error}")
        maps = [topic for topic in self.topics if topic.endswith(SUFFIX)]
        if maps:
            faults.append(f"{maps[0]!r} is an offset map of two other clusters; a copy of it is wrong")
        for name in filter(partial(getattr, self), ("group", "back_of")):
            try:
                check_topic(getattr(self, name) + SUFFIX)
            except ConfigError as error:
                faults.append(f"{name} {getattr(self, name)!r} is in the name of the offset map: {error}")
        if self.back_of == self.group:
            faults.append(
                f"back_of is the group of this mirror itself, {self.group!r}: give it another group (--group)"
            )
        if self.membership not in ("zookeeper", "kafka"):
            faults.append(f"membership is {self.membership!r}, not 'zookeeper' or 'kafka'")
        if self.membership == "zookeeper" and not self.zookeeper:
            faults.append("zookeeper is missing (--zookeeper): the processes of the mirror coordinate through it")
        elif self.zookeeper is None and not self.nowhere:
            for name in filter(partial(getattr, self), ("sync_group_offsets", "back_of")):
                faults.append(
                    f"zookeeper is missing (--zookeeper): groups that {name} names may have members there, which would "
                    "read or write on; give nowhere (--zookeeper none) if no ensemble has members of them"
                )
        try:
            check_path("root", self.root)
        except ConfigError as error:
            faults.append(str(error))
        try:
            check_pattern(self.pattern, self.membership)
        except ConfigError as error:
            faults.append(str(error))
        for topic, choice in self.recreated.items():
            if choice not in RECREATED:
                faults.append(f"recreated[{topic!r}] is {choice!r}, not {' or '.join(map(repr, RECREATED))}")
            elif self.topics and topic not in self.topics:
                faults.append(f"recreated names {topic!r}, which is not among the topics to mirror")
        ranged = {name: getattr(self, name) for name in ("session_timeout_s", *RANGES)}
        faults += keyword_faults(ranged, **RANGES).values()
        if same_cluster(self.old, self.new):
            faults.append(f"the old and the new cluster share an address: {self.old} and {self.new}")
        if faults:
            raise ConfigError("; ".join(faults))
