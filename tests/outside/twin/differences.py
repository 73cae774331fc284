"""The differences between clients that have a reason: docs/comparison.md has a row for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twin.history import DeleteRecords, DeleteTopic, Extend, History, Seek, Take, scenes

ALLOCATOR = ("allocator-zookeeper", "allocator-kafka", "allocator-kip848")
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
    """A difference with a reason. `name` is the first cell of its row in docs/comparison.md."""

    name: str
    clients: Sequence[str]
    applies: Callable[[Difference, str], bool]


def reasons(difference: Difference, client: str) -> list[Known]:
    """Returns the reasons for which this client may differ from the others here."""
    return [each for each in KNOWN if client in each.clients and each.applies(difference, client)]


def _no_record(difference: Difference, client: str) -> bool:
    history, found = difference.history, difference.found[client]
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
    return history.has(Take) and (together or history.has(Extend))


KNOWN: Sequence[Known] = (
    Known("a position without a record", ["confluent-kafka"], _no_record),
    Known("a topic created again under a member", PEERS, _recreated),
    Known("a batch that is half read at a rebalance", ["kafka-python"], _half_read),
)
