"""Checks what the leader of a classic group assigns to this member. The leader may be any client, so its message may be
unreadable, or name partitions that do not exist. Neither ends this member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from allocator.core.aio import Backoff, Reminder, within
from allocator.core.client import KafkaClient
from allocator.core.text import plain, shown
from allocator.errors import AllocatorError
from allocator.protocols.kafka_classic.consumer_protocol import Malformed, MemberAssignment
from allocator.protocols.kafka_classic.group import ClassicMember
from allocator.types import NO_PARTITIONS, Partitions

log = logging.getLogger(__name__)

# greatest pause in seconds before a member joins again whose assignment could not be read. Higher: it gets partitions
# later once its leader is well; lower: a leader that stays broken disturbs the group more often
UNREADABLE_MAX_S = 60.0
REFRESH_S = 3.0  # seconds that an assignment waits for metadata of partitions that are new to this member
# partitions that a topic may have that this member knows no metadata of, for example because brokers are starting
MOST_UNSEEN = 1_000


class ReceivedAssignments:
    """The assignments of one member. `sizes` returns the partition numbers of a topic by the metadata of `client`.

    Call `forget` when a rebalance begins, and when the membership is lost.
    """

    def __init__(
        self, client: KafkaClient, group: ClassicMember, sizes: Callable[[str], Sequence[int]], pause_s: float
    ) -> None:
        self._client = client
        self._group = group
        self._sizes = sizes
        self._pauses = Backoff(pause_s, UNREADABLE_MAX_S)
        self._again: asyncio.TimerHandle | None = None  # joins again after an unreadable assignment
        self._reminder = Reminder(log)
        self._clipped: Mapping[str, int] = {}  # topic -> its size when it lacked assigned partitions

    @property
    def is_clipped(self) -> bool:
        """Whether the current assignment named partitions that did not exist."""
        return bool(self._clipped)

    def forget(self) -> None:
        self._clipped = {}
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def decode(self, assignment: bytes) -> Partitions:
        """Returns the assigned partitions. If the assignment cannot be read, returns none, and the member joins again
        after a pause."""
        try:
            assigned = MemberAssignment.decode(assignment).partitions
        except Malformed as error:
            pause_s, join = self._pauses.next(), self._group.request_rejoin
            if self._pauses.pauses == 1:
                log.error(
                    "%s: no partitions for this member, because its assignment by the leader, %s, cannot be read: %s. "
                    "It joins again until it gets another one",
                    self._group.group,
                    plain(self._group.leader),
                    error,
                )
            self._again = asyncio.get_running_loop().call_later(pause_s, join, "the assignment could not be read")
            return NO_PARTITIONS
        self._pauses.reset()
        return assigned

    async def existing(self, assigned: Partitions) -> Partitions:
        """Returns the assigned partitions that exist. The leader may have newer metadata than this member, so this
        reads it again before it refuses any."""
        topics = {p.topic for p in assigned}
        known = {topic: frozenset(self._sizes(topic)) for topic in topics}
        if any(p.partition not in known[p.topic] for p in assigned):
            try:
                await within(self._client.refresh(topics), REFRESH_S)
            except (AllocatorError, asyncio.TimeoutError) as error:
                log.info("%s: assigned partitions are checked by old metadata: %s", self._group.group, shown(error))
            known = {topic: frozenset(self._sizes(topic)) for topic in topics}
        found = frozenset(p for p in assigned if p.partition in (known[p.topic] or range(MOST_UNSEEN)))
        if len(found) == len(assigned):
            self._reminder.over()
            return found
        self._clipped = {p.topic: len(known[p.topic]) for p in assigned - found}
        self._reminder.warn(
            "%s: the leader, %s, assigned %d partitions that do not exist, of topics %s; this member takes the others",
            self._group.group,
            plain(self._group.leader),
            len(assigned) - len(found),
            shown(sorted(self._clipped)),
        )
        return found

    def has_grown(self) -> bool:
        """Returns whether a topic that lacked assigned partitions has more partitions now."""
        return any(len(self._sizes(topic)) > count for topic, count in self._clipped.items())
