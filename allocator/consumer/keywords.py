"""The keyword arguments of consumers: types, units and ranges, checked before anything is touched.

In: the arguments. Out: a line for each that is at fault. Arguments that contradict each other are `joining`'s to find.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.consumer.settings import Number, SettingKind, Text, Whole
from allocator.foreign import shown

__all__ = ["argument_faults"]


@dataclass(frozen=True)
class _Factory:
    """An instance of one of `types`, which may be empty."""

    allowed: str
    types: tuple[type[Any], ...]

    def read(self, value: Any) -> Any:
        if not isinstance(value, self.types) or isinstance(value, bytes):
            raise ValueError
        return value

    def parse(self, text: str) -> Any:
        return text


class _ResetStrategy:
    """Where to begin; the words are the fetcher's to know."""

    allowed = '"earliest", "latest", "none", or a time (milliseconds since the epoch)'

    def read(self, value: Any) -> Any:
        return value if isinstance(value, str) else Whole(high=2**62).read(value)

    def parse(self, text: str) -> Any:
        return text


_TEXT: Final = _Factory("text", (str,))
_DICT: Final = _Factory("a dict", (Mapping,))
_TIME: Final = Number(0, 86400, above=True)

# what an argument takes, besides None where None is its default
KINDS: Final[Mapping[str, SettingKind]] = {
    "brokers": _Factory('"host:port,host:port", or a list of "host:port"', (str, Collection)),
    "membership": _TEXT,
    "group": _TEXT,
    "client_id": _TEXT,
    "pattern": _TEXT,
    "rack": _TEXT,
    "zookeeper": _Factory('"host:port,host:port/chroot"', (str,)),
    "root": _TEXT,
    "instance_id": _TEXT,
    "group_protocol": _TEXT,
    "offsets": _TEXT,
    "auto_offset_reset": _ResetStrategy(),
    "isolation_level": Text(("read_uncommitted", "read_committed")),
    "weight": Number(0, 1e6, above=True, unit="relative capacity"),
    "session_timeout_s": Number(0, 3600, above=True),
    "heartbeat_interval_s": Number(0, 3600, above=True),
    "rebalance_timeout_s": _TIME,
    "connect_timeout_s": _TIME,
    "max_poll_interval_s": Number(0, 30 * 86400, above=True),
    "auto_commit_interval_s": _TIME,
    "settle_s": Number(0, 3600),
    "max_wait_s": Number(0, 300),
    "min_bytes": Whole(0, unit="bytes"),
    "max_bytes": Whole(1, unit="bytes"),
    "max_partition_bytes": Whole(1, unit="bytes"),
    "prefetch_bytes": Whole(1, unit="bytes"),
    "security": _DICT,
    "zookeeper_options": _DICT,
}
SECRET: Final = frozenset({"security", "zookeeper_options"})
NEEDED: Final = frozenset(
    {
        "brokers",
        "membership",
        "auto_offset_reset",
        "client_id",
        "root",
        "group_protocol",
        "isolation_level",
        "weight",
        "settle_s",
    }
    | {"session_timeout_s", "heartbeat_interval_s", "rebalance_timeout_s", "connect_timeout_s", "max_wait_s"}
    | {"min_bytes", "max_bytes", "max_partition_bytes", "prefetch_bytes"}
)
"""Arguments for which None is a fault."""


def argument_faults(given: Mapping[str, Any]) -> list[str]:
    """For each that is at fault, "session_timeout_s = 10000: must be ..."; names outside KINDS are left alone."""
    faults = []
    for name, value in given.items():
        kind = KINDS.get(name)
        if kind is None or (value is None and name not in NEEDED):
            continue
        try:
            kind.read(value)
        except ValueError as error:
            what = name if name in SECRET else f"{name} = {shown(value)}"
            faults.append(f"{what}: must be {kind.allowed}" + (f"; {error}" if error.args else ""))
    return faults
