"""Nothing is published before it went through here."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from allocator.assignors.kiel import KielAssignor
from allocator.assignors.problem import PartitionSet
from allocator.assignors.types import Assignor, GroupView
from allocator.errors import AssignorError, BadAssignment
from allocator.types import TopicPartition

__all__ = ["compute", "left_out", "validate"]

_SHOWN = 5


def compute(assignor: Assignor, view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    """Call an allocator function and validate what it says.

    A function of kiel's signature may leave partitions out (see `left_out`), as it may in kiel.

    Raises AssignorError when the function itself raises, BadAssignment when its answer is not an assignment;
    both name the function.
    """
    try:
        result = assignor(view)
    except AssignorError:
        raise
    except Exception as error:  # user's code: whatever it raises, the group keeps its old generation
        raise AssignorError(f"allocator function {assignor.name!r} raised {_shown(error)}") from error
    try:
        return validate(view, result, complete=not isinstance(assignor, KielAssignor))
    except BadAssignment as error:
        raise BadAssignment(f"allocator function {assignor.name!r}: {error}") from error


def left_out(view: GroupView, assignment: Mapping[str, Collection[TopicPartition]]) -> frozenset[TopicPartition]:
    """The partitions of subscribed topics that a valid assignment gives to nobody."""
    count = sum(view.partitions[topic] for _, topics in view.classes() for topic in topics)
    if count == sum(map(len, assignment.values())):
        return frozenset()
    return _wanted(view).difference(*assignment.values())


def validate(
    view: GroupView, result: Mapping[str, Iterable[TopicPartition]], *, complete: bool = True
) -> dict[str, frozenset[TopicPartition]]:
    """The assignment as sets, one entry for each member, if it is one.

    Guarantee: every partition of every topic that some member subscribes to stands in exactly one set (in at most one
    unless `complete`), and that member subscribes to the topic. Pairs of (topic, partition) count as TopicPartition.

    Raises BadAssignment, naming each kind of fault with its count and the first few offenders.
    """
    if not isinstance(result, Mapping):
        raise BadAssignment(f"returned {type(result).__name__}, not a mapping of member id to partitions")
    shares = _good_shares(view, result)
    if shares is not None:
        return shares
    subscriptions = {member.id: member.topics for member in view.members}
    wanted = _wanted(view)
    faults = _Faults()
    holders: dict[TopicPartition, str] = {}
    for member, partitions in result.items():
        if not isinstance(member, str) or member not in subscriptions:
            faults.add("unknown members", repr(member))
            continue
        for partition in _partitions(member, partitions, faults):
            holder = holders.get(partition)
            if holder is not None:
                faults.add("partitions given twice", f"{_name(partition)} to {holder!r} and {member!r}")
                continue
            holders[partition] = member
            if partition in wanted:
                if partition.topic not in subscriptions[member]:
                    faults.add(
                        "partitions given to members that do not subscribe to them",
                        f"{_name(partition)} to {member!r}",
                    )
            else:
                faults.add("partitions that do not exist or have no subscriber", f"{_name(partition)} to {member!r}")
    if complete:
        for partition in sorted(wanted - holders.keys()):
            faults.add("partitions given to nobody", _name(partition))
    faults.raise_if_any()
    assignment: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    for partition, member in holders.items():
        assignment[member].add(partition)
    return {member: frozenset(partitions) for member, partitions in assignment.items()}


def _wanted(view: GroupView) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, partition)
        for _, topics in view.classes()
        for topic in topics
        for partition in range(view.partitions[topic])
    )


def _good_shares(view: GroupView, result: Mapping[str, Any]) -> dict[str, frozenset[TopicPartition]] | None:
    """The same judgement on numbers, for what our own functions return; None when they are not that, or not good."""
    members = {member.id: member for member in view.members}
    first = next(iter(result.values()), None)
    if not isinstance(first, PartitionSet) or not result.keys() <= members.keys():
        return None
    space = first.space
    if space.counts != {topic: view.partitions[topic] for _, topics in view.classes() for topic in topics}:
        return None
    given = bytearray(space.size)
    topics = frozenset(space.topics)
    for member, share in result.items():
        if not isinstance(share, PartitionSet) or share.space is not space:
            return None
        for number in share.numbers:
            given[number] = 1
        if not topics <= members[member].topics:
            used = set(map(space.topic_of.__getitem__, share.numbers))
            if not members[member].topics.issuperset(space.topics[index] for index in used):
                return None
    # as many as there are, and each of them at least once: each exactly once
    if sum(map(len, result.values())) != space.size or given.count(1) != space.size:
        return None
    nothing: frozenset[TopicPartition] = frozenset()
    return {member: result[member].partitions() if member in result else nothing for member in members}


def _partitions(member: str, partitions: Any, faults: _Faults) -> Iterable[TopicPartition]:
    """The well-typed partitions of one member; the others become faults."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        faults.add("members with something else than partitions", f"{member!r}: {_shown(partitions)}")
        return []
    try:
        items = list(partitions)
    except Exception as error:  # a generator is user's code that runs only here
        raise BadAssignment(f"its partitions for {member!r} raised {_shown(error)}") from error
    good = []
    for item in items:
        partition = _as_partition(item)
        if partition is None:
            faults.add("items that are no (topic, partition)", f"{_shown(item)} to {member!r}")
        else:
            good.append(partition)
    return good


def _as_partition(item: Any) -> TopicPartition | None:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str) or isinstance(item[1], bool):
        return None
    try:
        return TopicPartition(item[0], operator.index(item[1]))  # numpy's integers too
    except TypeError:
        return None


class _Faults:
    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}

    def add(self, kind: str, what: str) -> None:
        self._found.setdefault(kind, []).append(what)

    def raise_if_any(self) -> None:
        if self._found:
            raise BadAssignment("; ".join(f"{len(of)} {kind}: {_some(of)}" for kind, of in self._found.items()))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
