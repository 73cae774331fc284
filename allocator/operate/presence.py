"""Answers where a group has members, from what was read of it in every layout and protocol. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from allocator.core.text import plain
from allocator.operate.group_report import GroupState, listed
from allocator.operate.layouts import KIEL, OLD_CONSUMERS, OldLayouts
from allocator.operate.shell_command import ShellCommand

IN_KAFKA = "Kafka's own protocol"


@dataclass(frozen=True)
class Presence:
    """One group in this library's layout, in older layouts, and in Kafka."""

    group: str
    state: Optional[GroupState] = None
    """The group in this library's layout; None if it is not there, or was not read."""
    older: OldLayouts = field(default_factory=OldLayouts)
    kafka: Optional[GroupState] = None
    """The group as Kafka's coordinator reports it; None if it never had members there, or was not read."""
    unread: tuple[str, ...] = ()
    """Why there may be members in places that could not be read."""
    unnamed: tuple[str, ...] = ()
    """Why there may be members in places that the caller did not name."""

    @property
    def names(self) -> list[str]:
        """The names of all members. An invalid znode of a member counts, and so does a claim without its member."""
        state = self.state
        found = [] if state is None else [state.name_of(member) for member in (*state.members, *state.present)]
        found += [f"{name} (kiel)" for name in self.older.kiel]
        found += [f"{name} (high-level consumer)" for name in self.older.consumers]
        found += [f"{name} (Kafka)" for name in self._in_kafka]
        return list(dict.fromkeys(found))

    def places(self, root: str) -> tuple[str, ...]:
        """Returns the paths and protocols that have members. Each of them assigns all partitions."""
        here = [] if self.state is None or not self.state.members else [f"{root}/{self.group}/members"]
        return (*here, *([IN_KAFKA] if self._in_kafka else []), *self._in_old_layouts)

    def unseen(self, shown: GroupState) -> tuple[str, ...]:
        """Returns why the group may have members that `shown`, its state in one of these places, does not have."""
        found = [*(() if shown.members else self.unnamed), *self.unread]
        counts = [
            f"{len(members)} members under {path} ({listed([plain(name) for name in members])})"
            for path, members in self._in_old_layouts.items()
        ]
        if counts:
            doctor = ShellCommand.of("allocator doctor", self.group)
            found.append(f"group {self.group!r} has {' and '.join(counts)}, which are not shown here; run `{doctor}`")
        kafka = self.kafka
        if kafka is not None and self._in_kafka and not (shown.coordinated is not None and shown.members):
            names = listed([plain(name) for name in self._in_kafka])
            what = f"{len(kafka.members)} members in Kafka ({names})" if kafka.members else f"{names} in Kafka"
            # without members, the name tells the state
            state = f" (state {kafka.coordinated.state})" if kafka.members and kafka.coordinated is not None else ""
            found.append(f"group {self.group!r} has {what}, which are not shown here{state}")
        return tuple(found)

    @property
    def only_offsets(self) -> bool:
        """Whether neither older layouts nor Kafka's own protocols know the group. Kafka may have offsets of it."""
        return self.kafka is None and self.older == OldLayouts()

    @property
    def _in_old_layouts(self) -> dict[str, tuple[str, ...]]:
        """Path -> the members in that older layout."""
        found = {KIEL.format(self.group): self.older.kiel, OLD_CONSUMERS.format(self.group): self.older.consumers}
        return {path: members for path, members in found.items() if members}

    @property
    def _in_kafka(self) -> list[str]:
        kafka = self.kafka
        if kafka is None:
            return []
        if not kafka.members and kafka.coordinated is not None and not kafka.coordinated.idle:
            return [f"members that are not consumers, in state {kafka.coordinated.state}"]
        return [kafka.name_of(member) for member in kafka.members]
