"""Compares two moments of a group: which partitions have another owner. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

__all__ = ["compare"]

Move = tuple[Optional[str], Optional[str]]


def compare(rebalances: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of the given rebalances with their moves (`Rebalance.moves_to_json`), oldest first.

    Omits partitions that returned to their first owner. Members are identified by their names.
    """
    moves: dict[tuple[str, int], Move] = {}
    for rebalance in rebalances:
        names = [member["name"] for member in rebalance["members"]]
        for topic in rebalance["topics"]:
            for number, a, b in zip(topic["partitions"], topic["from"], topic["to"]):
                key = (topic["topic"], number)
                first = moves[key][0] if key in moves else _name(names, a)
                moves[key] = (first, _name(names, b))
    changed = {key: move for key, move in moves.items() if move[0] != move[1]}
    members = sorted({name for move in changed.values() for name in move if name is not None})
    index = {name: at for at, name in enumerate(members)}
    by_topic: dict[str, list[tuple[int, Move]]] = {}
    for (name, number), move in sorted(changed.items()):
        by_topic.setdefault(name, []).append((number, move))
    return {
        "members": [{"name": name} for name in members],
        "topics": [
            {
                "topic": topic,
                "partitions": [number for number, _ in parts],
                "from": [_at(index, a) for _, (a, _) in parts],
                "to": [_at(index, b) for _, (_, b) in parts],
            }
            for topic, parts in by_topic.items()
        ],
    }


def _name(names: list[str], at: int) -> Optional[str]:
    return None if at < 0 else names[at]


def _at(index: Mapping[str, int], name: Optional[str]) -> int:
    return -1 if name is None else index[name]
