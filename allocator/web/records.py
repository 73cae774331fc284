"""Records on the page: access rules, and the arguments of requests. The viewer reads and decodes the records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from allocator.errors import ConfigError
from allocator.handlers.schemas.decode import PLAIN_FORMATS
from allocator.viewer import Position, Query, Viewer, parse_key
from allocator.web.guard import Guard, User

__all__ = ["AT_ONCE", "TEXT", "RecordsPage", "RecordsRequest"]

AT_ONCE = 4  # reads at the same time. more: more memory and connections to the brokers; less: users wait
MOST = 1000  # records in one response
TEXT = 20_000  # characters of a key or value on the page; a download has all of them
ARGUMENTS = (
    *("partition", "from", "before", "limit", "key", "key_hex", "every_partition", "isolation_level"),
    *("key_format", "value_format"),
)


@dataclass(frozen=True)
class RecordsPage:
    """The viewer of a server, and its users."""

    viewer: Viewer
    access: Literal["operators", "viewers"] = "operators"

    def allows(self, user: User) -> bool:
        return user.operates or (self.access == "viewers" and user.role != "")

    def offer(self, user: User, guard: Guard) -> str:
        """What the page shows a user: "yes", "token" (the user must enter it) or "no"."""
        if self.allows(user):
            return "yes"
        return "token" if guard.token is not None and guard.login is None else "no"


@dataclass(frozen=True)
class RecordsRequest:
    """A request for records."""

    query: Query
    key_format: str
    value_format: str

    @classmethod
    def of(cls, topic: str, argument: Callable[[str], str], names: Any) -> RecordsRequest:
        """Reads the arguments of a URL; `argument` gives "" for a missing one. Raises ConfigError."""
        unknown = sorted(set(names) - set(ARGUMENTS))
        if unknown:
            raise ConfigError(f"{', '.join(map(repr, unknown))} is not known here; {', '.join(ARGUMENTS)} are")
        isolation = argument("isolation_level") or "read_uncommitted"
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ConfigError(f"isolation_level={isolation!r} is not read_uncommitted or read_committed")
        every = argument("every_partition") or "false"
        if every not in ("true", "false"):
            raise ConfigError(f"every_partition={every!r} is not true or false")
        formats = [argument(name) or "auto" for name in ("key_format", "value_format")]
        for format in formats:
            # a format with a file would read files of the server
            if format not in PLAIN_FORMATS:
                raise ConfigError(f"format {format!r} is not {', '.join(PLAIN_FORMATS)}")
        partition = argument("partition")
        query = Query(
            topic,
            None if not partition else _whole("partition", partition, 10**9),
            Position.parse(argument("from") or "latest"),
            _whole("limit", argument("limit") or "50", MOST),
            _whole("before", argument("before") or "0", MOST),
            parse_key(argument("key") or None, argument("key_hex") or None),
            every == "true",
            isolation,  # type: ignore[arg-type]
        )
        return cls(query, *formats)


def _whole(name: str, text: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
        raise ConfigError(f"{name}={text!r} is not a number from 0 to {most}")
    return int(text)
