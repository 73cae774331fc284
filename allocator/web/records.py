"""Decides which users may read records on the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from allocator.viewer import Viewer
from allocator.web.guard import Guard, User

AT_ONCE = 4  # concurrent reads. Higher: more memory and connections to the brokers; lower: more reads are refused
TEXT = 20_000  # maximum number of characters of a key or value on the page; a download has all of them


@dataclass(frozen=True)
class RecordsPage:
    """The viewer, and the role that may use it."""

    viewer: Viewer
    access: Literal["operators", "viewers"] = "operators"

    def allows(self, user: User) -> bool:
        return user.operates or (self.access == "viewers" and user.role != "")

    def offer(self, user: User, guard: Guard) -> str:
        """Returns whether the page offers records to the user: "yes", "no", or "token" (after the token is entered)."""
        if self.allows(user):
            return "yes"
        return "token" if guard.token is not None and guard.login is None else "no"
