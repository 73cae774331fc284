"""Runs commands that the doctor prints, in a shell, as an operator does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.doctor.doctor_patient import Patient
from tests.outside.java_tools import command

VERSION = "3.9.1"
KAFKAS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-broker-api-versions.sh": "kafka.admin.BrokerApiVersionsCommand",
}
# Apache's shell needs a jar that no server has
ZKCLI = """
import sys
from kazoo.client import KazooClient
option, hosts, verb, path = sys.argv[1:]
assert option == "-server"
zk = KazooClient(hosts)
zk.start(20)
print({"get": zk.get, "create": zk.create}[verb](path))
"""


class Shell:
    """A shell of an operator: it finds this library, Kafka's own tools, and an ssh that stays on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[subprocess.Popen[str]] = []
        tools = directory / "bin"
        tools.mkdir()
        (directory / "zkcli.py").write_text(ZKCLI)
        python = shlex.quote(sys.executable)
        scripts = {
            "allocator": f"exec {python} -m allocator.cli",
            "zkCli.sh": f"exec {python} {shlex.quote(str(directory / 'zkcli.py'))}",
            "ssh": '[ "$1" = -- ] && shift 2 && exec',
            **{name: f"exec {shlex.join(command(VERSION, tool))}" for name, tool in KAFKAS.items()},
        }
        for name, text in scripts.items():
            (tools / name).write_text(f'#!/bin/sh\n{text} "$@"\n')
            (tools / name).chmod(0o755)
        code = os.pathsep.join([str(directory), *sys.path])
        self.environ = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": code}

    def start(self, line: str) -> subprocess.Popen[str]:
        self.running.append(
            subprocess.Popen(
                ["sh", "-c", f"exec {line}"],
                env=self.environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.running[-1]

    def run(self, line: str, code: int = 0) -> str:
        """Returns the output of a command, which must end with this code."""
        process = self.start(line)
        out, _ = process.communicate(timeout=90)
        assert process.returncode == code, f"{line}\nended with {process.returncode}:\n{out}"
        return out

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


def commands(report: Any) -> dict[str, str]:
    """Finding id -> its first command."""
    found: dict[str, str] = {}
    for finding in report["findings"]:
        if finding["command"]:
            found.setdefault(finding["id"], finding["command"])
    return found


async def printed(patient: Patient, *options: str, group: str | None = None) -> dict[str, str]:
    """Finding id -> the command that the doctor prints with it."""
    where = ["--zookeeper", patient.zookeeper, "--brokers", patient.cluster.bootstrap]
    options = options if "--interval" in options else ("--interval", "0.5", *options)
    _, report = await patient.shell_json(group or patient.group, *where, *options)
    return commands(report)
