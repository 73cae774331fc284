"""The changes of `allocator doctor --fix`, and the findings that it leaves alone."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.commands.command import Command, Commands
from allocator.operate.doctor import doctor
from allocator.operate.doctor.fixes import CLOCK_MS, YOUNG_MS, apply
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing.topics import zookeeper_client

pytestmark = pytest.mark.deadline(150)

LATER_S = YOUNG_MS / 1000 + 60
SKELETON = ("members", "claims", "shards")


def command(kind: str, when_ms: int, expires: int | None = None, **arguments: Any) -> Command:
    return Command.make(kind, arguments, who="alice@ops1", now_ms=when_ms, expires=expires)


def tree(zk: Any, path: str) -> dict[str, bytes]:
    found = {path: zk.get(path)[0]}
    for name in zk.get_children(path):
        found.update(tree(zk, f"{path}/{name}"))
    return found


def create_groups(zk: Any) -> None:
    """Creates two groups of empty znodes, and one group for each reason why a group is in use."""
    for group in ("empty", "emptied", "assigned", "ordered", "joined", "chosen", "odd"):
        for name in SKELETON:
            zk.ensure_path(f"/allocator/{group}/{name}")
    zk.ensure_path("/allocator/emptied/left")
    zk.create("/allocator/assigned/assignment", b"x")
    zk.create("/allocator/ordered/orders", b"{}")
    zk.create("/allocator/chosen/cluster", b"{}")
    zk.create("/allocator/joined/members/m-0000000000000001-0000000001", b"{}", ephemeral=True)
    zk.set("/allocator/odd/shards", b"of another program")


async def test_only_groups_of_empty_znodes_are_deleted_and_young_ones_are_not(zk_chroot: str) -> None:
    with zookeeper_client(zk_chroot) as zk:
        create_groups(zk)
        before = tree(zk, "/allocator")
        client = ZooKeeperClient(zk_chroot)
        await client.connect()
        try:

            async def found(clock: Any) -> list[Any]:
                findings = await doctor.examine(None, client=None, zookeeper=client, interval_s=0, clock=clock)
                return [each for each in findings if each.id == "leftover-groups"]

            def later() -> float:
                return time.time() + LATER_S

            assert await found(time.time) == [], "a member that is joining may have just created them"
            (leftover,) = await found(later)
            assert leftover.where == ("emptied", "empty")
            fix = leftover.fix
            assert await apply(fix, client, None, "/allocator") == "the groups are in use, or already deleted"
            zk.create("/allocator/emptied/claims/m-0000000000000001-0000000001", b"", ephemeral=True)
            assert await apply(fix, client, None, "/allocator", later) == "deleted the empty znodes of 1 groups"
            after = tree(zk, "/allocator")
            gone = {path for path in before if path == "/allocator/empty" or path.startswith("/allocator/empty/")}
            assert {path: before[path] for path in before if path not in gone}.items() <= after.items()
            assert not gone & set(after)
            assert await apply(fix, client, None, "/allocator", later) == "the groups are in use, or already deleted"
            assert tree(zk, "/allocator") == after
        finally:
            await client.close()


class Terminal(io.BytesIO):
    """Typed text."""

    def isatty(self) -> bool:
        return True


def test_expired_commands_are_withdrawn_and_no_other(zk_chroot: str) -> None:
    now_ms = int(time.time() * 1000)  # not when the module was loaded: a whole run is longer than CLOCK_MS
    long_ago = command("freeze", now_ms - 10 * CLOCK_MS, now_ms - 2 * CLOCK_MS)
    just_now = command("cordon", now_ms - 10 * CLOCK_MS, now_ms - 1000, member="a")
    in_force = command("budget", now_ms, at_once=1, per_minute=None)
    where = ["--zookeeper", zk_chroot, "--interval", "0"]

    def run(*options: str, typed: Terminal | None = None) -> Any:
        return CliRunner().invoke(main, ["doctor", "billing", *where, *options], input=typed)

    with zookeeper_client(zk_chroot) as zk:
        for name in SKELETON:
            zk.ensure_path(f"/allocator/billing/{name}")
        zk.create("/allocator/billing/orders", Commands((long_ago, just_now, in_force)).encode())

        def ids() -> set[str]:
            return {each["id"] for each in json.loads(zk.get("/allocator/billing/orders")[0])["orders"]}

        everything = {long_ago.id, just_now.id, in_force.id}
        assert "fix:   --fix would withdraw 1 expired commands of billing" in run().output
        without_terminal = run("--fix")
        assert "cannot ask without a terminal" in without_terminal.output
        assert without_terminal.exit_code == 2
        refused = run("--fix", typed=Terminal(b"n\n"))
        assert f"--fix would withdraw 1 expired commands of billing: {long_ago.id}" in refused.output
        assert ids() == everything, "nothing is changed without consent"
        assert "withdrew 1 expired commands" in run("--fix", typed=Terminal(b"y\n")).output
        assert ids() == everything - {long_ago.id}
        assert "no finding has a safe fix" in run("--fix", "--yes").output
        assert ids() == everything - {long_ago.id}


def test_a_missing_chroot_is_created_only_after_a_question(zk_chroot: str) -> None:
    arguments = ["doctor", "--zookeeper", f"{zk_chroot}/typo", "--fix"]
    with zookeeper_client(zk_chroot) as zk:
        result = CliRunner().invoke(main, [*arguments, "--yes", "--json"])
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert [each["id"] for each in found["findings"]] == ["chroot-missing"]
        assert found["fixed"] == []
        assert "--yes creates no chroot" in result.stderr
        refused = CliRunner().invoke(main, arguments)
        assert (refused.exit_code, "it creates no chroot" in refused.output) == (2, True), refused.output
        assert CliRunner().invoke(main, arguments, input=Terminal(b"n\n")).exit_code == 1
        assert not zk.exists("/typo")
        created = CliRunner().invoke(main, arguments, input=Terminal(b"y\n"))
        assert created.exit_code == 0, created.output
        assert "created the chroot" in created.output
        assert zk.exists("/typo")
        assert "healthy" in CliRunner().invoke(main, arguments[:-1]).output


@pytest.mark.parametrize(
    ("options", "message"), [(["--yes"], "--yes needs --fix"), (["--fix", "--json"], "--json cannot ask")]
)
def test_options_that_contradict_each_other_are_refused(options: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["doctor", "--zookeeper", "127.0.0.1:1", *options])
    assert result.exit_code == 2
    assert message in result.output
