"""What operators read and change: groups, operator commands, plans, the doctor, dead letters.

In: open connections to ZooKeeper and to the brokers, and the name of a group. Out: the state of the group, plans,
reports. May touch: the znodes of operator commands and of the cluster choice; what a deletion or an adoption names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.operate.adoption import adopt, candidate
    from allocator.operate.cluster_choice import ClusterChoice, choice_path, choose_cluster, read_choice
    from allocator.operate.dead_letters.waiting import WaitingRecords, read_waiting
    from allocator.operate.deletion import GroupRemains, delete_group, remains
    from allocator.operate.group_orders import NOT_OURS, WITHDRAWN_BY_PARTITION, OrdersFromOutside, OrdersOfGroup
    from allocator.operate.group_reader import GroupReader, describe, list_groups, measure, read_logs, subscribed
    from allocator.operate.group_report import SHOWN, Coordinated, GroupReport, GroupState, Lag, Logs, name_of
    from allocator.operate.kafka_describe import kafka_group
    from allocator.operate.kafka_group_orders import KafkaGroupOrders
    from allocator.operate.layouts import KIEL, OLD_CONSUMERS, OldLayouts, old_layouts
    from allocator.operate.liveness import live_members
    from allocator.operate.order_report import ORDER_STATES, OrderReport, order_reports, order_text
    from allocator.operate.switching import ChoiceWatcher
    from allocator.operate.what_if import GroupPlan, Scenario, plan_of

__all__ = [
    "KIEL",
    "NOT_OURS",
    "OLD_CONSUMERS",
    "ORDER_STATES",
    "SHOWN",
    "WITHDRAWN_BY_PARTITION",
    "ChoiceWatcher",
    "ClusterChoice",
    "Coordinated",
    "GroupPlan",
    "GroupReader",
    "GroupRemains",
    "GroupReport",
    "GroupState",
    "KafkaGroupOrders",
    "Lag",
    "Logs",
    "OldLayouts",
    "OrderReport",
    "OrdersFromOutside",
    "OrdersOfGroup",
    "Scenario",
    "WaitingRecords",
    "adopt",
    "candidate",
    "choice_path",
    "choose_cluster",
    "delete_group",
    "describe",
    "kafka_group",
    "list_groups",
    "live_members",
    "measure",
    "name_of",
    "old_layouts",
    "order_reports",
    "order_text",
    "plan_of",
    "read_choice",
    "read_logs",
    "read_waiting",
    "remains",
    "subscribed",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "adoption": "adopt candidate",
            "cluster_choice": "ClusterChoice choice_path choose_cluster read_choice",
            "dead_letters.waiting": "WaitingRecords read_waiting",
            "deletion": "GroupRemains delete_group remains",
            "group_orders": "NOT_OURS OrdersFromOutside OrdersOfGroup WITHDRAWN_BY_PARTITION",
            "group_reader": "GroupReader describe list_groups measure read_logs subscribed",
            "group_report": "Coordinated GroupReport GroupState Lag Logs SHOWN name_of",
            "kafka_describe": "kafka_group",
            "kafka_group_orders": "KafkaGroupOrders",
            "layouts": "KIEL OLD_CONSUMERS OldLayouts old_layouts",
            "liveness": "live_members",
            "order_report": "ORDER_STATES OrderReport order_reports order_text",
            "switching": "ChoiceWatcher",
            "what_if": "GroupPlan Scenario plan_of",
        },
    )
