"""The commands that the doctor prints run nothing but what they say, whatever names strangers choose."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.operate.doctor import Finding, Observation, diagnose
from allocator.operate.doctor.observation import Replicas
from allocator.operate.group_report import GroupReport, GroupState, Logs
from allocator.operate.shell_command import ShellCommand
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, Paths, Seat
from allocator.types import OffsetAndMetadata, TopicPartition

HOSTILE = (
    "-oProxyCommand=touch x",
    "--execute",
    "$(touch x)",
    "`touch x`",
    "a; touch x",
    "a' ; touch x ; '",
    "a\ntouch x",
    "a && touch x #",
    "*",
)
MEMBER, GONE = (f"m-{n:016x}-{n:010d}" for n in (1, 2))
PROGRAMS = ("ssh", "allocator", "zkCli.sh", "kafka-topics.sh", "kafka-consumer-groups.sh", "kafka-configs.sh", "touch")
DAY_MS = 86_400_000


def findings(name: str) -> list[Finding]:
    """The findings of a group in which every name is `name`."""
    paths = Paths("/allocator", "g")
    lost, future, above = (TopicPartition(name, n) for n in range(3))
    info = MemberInfo(name, name, frozenset({name}), pid=4242, instance_id=name, strategies=(name,))
    document = AssignmentDocument(
        generation=1,
        owners={GONE: frozenset({lost})},
        seats={GONE: Seat(replace(info, restart_grace_s=60.0), DAY_MS * 365 * 100)},
    )
    logs = Logs(
        {lost: OffsetAndMetadata(1, "", -1), above: OffsetAndMetadata(9, "", -1)},
        {lost: 5, above: 0, future: 0},
        {lost: 9, above: 5, future: 5},
    )
    problems = (f"znode /allocator/g/members/{name} is not valid",)
    state = GroupState("g", {MEMBER: info}, {MEMBER: Claim(1)}, document, problems, present=(MEMBER,))
    everywhere = Replicas(0, (0,), (0,))
    seen = Observation(
        "g",
        began_ms=2 * DAY_MS,
        ended_ms=2 * DAY_MS,
        replicas={TopicPartition("other", 0): everywhere},
        report=GroupReport(state, logs),
        modified={paths.member(MEMBER): 0, paths.assignment: DAY_MS},
        future_timestamps={future: 3 * DAY_MS},
        requested_session_s=10.0,
        leftover_groups=(name,),
    )
    return diagnose(seen, seen)


def stubs(directory: Path) -> dict[str, str]:
    """An environment whose programs write their arguments to a file, and nothing else."""
    directory.mkdir()
    for program in PROGRAMS:
        stub = directory / program
        stub.write_text(f'#!/bin/sh\nprintf "%s\\n" {program} "$@" >> "$CALLS"\n')
        stub.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_printed_command_runs_one_program_and_a_name_is_never_an_option(name: str, tmp_path: Path) -> None:
    environ = stubs(tmp_path / "bin")
    commands = [finding.command for finding in findings(name) if finding.command is not None]
    assert {command.words[0] for command in commands} >= {"ssh", "allocator", "zkCli.sh", "kafka-configs.sh"}
    for number, command in enumerate(commands):
        calls = tmp_path / str(number)
        done = subprocess.run(
            ["sh", "-c", str(command)], env={**environ, "CALLS": str(calls)}, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, str(command)
        words = calls.read_text()
        assert words.split("\n")[0] == command.words[0]
        assert "touch" not in [line for line in words.split("\n") if line in PROGRAMS]
        if command.words[0] == "ssh":
            assert words.startswith("ssh\n--\n")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("orders",), {}, "allocator top orders"),
        (("-x", "a b"), {}, "allocator top -- -x 'a b'"),
        (
            ("g",),
            {"topic": ["-t", "u"], "dry_run": True, "quiet": False},
            "allocator top g --topic=-t --topic u --dry-run",
        ),
        (("g",), {"brokers": "BROKERS"}, "allocator top g --brokers b1:9092"),
        (("a\x1b[2J",), {}, r"allocator top 'a\x1b[2J'"),
    ],
)
def test_a_command_is_quoted(arguments: tuple[str, ...], options: dict[str, Any], text: str) -> None:
    assert str(ShellCommand.of("allocator top", *arguments, **options).naming({"BROKERS": "b1:9092"})) == text
