"""Decides which member gets which partitions. The leader and `allocator group plan` call it.

In: the members, the partition counts, the current document, the commands in effect, and the allocator functions. Out: a
`GroupDecision`. Nothing is written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional, TypeVar

from allocator.assignors import (
    Assignor,
    Constraints,
    GroupView,
    LoadAssignor,
    LoadReport,
    Member,
    balance,
    built_in,
    choose,
    left_out,
    moved,
    resolve,
    steer,
)
from allocator.commands import Command, Commands
from allocator.core.settings import DEFAULT, topic_pattern
from allocator.core.text import shown
from allocator.documents import SMALL_PARTITIONS
from allocator.errors import AllocatorError, AssignorError
from allocator.protocols.zookeeper.seats import away, standby, view_ids
from allocator.protocols.zookeeper.steering import Budget, CommandsInForce, constraints_of
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo
from allocator.protocols.zookeeper.znodes.following import LoadHistory
from allocator.protocols.zookeeper.znodes.load_reader import loads_of
from allocator.types import Partitions, TopicPartition

T = TypeVar("T")
ViewBuilder = Callable[
    [Assignor, "tuple[Member, ...]", Mapping[str, int], Mapping[str, Partitions]], Awaitable[GroupView]
]
"""Arguments: assignor, members, partition counts, owned partitions. Returns the view of the group that the assignor
needs."""


@dataclass(frozen=True)
class GroupDecision:
    """The assignment that the group moves to. A budget of moves may make it several steps."""

    target: Mapping[str, Partitions]
    """The partitions of each member that takes part."""
    strategy: str
    refused: Mapping[str, str]
    """Members without a function in common with the group, each with the reason."""
    left_out: Partitions
    """Partitions that the assignment gives to no member."""
    load_history: Optional[LoadHistory] = None
    """The history including this decision's moves; None if no partition moves because of a lasting imbalance."""


@dataclass(frozen=True)
class GroupLoad:
    """The inputs of a decision by load."""

    loads: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The loads that members have reported."""
    uneven: bool = False
    """Whether an imbalance has lasted long enough that partitions should move."""
    now_ms: int = 0
    """Milliseconds since the epoch."""


SMALL_BY_LOAD = 2_000  # partitions; smaller than SMALL_PARTITIONS because the leader checks the load regularly
# Seconds that an allocator function may take in a thread. Higher: the group stands still longer without a reason if the
# function hangs; lower: a slow function on a busy machine counts as hanging.
LIMIT_S = 60.0
LOOK_S = 0.1  # how often the end of an earlier call is looked for

_calls: list[tuple[Assignor, Future[Any]]] = []
"""The calls in threads that may still run."""


def subscription(info: MemberInfo, topics: Collection[str]) -> frozenset[str]:
    """Returns the topics that a member subscribes to: the named topics, and any of `topics` that match its pattern."""
    if info.pattern is None:
        return info.topics
    return info.topics | set(filter(topic_pattern(info.pattern).matches, topics))


async def decide(
    members: Mapping[str, MemberInfo],
    counts: Mapping[str, int],
    document: AssignmentDocument,
    commands: Sequence[Command],
    assignors: Mapping[str, Assignor],
    build: ViewBuilder,
    load: GroupLoad | None = None,
) -> GroupDecision:
    """Computes a decision. `members` are in join order, `assignors` are those that this process offers, by name.

    `load` is None if no loads are known. Raises AllocatorError if the function fails, returns no valid assignment, or
    is not among `assignors`.
    """
    waiting = standby(document, members)
    strategy, refused = choose([(member, info.strategies) for member, info in members.items() if member not in waiting])
    refused.update(waiting)
    assignor = assignors.get(strategy)
    if assignor is None:
        raise AllocatorError(f"the group agreed on {shown(strategy)}, which this leader does not offer")
    # the functions see absent members that may come back, so that a restart moves no partition of the others
    missing = away(document, members)
    everybody = {**members, **missing}
    ids = view_ids(document, everybody)
    # members usually share one subscription
    subscriptions = {(info.topics, info.pattern): info for info in everybody.values()}
    subscribed = {key: subscription(info, counts) for key, info in subscriptions.items()}
    taking_part = tuple(
        Member(
            id=ids[member],
            name=info.name,
            topics=subscribed[info.topics, info.pattern],
            weight=info.weight,
            rack=info.rack,
            host=info.host,
        )
        for member, info in ((member, everybody[member]) for member in ids)
        if member not in refused
    )
    owned = {ids[member]: parts for member, parts in document.owners.items() if member in ids}
    held = {ids[member]: parts for member, parts in document.assigned().items() if member in ids}
    constraints = constraints_of(commands, everybody, missing).renamed(ids)
    size, history = sum(counts.values()), None
    if isinstance(assignor, LoadAssignor):
        load = load or GroupLoad()
        tolerance = next(iter(members.values())).load_tolerance or DEFAULT["load_tolerance"]
        view = GroupView(taking_part, dict(counts), held, load=load.loads)
        compute = partial(_by_load, assignor, view, constraints, tolerance, load, document.load_history)
        target, history = await _computed(assignor, compute, size >= SMALL_BY_LOAD)
    else:
        view = await build(assignor, taking_part, counts, owned)
        target = await _computed(assignor, partial(steer, assignor, view, constraints, held), size >= SMALL_PARTITIONS)
    without = left_out(view, target)
    target = {member: target[seen] for member, seen in ids.items() if seen in target}
    return GroupDecision(target, strategy, refused, without, history)


async def _computed(assignor: Assignor, compute: Callable[[], T], large: bool) -> T:
    """Returns `compute()`, which calls the assignor. If it is `large`, it runs in a thread, so that the event loop can
    renew the lease.

    Raises AssignorError if the thread takes longer than `LIMIT_S`, or if an earlier one is still in the same function
    after that time, such as for another group.
    """
    if not large:
        return compute()
    hangs = f"allocator function {assignor.name!r} has not returned"
    loop = asyncio.get_running_loop()
    until = loop.time() + LIMIT_S
    while any(each is assignor and not call.done() for each, call in _calls):
        if loop.time() >= until:
            raise AssignorError(f"{hangs} from an earlier call; correct it, and start this member again")
        await asyncio.sleep(LOOK_S)
    _calls[:] = [each for each in _calls if not each[1].done()]
    call = _in_thread(compute)
    _calls.append((assignor, call))
    waiting = asyncio.wrap_future(call)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=LIMIT_S)
        if done:
            return waiting.result()
    finally:
        waiting.cancel()  # or the function's return would wake a loop that may be closed by then
    raise AssignorError(f"{hangs} within {LIMIT_S:g} s; correct it, and start this member again")


def _in_thread(compute: Callable[[], T]) -> Future[T]:
    """Starts a daemon thread. An executor's would keep the process from ending while the function hangs."""
    call: Future[T] = Future()
    call.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call.set_result(compute())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            call.set_exception(error)

    threading.Thread(target=run, name="allocator-decide", daemon=True).start()
    return call


def _by_load(
    assignor: LoadAssignor,
    view: GroupView,
    constraints: Constraints,
    tolerance: float,
    load: GroupLoad,
    before: LoadHistory,
) -> tuple[dict[str, Partitions], LoadHistory | None]:
    """Assigns the partitions of a group that follows load. The history is None if no partition moves because of a
    lasting imbalance."""
    total, history, resting = sum(view.partitions.values()), None, before.resting(load.now_ms)
    found = steer(assignor, view, constraints)
    further = partial(balance, view.members, loads=view.load, tolerance=tolerance, constraints=constraints)
    # a member that joined needs partitions, whatever the load; the budget does not limit moves to it
    newcomers = {member.id for member in view.members if not view.owned.get(member.id)}
    moves = further(found, resting=resting, newcomers=newcomers)
    found = moved(found, moves)
    if load.uneven:
        resting |= {move.partition for move in moves}
        moves = further(found, resting=resting, most=before.allowance(total, load.now_ms))
        found = moved(found, moves)
        if moves:
            history = before.with_moves((move.partition for move in moves), total, load.now_ms)
    return found, history


@dataclass(frozen=True)
class Preview:
    """A decision to show, which is not carried out."""

    target: Mapping[str, Partitions]
    strategy: str
    commands: Mapping[str, tuple[str, str]]
    """Command -> its state after the last move, and the reason."""
    budget: Budget


async def preview(
    members: Mapping[str, MemberInfo],
    counts: Mapping[str, int],
    document: AssignmentDocument,
    commands: Commands,
    reports: Mapping[str, LoadReport],
    build: ViewBuilder,
    *,
    uneven: bool,
    now_ms: int,
    trusted: Optional[str] = None,
) -> Preview:
    """Returns what a leader with these members would decide at `now_ms`.

    `reports`: the loads that members report. `uneven`: whether an imbalance counts as lasting. `trusted`: the name of
    an allocator function that the caller gave. Another one must be built in, because `members` come from znodes, and
    whoever writes a znode must not choose code that runs here. Raises the errors of `decide`, and AssignorError for a
    function that is not trusted or cannot be loaded.
    """
    strategy, _ = choose([(member, info.strategies) for member, info in members.items()])
    function = resolve(strategy) if strategy == trusted else built_in(strategy)
    if function is None:
        raise AssignorError(
            f"the members use the allocator function {shown(strategy)}, which is not built in, and names in znodes are "
            "not imported here. If you trust it and this machine has it, name it: allocator group plan --function"
        )
    load = GroupLoad(loads_of(reports, function.source), uneven, now_ms) if isinstance(function, LoadAssignor) else None
    in_force = CommandsInForce.of(commands, members, document.commands, now_ms)
    decision = await decide(members, counts, document, in_force.counting, {strategy: function}, build, load)
    after = AssignmentDocument(owners={member: parts for member, parts in decision.target.items() if parts})
    return Preview(decision.target, strategy, in_force.states(members, after, decision.target), in_force.budget)
