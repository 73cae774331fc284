"""All operator commands on a real ZooKeeper, and plans that match the group's next assignment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import GroupCommands
from allocator.cli.commands import main
from allocator.core.errors import CommandRefused
from allocator.testing.waiting import wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import OneGroup, TestMember

pytestmark = pytest.mark.timeout(180)


class Operator:
    """Runs `allocator group` against one group, and waits until the plan has been carried out."""

    def __init__(self, group: OneGroup) -> None:
        self.group = group
        self.members: list[TestMember] = []

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and all output, in this process."""
        command = ["group", *arguments, "--zookeeper", self.group.hosts]
        done = await asyncio.to_thread(CliRunner().invoke, main, command)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    async def json(self, *arguments: str) -> Any:
        code, output = await self.run(*arguments, "--json")
        assert code == 0, output
        return json.loads(output)

    async def join(self, stack: AsyncExitStack, name: str, rack: str) -> TestMember:
        member = self.group.member(name, assignors=("sticky",), rack=rack)
        await stack.enter_async_context(member)
        self.members.append(member)
        return member

    async def leave(self, member: TestMember) -> None:
        self.members.remove(member)
        await member.membership.leave()

    def owners(self) -> dict[TopicPartition, str]:
        return {p: member.membership.member_id for member in self.members for p in member.owned}

    async def until(self, wanted: dict[TopicPartition, str]) -> None:
        await wait_until_async(lambda: self.owners() == wanted, 30.0, lambda: f"{wanted}, not {self.owners()}")

    async def settle(self, counts: Iterable[int]) -> None:
        """Waits until the members have these numbers of partitions, in any order of the members."""
        wanted = sorted(counts)
        await wait_until_async(
            lambda: sorted(len(member.owned) for member in self.members) == wanted,
            30.0,
            lambda: f"{wanted}, not {[len(member.owned) for member in self.members]}",
        )

    async def planned(self, *arguments: str) -> dict[TopicPartition, str]:
        """The owners that a plan leads to."""
        plan = await self.json(*arguments)
        after = dict(self.owners())
        for move in plan["moves"]:
            partition = TopicPartition(move["topic"], move["partition"])
            assert after.pop(partition, None) == move["from"]
            if move["to"] is not None:
                after[partition] = move["to"]
        return after

    async def command(self, *arguments: str) -> dict[TopicPartition, str]:
        """Sends a command, and waits until the group matches the dry run and the leader reports the same."""
        planned = await self.planned(*arguments, "--dry-run")
        command = (await self.json(*arguments, "--why", "because"))["command"]
        await self.until(planned)
        await self.state(command["id"], "kept", "done")
        return planned

    async def state(self, command_id: str, *wanted: str) -> str:
        """Waits for one of these states; returns its reason."""
        while True:
            listed = (await self.json("commands", self.group.group))["commands"]
            found = next(each for each in listed if each["id"] == command_id)
            if found["state"] in wanted:
                reason: str = found["state_why"]
                return reason
            await asyncio.sleep(0.02)


def numbers(member: TestMember) -> set[int]:
    return {partition.partition for partition in member.owned}


async def test_a_group_follows_plans_and_operator_commands(zk_chroot: str, group: str) -> None:
    one = OneGroup(zk_chroot, group, {"t": 12})
    operator = Operator(one)
    async with AsyncExitStack() as stack:
        a, b, c = [await operator.join(stack, name, rack) for name, rack in (("a", "x"), ("b", "y"), ("c", "y"))]
        await operator.settle([4, 4, 4])
        assert await operator.planned("plan", group) == operator.owners()

        # members
        planned = await operator.planned("plan", group, "--evacuate", "a")
        await operator.run("plan", group, "--evacuate", "a", "--apply")
        await operator.until(planned)
        assert not a.owned
        code, output = await operator.run("uncordon", group, "a")
        assert (code, "no longer evacuate a" in output) == (0, True)
        await operator.settle([4, 4, 4])

        await operator.command("cordon", group, "b")
        before = b.owned
        planned = await operator.planned("plan", group, "--remove", "c")
        await operator.leave(c)
        await operator.until(planned)
        assert b.owned == before
        assert len(a.owned) == 8
        await operator.run("uncordon", group, "b")
        await operator.settle([6, 6])

        swap = (await operator.json("swap", group, "b", "d"))["command"]["id"]
        assert await operator.state(swap, "waiting") == "the new member has not joined"
        of_b = b.owned
        d = await operator.join(stack, "d", "y")
        await operator.state(swap, "done")
        await wait_until_async(lambda: d.owned == of_b, 30.0)
        await operator.leave(b)
        await operator.settle([6, 6])
        assert d.owned == of_b

        # partitions
        await operator.command("pin", group, "t:0-2", "rack:y")
        await operator.command("pin", group, "t:3", "a")
        assert 3 in numbers(a)
        assert {0, 1, 2} <= numbers(d)
        code, output = await operator.run("describe", group)
        assert "pin t:0-2 to rack y" in output

        # the group
        await operator.command("freeze", group)
        before = operator.owners()
        planned = await operator.planned("plan", group, "--add", "e", "--partitions", "t=14")
        e = await operator.join(stack, "e", "x")
        one.topics.change(t=14)
        await wait_until_async(lambda: len(operator.owners()) == 14, 30.0)
        assert before.items() <= operator.owners().items()
        assert len(planned) == 14
        await operator.json("budget", group, "--at-once", "1")
        moves, new_to_e = one.history.moves(), e.owned
        await operator.run("thaw", group)
        await operator.settle([4, 5, 5])
        assert one.history.moves() - moves == len(e.owned - new_to_e)

        await operator.json("canary", group, "2")
        new = await operator.join(stack, "new", "x")
        await wait_until_async(lambda: len(new.owned) == 2 and len(operator.owners()) == 14, 30.0)
        await operator.run("promote", group, "new")
        await operator.settle([3, 3, 4, 4])

        # a command that cannot be kept
        pinned = (await operator.json("pin", group, "t:7", "new"))["command"]["id"]
        await operator.leave(new)
        await wait_until_async(lambda: len(operator.owners()) == 14, 30.0)
        assert "no live member is there" in await operator.state(pinned, "not kept")
        code, output = await operator.run("pin", group, "t:7", "rack:z")
        assert (code, "no live member is in rack 'z'; racks: x, y" in output) == (1, True)
        async with GroupCommands(zk_chroot, group, who="a test") as commands:
            listed = await commands.list()
            assert {each.command.kind for each in listed} == {"swap", "pin", "budget", "canary"}
            await commands.remove(*(each.command.id for each in listed))
            with pytest.raises(CommandRefused, match="has no freeze"):
                await commands.thaw()
        assert one.history.overlaps() == []


async def test_operators_who_change_one_command_at_a_time_lose_nothing(zk_chroot: str, group: str) -> None:
    bench = OneGroup(zk_chroot, group, {"t": 8})
    async with bench.members("web1", "web2") as members, GroupCommands(zk_chroot, group, who="alice") as commands:
        every = sorted(frozenset().union(*(member.owned for member in members)))
        for first, second in ((every[:4], every[4:]), (every, every[:1])):
            await commands.pin(every, "web1")
            done = await asyncio.gather(commands.unpin(first), commands.unpin(second), return_exceptions=True)
            assert all(isinstance(each, (tuple, CommandRefused)) for each in done)
            assert await commands.list() == []
        await commands.canary(1)
        await asyncio.gather(commands.promote("web1"), commands.promote("web2"))
        (canary,) = await commands.list()
        assert canary.command.arguments["promoted"] == ["web1", "web2"]
