"""The name of an allocator function in a znode makes no command, no page and no other member import it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Allocation
from allocator.cli.commands import main
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import wait_until_async
from tests.web.served import BEARER, served
from tests.web.written_group import WrittenGroup, member_id, parts

FUNCTION = """
from allocator.assignors import naive

def function(view):
    return naive(view)
"""


@pytest.fixture
def module(tmp_path: Path, unique_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of a module that can be imported and was not yet."""
    name = "named_" + "".join(filter(str.isalnum, unique_name()))
    (tmp_path / f"{name}.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@contextlib.asynccontextmanager
async def group_that_names(zookeeper: str, function: str, root: str = "/allocator") -> AsyncIterator[WrittenGroup]:
    """Yields the group "g", whose members 0 and 1 offer only `function`."""
    zk = ZooKeeperClient(zookeeper)
    await zk.connect(10)
    try:
        group = WrittenGroup(zk, root, "g", ["t"], function)
        one, _ = await group.join(0, 1)
        if root == "/allocator":
            await group.own({one: frozenset(parts(t=4))})
        yield group
    finally:
        await zk.close()


async def shell(zookeeper: str, *arguments: str) -> tuple[int, str]:
    command = ["group", *arguments, "--zookeeper", zookeeper]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    "arguments",
    [["plan", "g"], ["plan", "g", "--remove", "worker-00"], ["evacuate", "g", "worker-00", "--dry-run"]],
    ids=["plan", "supposition", "dry run"],
)
async def test_a_command_imports_no_function_that_only_znodes_name(
    arguments: list[str], zk_chroot: str, module: str
) -> None:
    async with group_that_names(zk_chroot, f"{module}:function"):
        code, said = await shell(zk_chroot, *arguments)
        assert module not in sys.modules
        assert code == 1
        assert f"'{module}:function', which is not built in" in said
        assert "--function" in said


async def test_a_plan_uses_the_function_that_the_operator_names(zk_chroot: str, module: str) -> None:
    name = f"{module}:function"
    async with group_that_names(zk_chroot, name):
        code, said = await shell(zk_chroot, "plan", "g", "--evacuate", "worker-00", "--function", name, "--json")
        assert code == 0, said
        plan = json.loads(said)
        assert plan["function"] == name
        assert {move["to"] for move in plan["moves"]} == {member_id(1)}
        assert module in sys.modules


async def test_a_plan_does_not_follow_znodes_beside_the_function_that_the_operator_names(
    zk_chroot: str, module: str
) -> None:
    async with group_that_names(zk_chroot, f"{module}:function"):
        code, said = await shell(zk_chroot, "plan", "g", "--function", "sticky", "--json")
        assert code == 0, said
        assert json.loads(said)["function"] == "sticky"
        assert module not in sys.modules


async def test_the_page_imports_no_function_that_only_znodes_or_a_request_name(zk_chroot: str, module: str) -> None:
    name = f"{module}:function"
    evacuate: dict[str, Any] = {"kind": "evacuate", "arguments": {"member": member_id(0)}}
    async with group_that_names(zk_chroot, name), served(zk_chroot) as it:
        await it.settled("g", 1)
        for path, body in (
            ("plan", {}),
            ("plan", {"function": name}),
            ("plan", {"commands": [evacuate]}),
            ("commands/preview", evacuate),
        ):
            response = await it.request(f"/api/groups/g/{path}", body, Authorization=BEARER)
            assert response.code in (400, 409), response.body
            assert "not built in" in response.body.decode() or "neither built in" in response.body.decode()
            assert module not in sys.modules
        response = await it.request("/api/groups/g/plan", {"function": "sticky"}, Authorization=BEARER)
        assert response.code == 200


async def test_a_member_imports_no_function_that_only_other_members_name(zk_chroot: str, module: str) -> None:
    name = f"{module}:function"
    async with group_that_names(zk_chroot, name, "/allocator-resources") as others:
        member = Allocation(["a", "b"], group="g", zookeeper=zk_chroot, client_id="honest")
        async with member:
            assert not member.held
            await others.leave(0, 1)  # then this member leads
            await wait_until_async(lambda: len(member.held) == 2, 30, "the names")
        assert module not in sys.modules
