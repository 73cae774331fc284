"""Seats of members with an instance id: a seat outlives the member and keeps its partitions for its next process.

Guarantee: a seat gives no right to act. It only keeps the leader from assigning partitions that no member holds; the
next process claims them as any other partition. A seat therefore never leads to two owners.

All state is in the document: which member has which seat, and until when the seats of absent members are reserved. A
leader measures the time by its monotonic clock. It reads its wall clock in two cases: to write the end of a
reservation, and to compute from its predecessor's document how much of a reservation is left (at most the whole grace).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from allocator.core.text import shown
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo, Seat
from allocator.protocols.zookeeper.znodes.member_names import member_name
from allocator.types import NO_PARTITIONS

FEATURE = "seats"
"""The feature that a member's znode lists if its version knows reservations."""
IN_USE = "another process runs with the same instance_id"
"""The start of the reason with which a second member of an instance id is refused."""


def unaware(members: Mapping[str, MemberInfo]) -> list[str]:
    """Returns the names of members whose version does not know seats. As leader, such a member would assign reserved
    partitions to others."""
    return [member_name(member, info) for member, info in members.items() if FEATURE not in info.features]


def lasting(info: MemberInfo) -> MemberInfo:
    """Returns the member's info without the process id and other fields that change when its process restarts."""
    return (
        replace(info, pid=None, session_timeout_s=None, commands=(), features=(), version=None)
        if info.instance_id is not None
        else info
    )


def take_seats(
    document: AssignmentDocument,
    members: Mapping[str, MemberInfo],
    alive: Collection[str],
    over: Collection[str],
    now_ms: int,
) -> AssignmentDocument:
    """Returns the document with a seat for each live member; the same document if nothing changes.

    `members`: those with a member znode, in join order. `alive`: those with any znode. `over`: the members whose
    reservation has ended, or that left for good. `now_ms`: since the epoch. If the group has a member whose version
    does not know seats, no member gets one.
    """
    if unaware(members):
        return document.but(seats={}) if document.seats else document
    seats = {member: Seat(seat.info) for member, seat in document.seats.items() if member in alive}
    holders = {seat.info.instance_id: member for member, seat in seats.items()}
    for member, info in members.items():
        if info.instance_id is not None and holders.setdefault(info.instance_id, member) == member:
            seats[member] = Seat(lasting(info))
    owners, promised = dict(document.owners), dict(document.promised)
    for former, seat in document.seats.items():
        if former in alive:
            continue
        successor = holders.get(seat.info.instance_id)
        if successor is not None:
            # the session of the former member has ended, so it holds nothing
            for parts in (owners, promised):
                if former in parts:
                    parts[successor] = parts.get(successor, NO_PARTITIONS) | parts.pop(former)
        elif former not in over and owners.get(former):
            until_ms = seat.reserved_until_ms
            if until_ms is None:
                until_ms = max(0, now_ms + round(1000 * seat.info.restart_grace_s))
            seats[former] = Seat(seat.info, until_ms)
    if seats == document.seats:
        return document
    return document.but(seats=seats, owners=owners, promised=promised)


def absent(document: AssignmentDocument) -> frozenset[str]:
    """Returns the members whose partitions are reserved. Their sessions have ended."""
    return frozenset(member for member, seat in document.seats.items() if seat.reserved_until_ms is not None)


def away(document: AssignmentDocument, members: Collection[str]) -> dict[str, MemberInfo]:
    """Returns the members that have a seat but no member znode: the absent ones, and those whose claim still exists.

    Allocator functions get them in addition to `members`, so that a restart moves no partition of the others.
    """
    return {member: seat.info for member, seat in document.seats.items() if member not in members}


def standby(document: AssignmentDocument, members: Mapping[str, MemberInfo]) -> dict[str, str]:
    """Returns the members that get no seat because an older one of the same instance id lives, each with the reason.

    The newer member waits: only the end of the older session proves that the older process is dead. If the newer one
    had priority, two processes that share an id by mistake would take the partitions from each other forever.
    """
    if unaware(members):
        return {}
    holders = {seat.info.instance_id: member for member, seat in document.seats.items()}
    return {
        member: f"{IN_USE} {shown(info.instance_id)}: member {member_name(holder, members.get(holder))}"
        for member, info in members.items()
        if info.instance_id is not None
        and member not in document.seats
        and (holder := holders.get(info.instance_id)) is not None
    }


def view_ids(document: AssignmentDocument, members: Iterable[str]) -> dict[str, str]:
    """Maps each member to the id that allocator functions see, in the order in which they see the members.

    Id and order stay the same for the next process of a seat, because many functions depend on them. Members with a
    seat come first, by instance id; the others follow in join order.
    """
    seated = {member: f"i-{document.seats[member].info.instance_id}" for member in members if member in document.seats}
    return {
        **dict(sorted(seated.items(), key=lambda each: each[1])),
        **{member: member for member in members if member not in seated},
    }


def successors(before: AssignmentDocument, after: AssignmentDocument) -> dict[str, str]:
    """Maps each former member to the member that has taken over its seat."""
    holders = {seat.info.instance_id: member for member, seat in after.seats.items()}
    return {
        former: holders[seat.info.instance_id]
        for former, seat in before.seats.items()
        if former not in after.seats and seat.info.instance_id in holders
    }


class GraceTimer:
    """Measures how long each reservation still lasts, by the clock of this leader.

    `clock` is monotonic. The leader reads the wall clock once for each reservation, when it first sees it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}

    def see(self, seats: Mapping[str, Seat], now_ms: int, begun: Collection[str] = ()) -> None:
        """Starts a timer for each new reservation. Removes the timers of reservations that have ended.

        `begun`: the members whose reservations start with this leader. An earlier leader started the other
        reservations.
        """
        ends = {}
        for member, seat in seats.items():
            if seat.reserved_until_ms is not None:
                left_s = seat.info.restart_grace_s
                if member not in begun:
                    left_s = max(0.0, min((seat.reserved_until_ms - now_ms) / 1000, left_s))
                ends[member] = self._ends.get(member, self._clock() + left_s)
        self._ends = ends

    def over(self) -> frozenset[str]:
        """Returns the members whose reservation has ended."""
        now = self._clock()
        return frozenset(member for member, end in self._ends.items() if end <= now)

    def remaining_s(self) -> float | None:
        """Seconds until the next reservation ends; None if there is none."""
        return None if not self._ends else max(0.0, min(self._ends.values()) - self._clock())
