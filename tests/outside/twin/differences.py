"""The differences between clients that have a reason: docs/comparison.md has a row for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.outside.twin.history import Commit, DeleteRecords, DeleteTopic, Extend, History, Seek, Take, scenes

PEERS = ("aiokafka", "kafka-python", "confluent-kafka", "java")


@dataclass(frozen=True)
class Difference:
    """What the clients did differently up to a mark. `at`: number of the mark's step. `facet`: what was compared."""

    history: History
    at: int
    facet: str
    found: Mapping[str, Any]

    def unexplained(self) -> dict[str, Any]:
        """Returns what each client did, without those that have a reason to differ; empty if the others agree."""
        left = {client: found for client, found in self.found.items() if not reasons(self, client)}
        return left if len({json.dumps(found) for found in left.values()}) > 1 else {}

    def explained(self) -> set[str]:
        """Returns the names of the reasons that this difference needs."""
        others = [json.dumps(found) for client, found in self.found.items() if not reasons(self, client)]
        return {
            each.name
            for client, found in self.found.items()
            for each in reasons(self, client)
            if json.dumps(found) not in others
        }

    def __str__(self) -> str:
        clients: dict[str, list[str]] = {}
        for client, found in self.found.items():
            clients.setdefault(json.dumps(found), []).append(client)
        lines = (f"  {', '.join(names)}: {found}" for found, names in clients.items())
        return "\n".join([f"{self.facet} differs at step {self.at}, {self.history.steps[self.at]}:", *lines])


@dataclass(frozen=True)
class Known:
    """A difference with a reason. `name` and `clients` are the first cells of its row in docs/comparison.md."""

    name: str
    clients: Sequence[str]
    applies: Callable[[Difference, str], bool]


def reasons(difference: Difference, client: str) -> list[Known]:
    """Returns the reasons for which this client may differ from the others here."""
    name = "allocator" if client.startswith("allocator-") else client
    return [each for each in KNOWN if name in each.clients and each.applies(difference, client)]


def _no_record(difference: Difference, client: str) -> bool:
    history, found = difference.history, difference.found[client]
    if difference.facet == "failed":  # the others are beyond an open transaction, at no end; it is where it last read
        return not found and history.has(Seek)
    if history.has(Seek, DeleteRecords) or history.reset == "latest":
        return difference.facet in ("committed", "delivered")
    others = [each for name, each in difference.found.items() if name != client]
    return difference.facet == "committed" and any(found.items() < each.items() for each in others)


def _recreated(difference: Difference, _: str) -> bool:
    steps = zip(difference.history.steps, scenes(difference.history))
    return any(isinstance(step, DeleteTopic) and bool(scene.live | scene.frozen) for step, scene in steps)


def _half_read(difference: Difference, _: str) -> bool:
    history = difference.history
    together = any(len(scene.live | scene.frozen) > 1 for scene in scenes(history))
    return history.has(Take) and (together or history.has(Extend, DeleteRecords))


def _ahead(difference: Difference, client: str) -> bool:
    other = difference.found.get("aiokafka")
    named = {step.partition for step in difference.history.steps if isinstance(step, Commit)} - {None}
    if difference.facet == "failed":  # a position beyond a transaction that is open is at no end
        return bool(named) and set(difference.found[client]) <= {"read"}
    found = difference.found[client]
    unlike = set() if other is None else _unlike(difference.facet, found, other)
    if client == "confluent-kafka" and difference.facet == "committed":
        unlike &= found.keys()  # it commits no start, which is the next reason
    return other is not None and named >= unlike


def _unlike(facet: str, one: Any, other: Any) -> set[int]:
    """Returns the partitions in which two clients differ, or {-1} if that cannot be told."""
    if facet == "committed":
        return {partition for partition in one.keys() | other.keys() if one.get(partition) != other.get(partition)}
    if facet == "delivered":
        partitions = {partition for partition, *_ in (*one, *other)}
        return {
            p for p in partitions if [each for each in one if each[0] == p] != [each for each in other if each[0] == p]
        }
    return {-1}


KNOWN: Sequence[Known] = (
    Known("an offset that the user commits ahead of the position", ["allocator", "confluent-kafka"], _ahead),
    Known("a position without a record", ["confluent-kafka"], _no_record),
    Known("a topic created again under a member", PEERS, _recreated),
    Known("a batch that is half read at a rebalance", ["kafka-python"], _half_read),
)
