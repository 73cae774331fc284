"""Actions of the page that open connections of their own, as the commands do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Optional

from allocator.assignors import known_names
from allocator.core.commands import KINDS
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.operate import (
    Act,
    Clusters,
    GroupReport,
    GroupState,
    Logs,
    Steered,
    changes_of,
    copy_offsets,
    delete,
    execute_reset,
    give,
    parse_target,
    plan_reset,
    planned,
    read_partitions,
    steered,
)
from allocator.types import TopicPartition
from allocator.web.requests import OrderRequest

PREVIEWED = ("topic", "partition", "owner_name", "committed", "log_start", "log_end", "lag")


class ClusterWork:
    """The actions for the groups of these clusters. With `execute` false they return what they would do."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def reset(self, group: str, to: str, topics: Collection[str], execute: bool) -> dict[str, Any]:
        """Resets offsets to a target ("earliest", ...); without topics, those of all topics."""
        work = execute_reset if execute else plan_reset
        return (await work(self._clusters, group, parse_target(to), topics)).to_json(executed=execute)

    async def copy(self, group: str, other: str, execute: bool) -> dict[str, Any]:
        """Copies offsets to the other group."""
        return (await copy_offsets(self._clusters, group, other, execute=execute)).to_json(executed=execute)

    async def delete(self, group: str, keep_offsets: bool, execute: bool) -> dict[str, Any]:
        """Deletes a group."""
        found = await delete(self._clusters, group, keep_offsets=keep_offsets, execute=execute)
        return found.to_json(executed=execute)

    def steered(self, group: str, who: str, create: bool) -> AbstractAsyncContextManager[Steered]:
        """The group with its orders; `create`: the first order may create their topic."""
        return steered(self._clusters, group, who, create=create)

    async def preview(self, group: str, order: OrderRequest) -> dict[str, Any]:
        """{"group", "order", "partitions", "plan", "creates"}. An order about records has its partitions with their
        present offsets, and the target of a seek. Any other order has the plan of its moves. "creates" is the topic
        that an order to a group of Kafka's own protocols would create; null if it exists."""
        async with steered(self._clusters, group, rehearse=True) as found:
            report = await _act(order)(found.orders)
        given = {"group": group, "order": report.to_json()}
        if KINDS[order.kind].acts == "leader":
            plan = await planned(self._clusters, group, [], [_act(order)])
            return {**given, "partitions": [], "plan": plan.to_json(), "creates": None}
        chosen, logs = sorted(report.order.partitions), Logs()
        places: Mapping[TopicPartition, int] = {}
        if self._clusters.brokers is not None:
            target = parse_target(order.arguments["to"]) if order.kind == "seek" else None
            logs, places = await read_partitions(self._clusters, group, chosen, target)
        report_of = GroupReport(found.state or GroupState(group, {}, {}, None), logs).partition_to_json
        rows = [
            {key: report_of(partition)[key] for key in PREVIEWED} | {"to": places.get(partition)}
            for partition in chosen
        ]
        return {**given, "partitions": rows, "plan": None, "creates": found.creates}

    async def plan(
        self,
        group: str,
        changes: Mapping[str, Sequence[str]],
        function: Optional[str],
        orders: Sequence[OrderRequest],
        apply: bool,
        who: str,
    ) -> dict[str, Any]:
        """Computes a plan. `changes`: suppositions by the option names of `allocator group plan`. `apply` gives the
        orders."""
        if function is not None:
            await self._check_function(group, function)
        acts = list(map(_act, orders))
        suppositions = changes_of(changes, function)
        if apply and (suppositions or not acts):
            raise ConfigError("only orders can be applied; the plan must consist of orders alone")
        found = await planned(self._clusters, group, suppositions, acts)
        applied = (
            [(await give(self._clusters, group, act, who, by_leader=True)).order.id for act in acts] if apply else []
        )
        return {**found.to_json(), "executed": apply, "applied": applied}

    async def _check_function(self, group: str, function: str) -> None:
        """Raises ConfigError for a function name that would make a request import a module."""
        async with steered(self._clusters, group, by_leader=True) as found:
            members = () if found.state is None else found.state.members.values()
        known = sorted({*known_names(), *(name for info in members for name in info.strategies)})
        if function not in known:
            raise ConfigError(
                f"{shown(function)} is neither built in nor offered by a member; known: {', '.join(known)}"
            )


def _act(order: OrderRequest) -> Act:
    return lambda orders: orders.give_by_name(order.kind, order.arguments, why=order.why, expires_s=order.expires_s)
