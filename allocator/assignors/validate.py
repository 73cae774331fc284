"""Calls an assignor, and validates its result before the group gets it."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from allocator.assignors.kiel import KielAssignor
from allocator.assignors.problem import topic_partitions
from allocator.assignors.types import Assignor, GroupView
from allocator.core.text import shown
from allocator.errors import AssignorError, BadAssignment
from allocator.types import PartitionLike, TopicPartition

_SHOWN = 5
_MORE = 100  # entries of a wrong result that are read in any case, to name them

_Faults = defaultdict[str, list[str]]
"""Kind of a fault -> the offenders."""


def compute(assignor: Assignor, view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    """Calls an assignor, and returns its validated result.

    A function of kiel's signature may omit partitions (see `left_out`), as in kiel. The assignor cannot change the
    view.

    Raises AssignorError if the assignor raises, and BadAssignment if its result is not an assignment. Both name the
    assignor. Passes on KeyboardInterrupt.
    """
    try:
        result = assignor(_read_only(view))
    except (AssignorError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise AssignorError(f"allocator function {assignor.name!r} raised {shown(error)}") from error
    try:
        return validate(view, result, complete=not isinstance(assignor, KielAssignor))
    except KeyboardInterrupt:
        raise
    except BadAssignment as error:
        raise BadAssignment(f"allocator function {assignor.name!r}: {error}") from error
    except BaseException as error:
        raise BadAssignment(f"allocator function {assignor.name!r}: its result raised {shown(error)}") from error


def _read_only(view: GroupView) -> GroupView:
    return replace(
        view,
        partitions=MappingProxyType(view.partitions),
        owned=MappingProxyType(view.owned),
        racks=MappingProxyType(view.racks),
        load=MappingProxyType(view.load),
    )


def left_out(view: GroupView, assignment: Mapping[str, Collection[TopicPartition]]) -> frozenset[TopicPartition]:
    """Returns the partitions of subscribed topics that an assignment omits."""
    count = sum(view.partitions[topic] for _, topics in view.classes() for topic in topics)
    if count == sum(map(len, assignment.values())):
        return frozenset()
    return _wanted(view).difference(*assignment.values())


def validate(
    view: GroupView, result: Mapping[str, Iterable[PartitionLike]], *, complete: bool = True
) -> dict[str, frozenset[TopicPartition]]:
    """Validates an assignment, and returns it with one set for each member.

    Guarantee: every partition of every subscribed topic is in exactly one set (in at most one unless `complete`), and
    the member of that set subscribes to the topic. Pairs of (topic, partition) count as TopicPartition.

    Raises BadAssignment, which has each kind of fault with its count and the first few cases.
    """
    if not isinstance(result, Mapping):
        raise BadAssignment(f"returned {type(result).__name__}, not a mapping of member id to partitions")
    subscriptions = {member.id: member.topics for member in view.members}
    wanted = _wanted(view)
    holders: dict[TopicPartition, str] = {}
    given: dict[str, frozenset[TopicPartition]] = {}
    faults: _Faults = defaultdict(list)
    # twice as much as a right result shows what is wrong; the iterators of a wrong one may never end
    entries = iter(result.items())
    for member, partitions in islice(entries, _MORE + 2 * len(subscriptions)):
        if not isinstance(member, str) or member not in subscriptions:
            faults["unknown members"].append(repr(member))
            continue
        found = _partitions(member, partitions, faults, _MORE + 2 * len(wanted))
        given[member] = own = frozenset(found)
        subscribed = {partition.topic for partition in own} <= subscriptions[member]
        if len(own) == len(found) and own <= wanted and subscribed and holders.keys().isdisjoint(own):
            holders.update(dict.fromkeys(own, member))
            continue
        for partition in found:
            if partition in holders:
                both = f"{holders[partition]!r} and {member!r}"
                faults["partitions given twice"].append(f"{_name(partition)} to {both}")
                continue
            holders[partition] = member
            given_to = f"{_name(partition)} to {member!r}"
            if partition not in wanted:
                faults["partitions that do not exist or have no subscriber"].append(given_to)
            elif partition.topic not in subscriptions[member]:
                faults["partitions assigned to members that do not subscribe to them"].append(given_to)
    if next(entries, None) is not None:
        faults["results with more entries than members"].append(shown(type(result)))
    if complete:
        for partition in sorted(wanted - holders.keys()):
            faults["partitions assigned to no member"].append(_name(partition))
    if faults:
        raise BadAssignment("; ".join(f"{len(of)} {kind}: {_some(of)}" for kind, of in faults.items()))
    return {member: given.get(member, frozenset()) for member in subscriptions}


def _wanted(view: GroupView) -> frozenset[TopicPartition]:
    return frozenset(partition for _, topics in view.classes() for partition in topic_partitions(view, topics))


def _partitions(member: str, partitions: Any, faults: _Faults, most: int) -> list[TopicPartition]:
    """Returns the valid partitions of one member, and adds the others to the faults."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        faults["members with something other than partitions"].append(f"{member!r}: {shown(partitions)}")
        return []
    try:
        items = list(islice(partitions, most))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadAssignment(f"its partitions for {member!r} raised {shown(error)}") from error
    good = []
    for item in items:
        partition = _as_partition(item)
        if partition is None:
            faults["items that are not (topic, partition)"].append(f"{shown(item)} to {member!r}")
        else:
            good.append(partition)
    return good


def _as_partition(item: Any) -> TopicPartition | None:
    if type(item) is TopicPartition and type(item[0]) is str and type(item[1]) is int:
        return item
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str) or isinstance(item[1], bool):
        return None
    try:
        return TopicPartition(item[0], operator.index(item[1]))  # numpy's integers are allowed too
    except TypeError:
        return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"
