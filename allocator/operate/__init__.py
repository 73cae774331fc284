"""Tools for operators: the state of groups, operator commands, plans, the doctor and dead letters.

The functions take open connections, or the addresses of the clusters, and the name of a group. No function joins a
group. Most only read. Writers change the operator commands and the cluster choice of a group, its committed offsets, or
what a deletion or an adoption names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.operate.adoption import adopt, candidate
    from allocator.operate.clusters import Clusters
    from allocator.operate.command_report import COMMAND_STATES, CommandReport, command_reports
    from allocator.operate.dead_letters.waiting import WaitingRecords, read_retries
    from allocator.operate.deletion import GroupRemains, delete
    from allocator.operate.group_commands import WITHDRAWN_BY_PARTITION, CommandsFromOutside, CommandsOfGroup, no_group
    from allocator.operate.group_reader import (
        GroupReader,
        describe,
        hidden_state,
        list_groups,
        look_around,
        measure,
        read_group,
        read_groups,
        read_logs,
        subscribed,
        unread_logs,
    )
    from allocator.operate.group_report import NOT_READ, Coordinated, GroupReport, GroupState, Lag, Logs, name_of
    from allocator.operate.kafka_describe import kafka_group, list_kafka_groups
    from allocator.operate.liveness import MembersAlive, live_members, refuse_members
    from allocator.operate.offset_changes import check_members_known, copy_within, execute_reset, plan_reset
    from allocator.operate.reset_plan import (
        SEEK_TARGETS,
        TARGETS,
        ResetPlan,
        parse_partitions,
        parse_target,
        parse_topics,
        read_offsets,
    )
    from allocator.operate.shell_command import ShellCommand
    from allocator.operate.steering import LIMITS, Act, Preview, Steered, changes_of, give, planned, previewed, steered
    from allocator.operate.switching import ChoiceWatcher
    from allocator.operate.what_if import GroupPlan


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "adoption": "adopt candidate",
            "clusters": "Clusters",
            "dead_letters.waiting": "WaitingRecords read_retries",
            "deletion": "GroupRemains delete",
            "group_commands": "WITHDRAWN_BY_PARTITION CommandsFromOutside CommandsOfGroup no_group",
            "group_reader": (
                "GroupReader describe hidden_state list_groups look_around measure read_group read_groups read_logs "
                "subscribed unread_logs"
            ),
            "group_report": "NOT_READ Coordinated GroupReport GroupState Lag Logs name_of",
            "kafka_describe": "kafka_group list_kafka_groups",
            "liveness": "MembersAlive live_members refuse_members",
            "offset_changes": "check_members_known copy_within execute_reset plan_reset",
            "command_report": "COMMAND_STATES CommandReport command_reports",
            "reset_plan": "SEEK_TARGETS TARGETS ResetPlan parse_partitions parse_target parse_topics read_offsets",
            "shell_command": "ShellCommand",
            "steering": "LIMITS Act Preview Steered changes_of give planned previewed steered",
            "switching": "ChoiceWatcher",
            "what_if": "GroupPlan",
        },
    )
