"""Events that the page shows beside the rebalances: changes by users, deployments, cluster outages. No I/O."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

KEPT = 1000
LONGEST = 500  # maximum number of characters of one argument in the audit log
FIELDS = 20  # maximum number of arguments


@dataclass(frozen=True)
class Event:
    """One event. `kind` is "command" (a change by a user), "deployment", "outage", or "read" (of masked records)."""

    at: float
    kind: str
    text: str
    group: Optional[str] = None
    """None: the event concerns all groups; "": it concerns no group."""
    who: Optional[str] = None
    """The user that the proxy's header names, or "token"."""
    address: Optional[str] = None
    detail: dict[str, Any] = field(default_factory=dict)
    """For a change by a user: the request and its outcome."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "at": round(self.at, 3)}


class EventLog:
    """The newest events, oldest first."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        self.count = 0
        """Number of events that were ever added. A larger number tells a reader that there are new events."""

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.count += 1

    def recall(self, older: Iterable[Event]) -> None:
        """Adds the events from the history file. The server calls it once, when it starts."""
        self.events.extendleft(reversed(list(older)))

    def since(self, count: int) -> list[Event]:
        """Returns the events that were added after the first `count` events."""
        fresh = min(self.count - count, len(self.events))
        return list(self.events)[len(self.events) - fresh :]

    def of(self, group: str) -> list[Event]:
        """Returns the events that concern this group or all groups."""
        return [event for event in self.events if event.group in (None, group)]


def audit_detail(request: Mapping[str, Any], outcome: str) -> dict[str, Any]:
    """Returns the detail of a line of the audit log: the request and its outcome, with long arguments truncated."""
    kept = {name[:LONGEST]: _cut(value) for name, value in list(request.items())[:FIELDS]}
    if len(request) > FIELDS:
        kept["..."] = f"{len(request) - FIELDS} more fields"
    return {"request": kept, "outcome": _cut(outcome)}


def _cut(value: Any) -> Any:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "too deeply nested"
    return value if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
