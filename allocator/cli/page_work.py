"""Actions of the status page on the clusters. They use the code of the commands, with their own connections."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from allocator.assignors import known_names
from allocator.cli.planning import (
    Act,
    KafkaRehearsal,
    Rehearsal,
    changes_of,
    given,
    in_kafka,
    ours,
    planned,
    record_orders,
)
from allocator.cli.read import (
    Access,
    copy_offsets,
    delete,
    execute_reset,
    plan_reset,
    read_partitions,
)
from allocator.cli.report import parse_target
from allocator.core.commands import KINDS
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.operate import GroupState, Logs, OrderReport, OrdersFromOutside, describe, kafka_group
from allocator.protocols import orders_topic
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.web import ClusterWork, OrderRequest


def page_work(access: Access) -> ClusterWork:
    """The actions of the page for the groups of these clusters."""
    from allocator.web import ClusterWork

    async def reset(group: str, to: str, topics: Collection[str], execute: bool) -> dict[str, Any]:
        work = execute_reset if execute else plan_reset
        return (await work(access, group, parse_target(to), topics)).to_json(executed=execute)

    async def copy(group: str, other: str, execute: bool) -> dict[str, Any]:
        return (await copy_offsets(access, group, other, execute=execute)).to_json(executed=execute)

    async def delete_(group: str, keep_offsets: bool, execute: bool) -> dict[str, Any]:
        found = await delete(access, group, keep_offsets=keep_offsets, execute=execute)
        return found.to_json(executed=execute)

    def orders(group: str, who: str, create: bool) -> AbstractAsyncContextManager[OrdersFromOutside]:
        return record_orders(access, group, who, create)

    return ClusterWork(reset, copy, partial(_preview, access), partial(_plan, access), orders, delete_)


def _act(order: OrderRequest) -> Act:
    return lambda orders: orders.give_by_name(order.kind, order.arguments, why=order.why, expires_s=order.expires_s)


async def _preview(access: Access, group: str, order: OrderRequest) -> dict[str, Any]:
    """{"group", "order", "partitions", "plan", "creates"}. An order about records has its partitions with their present
    offsets, and the target of a seek. Any other order has the plan of its moves. "creates" is the topic that an order
    to a group of Kafka's own protocols would create; null if it exists."""
    if await in_kafka(access, group):
        report, state, creates = await _rehearsed_in_kafka(access, group, order)
    else:
        report, state, creates = *await _rehearsed(access, group, order), None
    if KINDS[order.kind].acts == "leader":
        found = await planned(access, group, [], [_act(order)])
        return {"group": group, "order": report.to_json(), "partitions": [], "plan": found.to_json(), "creates": None}
    chosen = sorted(report.order.partitions)
    logs, places = await _logs(access, group, order, chosen)
    rows = [_row(partition, state, logs, places) for partition in chosen]
    return {"group": group, "order": report.to_json(), "partitions": rows, "plan": None, "creates": creates}


async def _rehearsed(access: Access, group: str, order: OrderRequest) -> tuple[OrderReport, GroupState | None]:
    async with ours(access, group) as zk:
        report = await _act(order)(Rehearsal(zk, group, access.root))
        return report, await describe(zk, group, access.root)


async def _rehearsed_in_kafka(
    access: Access, group: str, order: OrderRequest
) -> tuple[OrderReport, GroupState | None, str | None]:
    """The report, the group, and the topic that the order would create."""
    rehearsal = KafkaRehearsal(access.need_brokers(), group, security=access.security, timeout_s=access.timeout_s)
    async with rehearsal, access.cluster() as client:
        report = await _act(order)(rehearsal)
        found, topic = await kafka_group(client, group), orders_topic(group)
        missing = topic is not None and client.partitions(topic) is None
    return report, None if found is None else found.as_state(group), topic if missing else None


async def _logs(
    access: Access, group: str, order: OrderRequest, chosen: Sequence[TopicPartition]
) -> tuple[Logs, Mapping[TopicPartition, int]]:
    """The logs of the partitions. Offsets stay unknown without brokers."""
    if access.brokers is None:
        return Logs(), {}
    target = parse_target(order.arguments["to"]) if order.kind == "seek" else None
    return await read_partitions(access, group, chosen, target)


def _row(
    partition: TopicPartition, state: GroupState | None, logs: Logs, places: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    owner = None if state is None else state.owners.get(partition)
    committed = logs.committed.get(partition)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "owner_name": None if owner is None or state is None else state.name_of(owner),
        "committed": None if committed is None else committed.offset,
        "log_start": logs.start.get(partition),
        "log_end": logs.end.get(partition),
        "lag": logs.lag(partition),
        "to": places.get(partition),
    }


async def _plan(
    access: Access,
    group: str,
    changes: Mapping[str, Sequence[str]],
    function: str | None,
    orders: Sequence[OrderRequest],
    apply: bool,
    who: str,
) -> dict[str, Any]:
    if function is not None:
        await _check_function(access, group, function)
    acts: list[Act] = [_act(order) for order in orders]
    suppositions = changes_of(changes, function)
    if apply and (suppositions or not acts):
        raise ConfigError("only orders can be applied; the plan must consist of orders alone")
    found = await planned(access, group, suppositions, acts)
    applied = [(await given(access, group, act, who=who)).order.id for act in acts] if apply else []
    return {**found.to_json(), "executed": apply, "applied": applied}


async def _check_function(access: Access, group: str, function: str) -> None:
    """Raises ConfigError for a function name that would make a request import a module."""
    async with ours(access, group) as zk:
        state = await describe(zk, group, access.root)
    offered = set() if state is None else {name for info in state.members.values() for name in info.strategies}
    known = sorted({*known_names(), *offered})
    if function not in known:
        raise ConfigError(f"{shown(function)} is neither built in nor offered by a member; known: {', '.join(known)}")
