"""What the doctor finds about the commands and the load of a group. Pure, no servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocator.commands.command import KINDS, Command, Commands
from allocator.operate.doctor import Observation, Severity, diagnose
from allocator.operate.doctor.commands import OLD_FREEZE_MS, OLD_MS
from allocator.operate.group_report import GroupReport, GroupState, Logs
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, CommandState, MemberInfo
from allocator.types import OffsetAndMetadata, TopicPartition

NOW = 1_767_225_600_000
KEPT = CommandState("kept")
MEMBER = "m-0000000000000001-0000000001"


def command(kind: str, now_ms: int = NOW, expires: int | None = None, **arguments: Any) -> Command:
    return Command.make(kind, arguments, who="alice@ops1", now_ms=now_ms, expires=expires)


def found(*commands: Command, state: CommandState = KEPT, **document: Any) -> dict[str, Any]:
    """The findings by id, for a group whose leader reports this state of each command."""
    info = MemberInfo("a", "host", frozenset({"t"}), commands=tuple(KINDS))
    noted = AssignmentDocument(generation=1, commands={each.id: state for each in commands}, **document)
    seen = GroupState("billing", {MEMBER: info}, {}, noted, (), Commands(commands), NOW)
    return {name: each for name, each in diagnosed(seen).items() if name.startswith("command")}


def diagnosed(state: GroupState) -> dict[str, Any]:
    seen = Observation(state.group, report=GroupReport(state))
    return {each.id: each for each in diagnose(seen, seen)}


def test_commands_in_force_are_no_finding() -> None:
    assert found(command("freeze"), command("cordon", member="a"), command("budget", at_once=1, per_minute=None)) == {}


def test_a_command_that_cannot_be_kept_is_reported_with_its_reason() -> None:
    pin = command("pin", partitions={"t": "0-3"}, place={"member": "dead"})
    finding = found(pin, state=CommandState("not kept", "no live member is there"))["command-not-kept"]
    assert finding.what == "command pin t:0-3 to dead of alice@ops1 is not kept: no live member is there"
    assert str(finding.command) == f"allocator group commands billing --remove {pin.id}"


def test_a_command_about_a_partition_that_the_group_does_not_have_waits() -> None:
    info = MemberInfo("a", "host", frozenset({"t"}), commands=tuple(KINDS))
    document = AssignmentDocument(owners={MEMBER: frozenset({TopicPartition("t", 0)})})
    commands = (command("pause", partitions={"t": "0"}), command("seek", partitions={"t": "0,7"}, to="5"))
    state = GroupState("billing", {MEMBER: info}, {}, document, (), Commands(commands), NOW)
    states = [(each.state, each.why) for each in GroupReport(state).commands]
    assert states == [("given", ""), ("waiting", "the group has no partition t:7")]


def test_a_pause_is_reported_once_records_wait_and_no_stuck_handler_with_it() -> None:
    paused, read = TopicPartition("t", 0), TopicPartition("t", 1)
    pause = command("pause", partitions={"t": "0"})

    def seen(*commands: Command, end: int) -> Observation:
        info = MemberInfo("a", "host", frozenset({"t"}), commands=tuple(KINDS))
        owns = frozenset({paused, read})
        state = GroupState(
            "billing",
            {MEMBER: info},
            {MEMBER: Claim(1, owns, 1)},
            AssignmentDocument(generation=1, owners={MEMBER: owns}),
            (),
            Commands(commands),
            NOW,
        )
        logs = Logs(
            committed=dict.fromkeys((paused, read), OffsetAndMetadata(5)),
            start={paused: 0, read: 0},
            end={paused: end, read: 5},
        )
        return Observation("billing", report=GroupReport(state, logs), ended_ms=NOW)

    def ids(*commands: Command, end: int) -> dict[str, Any]:
        found = diagnose(seen(*commands, end=end), seen(*commands, end=end))
        return {each.id: each for each in found if each.id in ("command-pauses", "no-progress")}

    assert ids(end=50).keys() == {"no-progress"}
    found = ids(pause, end=50)
    assert found.keys() == {"command-pauses"}
    assert "pause 1 partitions, in which 45 records wait" in found["command-pauses"].what
    assert str(found["command-pauses"].command) == f"allocator group commands billing --remove {pause.id}"
    assert ids(pause, end=5) == {}


def test_a_command_that_older_members_do_not_know_names_them() -> None:
    state = CommandState("pending", "it counts once these members of older versions left: old@web1:7#1")
    assert "old@web1:7#1" in found(command("freeze"), state=state)["command-pending"].what


def test_old_commands_without_expiry_are_reported_and_a_freeze_sooner() -> None:
    cordon = command("cordon", now_ms=NOW - OLD_MS - 1, member="a")
    assert found(cordon)["command-old"].severity is Severity.INFO
    freeze = command("freeze", now_ms=NOW - OLD_FREEZE_MS - 1)
    assert found(freeze)["command-old"].severity is Severity.WARNING
    assert found(command("freeze", now_ms=NOW - OLD_FREEZE_MS - 1, expires=NOW + 1)) == {}


def test_commands_that_are_over_can_be_removed() -> None:
    expired = command("freeze", now_ms=NOW - 10, expires=NOW - 1)
    assert "freeze" in found(expired)["commands-over"].what
    assert (
        found(command("evacuate", member="gone"), state=CommandState("done"))["commands-over"].severity is Severity.INFO
    )


@pytest.mark.parametrize("arguments", [{"kind": "evacuate", "member": "a"}, {"kind": "swap", "old": "a", "new": "b"}])
def test_a_command_that_keeps_a_live_member_empty_is_neither_over_nor_a_skewed_assignment(
    arguments: dict[str, str],
) -> None:
    """To withdraw it would give the member partitions again."""
    evacuation = command(**arguments)
    assert found(evacuation, state=CommandState("done")) == {}
    other = f"m-{'b' * 16}-0000000002"
    members = {name: MemberInfo(text, "h", frozenset({"t"})) for name, text in ((MEMBER, "a"), (other, "b"))}
    claims = {MEMBER: Claim(1), other: Claim(1, frozenset(TopicPartition("t", n) for n in range(8)))}
    document = AssignmentDocument(generation=1, commands={evacuation.id: CommandState("done")})
    state = GroupState("g", members, claims, document, (), Commands((evacuation,)), NOW)
    assert not {"skewed-assignment", "commands-over"} & diagnosed(state).keys()
    assert "skewed-assignment" in diagnosed(replace(state, commands=Commands(), document=None))


# -- load ----------------------------------------------------------------------------------------------------------


def loads(strategies: tuple[str, ...], tolerance: float | None) -> dict[str, Any]:
    """The findings for a group of a member that follows load and one with these settings."""
    follows = MemberInfo("new", "h", strategies=("load-records", "naive"), load_tolerance=1.1)
    other = MemberInfo("old", "h", strategies=strategies, load_tolerance=tolerance)
    return diagnosed(GroupState("g", {MEMBER: follows, f"m-{'b' * 16}-0000000002": other}, {}, None))


def test_a_member_that_does_not_report_the_load_of_the_others_is_named() -> None:
    for other in ((("naive",), None), (("load-reported", "naive"), 1.1)):
        assert loads(*other)["load-not-followed"].where == ("old@h#2",)
    assert "load-not-followed" not in loads(("load-records", "naive"), 1.5)
