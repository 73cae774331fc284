"""Executes the changes that the API offers to operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from operator import methodcaller
from typing import Any, Optional

from msgspec.structs import replace

from allocator.assignors import known_names
from allocator.commands import LEADERS_KINDS
from allocator.core.settings import check_group
from allocator.core.text import shown
from allocator.errors import AllocatorError, ConfigError
from allocator.operate import (
    LIMITS,
    Act,
    Clusters,
    GroupState,
    changes_of,
    copy_within,
    delete,
    execute_reset,
    give,
    parse_target,
    plan_reset,
    planned,
    previewed,
    steered,
)
from allocator.protocols.zookeeper import (
    BadVersion,
    NoZnode,
    Paths,
    ZooKeeperClient,
    choice_path,
    choose_cluster,
    read_choice,
)
from allocator.web import responses
from allocator.web.requests import (
    CommandRequest,
    CopyRequest,
    DeleteRequest,
    NewCommand,
    NoteRequest,
    Nothing,
    PlanRequest,
    Post,
    RemoveRequest,
    ResetRequest,
    Suppositions,
    WithdrawRequest,
    confirmed,
)

# partitions of the topics that a plan supposes. Higher: a larger plan, in which the page stands still for longer
MAX_PLANNED = 50_000

Action = Callable[[str, Mapping[str, Any], str], Awaitable[dict[str, Any]]]
"""Called with the group, the request body and the user."""


class NotNow(AllocatorError):
    """The state of the group does not allow the action."""

    retriable = True


class GroupWork:
    """Executes changes of groups. Each method opens its own connections, as the CLI commands do."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def pause(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Pauses the members that follow the group's setting: they finish their records, commit and leave."""
        return await self._freeze(group, True)

    async def resume(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Resumes the paused members: they join again."""
        return await self._freeze(group, False)

    async def _freeze(self, group: str, frozen: bool) -> dict[str, Any]:
        """Sets `frozen` in the znode that names the group's cluster, and keeps its other fields."""
        path = choice_path(self._clusters.root, group)
        async with self._in_zookeeper(group) as (zk, _):
            before = await read_choice(zk, path)
            await choose_cluster(zk, path, before._replace(frozen=frozen))
        return {"group": group, "paused": frozen}

    async def rebalance(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Deletes the assignment's znode, so that the leader computes the assignment again from the members' claims.

        The members keep working. A partition moves only if the allocator function now returns another owner for it.
        """
        path = Paths(self._clusters.root, group).assignment
        async with self._in_zookeeper(group) as (zk, state):
            if state is None or not state.members:
                raise NotNow(f"group {group!r} has no members, so there is no leader to compute an assignment")
            stat = await zk.exists(path)
            if stat is not None:
                try:
                    await zk.delete(path, stat.version)
                except (BadVersion, NoZnode):
                    raise NotNow(f"group {group!r} is already rebalancing; try again when it is stable") from None
        return {"group": group, "asked": True}

    @asynccontextmanager
    async def _in_zookeeper(self, group: str) -> AsyncIterator[tuple[ZooKeeperClient, Optional[GroupState]]]:
        """Yields a session and the group's state. Raises CommandRefused for a group without ZooKeeper."""
        async with steered(self._clusters, group, by_leader=True) as found:
            assert found.zk is not None
            yield found.zk, found.state

    async def command(self, group: str, new: NewCommand, user: str) -> dict[str, Any]:
        """Adds an operator command. It replaces an earlier command about the same subject."""
        report = await give(self._clusters, group, _act(new), user or "page", create=new.create)
        return {"group": group, "command": report.command.id, "state": report.state, "state_why": report.why}

    async def preview(self, group: str, command: CommandRequest, user: str) -> dict[str, Any]:
        """Returns the effect of an operator command without adding it.

        For a command about records: its partitions with their offsets, and the target of a seek. For any other command:
        the plan of its moves. "creates" is the topic that the command would create for a group of Kafka's own
        protocols; null if the topic exists.
        """
        if command.kind in LEADERS_KINDS:
            async with steered(self._clusters, group, rehearse=True) as found:
                given = await _act(command)(found.commands)
            plan = (await planned(self._clusters, group, [], [_act(command)])).to_json()
            rows, creates = [], None
        else:
            seen = await previewed(self._clusters, group, _act(command))
            columns = (*responses.OffsetsOfPartition.__struct_fields__, "to")
            rows, creates = [{key: row[key] for key in columns} for row in seen.rows()], seen.creates
            given, plan = seen.given, None
        return {
            "group": group,
            "executed": False,
            "command": given.to_json(),
            "partitions": rows,
            "plan": plan,
            "creates": creates,
        }

    async def withdraw(self, group: str, body: WithdrawRequest, user: str) -> dict[str, Any]:
        """Withdraws operator commands from some partitions. They stay in force for their other partitions."""
        act = methodcaller("withdraw", body.kind, body.arguments)
        removed = await give(self._clusters, group, act, user or "page")
        return {"group": group, "withdrawn": [each.id for each in removed]}

    async def remove_commands(self, group: str, body: RemoveRequest, user: str) -> dict[str, Any]:
        """Removes operator commands by id."""
        removed = await give(self._clusters, group, methodcaller("remove", *body.ids), user or "page")
        return {"group": group, "removed": [command.id for command in removed]}

    async def plan(self, group: str, body: PlanRequest, user: str) -> dict[str, Any]:
        """Returns the moves that hypothetical changes and commands would cause. With `apply`, adds the commands."""
        function = body.function or None
        if function is not None:
            _check_function(function)
        commands = sorted(body.commands, key=lambda each: each.kind not in LIMITS)
        acts = [_act(replace(command, why=command.why or body.why)) for command in commands]
        changes = changes_of({name: getattr(body, name) for name in Suppositions.__struct_fields__}, function)
        # `changes_of` has checked the numbers
        if sum(float(each.rpartition("=")[2]) for each in body.partitions) > MAX_PLANNED:
            raise ConfigError(f'"partitions": a plan here has at most {MAX_PLANNED}; use `allocator group plan`')
        if body.apply and (changes or not acts):
            raise ConfigError("cannot apply a plan with hypothetical changes: only operator commands can be applied")
        found = await planned(self._clusters, group, changes, acts)
        applied = []
        for act in acts if body.apply else ():
            applied.append((await give(self._clusters, group, act, user or "page", by_leader=True)).command.id)
        return {**found.to_json(), "executed": body.apply, "applied": applied}

    async def delete(self, group: str, body: DeleteRequest, user: str) -> dict[str, Any]:
        """Deletes a group without members. Without `confirm`, only returns what it would delete."""
        execute = confirmed(body.confirm, "group", group)
        found = await delete(self._clusters, group, keep_offsets=body.keep_offsets, execute=execute)
        return found.to_json(executed=execute)

    async def reset(self, group: str, body: ResetRequest, user: str) -> dict[str, Any]:
        """Resets committed offsets. Without `confirm`, only returns what it would commit."""
        execute = confirmed(body.confirm, "group", group)
        work = execute_reset if execute else plan_reset
        return (await work(self._clusters, group, parse_target(str(body.to)), body.topics)).to_json(executed=execute)

    async def copy(self, group: str, body: CopyRequest, user: str) -> dict[str, Any]:
        """Commits this group's offsets for another group. Without `confirm`, only returns what it would commit."""
        check_group(body.to)
        if body.to == group:
            raise ConfigError(f'"to" must not be {group!r} itself')
        execute = confirmed(body.confirm, "other group", body.to)
        return (await copy_within(self._clusters, group, body.to, execute=execute)).to_json(executed=execute)

    async def note(self, group: str, body: NoteRequest, user: str) -> dict[str, Any]:
        """Returns the note; the server adds it to the history, beside the rebalances."""
        return {"group": group, "noted": body.text}


def _check_function(function: str) -> None:
    """Raises ConfigError for an unknown function, because neither a request nor a znode may choose code to import."""
    known = known_names()
    if function not in known:
        raise ConfigError(
            f"{shown(function)} is neither built in nor an entry point on this server; known: {', '.join(known)}. "
            "`allocator group plan --function` on the command line takes any function"
        )


def _act(command: CommandRequest) -> Act:
    return lambda commands: commands.give(command.kind, command.arguments, why=command.why, expires_s=command.expires_s)


# last part of the URL's path -> change
POSTS = {
    "rebalance": Post("Recompute the assignment", Nothing, responses.AskedJson, GroupWork.rebalance),
    "pause": Post("Pause the members that follow the group's setting", Nothing, responses.PausedJson, GroupWork.pause),
    "resume": Post("Resume the paused members", Nothing, responses.PausedJson, GroupWork.resume),
    "offsets/reset": Post("Replace committed offsets", ResetRequest, responses.ResetJson, GroupWork.reset),
    "offsets/copy": Post("Commit the same offsets for another group", CopyRequest, responses.ResetJson, GroupWork.copy),
    "commands/put": Post("Add an operator command", NewCommand, responses.CommandGivenJson, GroupWork.command),
    "commands/preview": Post(
        "Preview an operator command", CommandRequest, responses.CommandPreviewJson, GroupWork.preview
    ),
    "commands/withdraw": Post(
        "Withdraw operator commands from some partitions", WithdrawRequest, responses.WithdrawnJson, GroupWork.withdraw
    ),
    "commands/remove": Post(
        "Remove operator commands by id", RemoveRequest, responses.RemovedJson, GroupWork.remove_commands
    ),
    "plan": Post("Return the moves that a plan would cause", PlanRequest, responses.PlanJson, GroupWork.plan),
    "delete": Post("Delete a group without members", DeleteRequest, responses.DeletedJson, GroupWork.delete),
    "note": Post("Mark a deployment in the history", NoteRequest, responses.NotedJson, GroupWork.note),
}


def actions(work: GroupWork) -> dict[str, Action]:
    """Returns the actions, by their names in POSTS."""
    return {name: partial(post, work) for name, post in POSTS.items()}
