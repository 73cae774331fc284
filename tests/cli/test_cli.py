"""The command line itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from allocator.cli.commands import LAZY, main
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from tests.cli.every_command import leaves, write_settings

COMPLETION = "_ALLOCATOR_COMPLETE"
ZK = ("--zookeeper", "127.0.0.1:1")


def completed(*words: str) -> list[str]:
    """The completions for Tab after the last of `words`."""
    environ = {**os.environ, COMPLETION: "bash_complete", "COMP_WORDS": " ".join(words)}
    environ["COMP_CWORD"] = str(len(words) - 1)
    code = "from allocator.cli.commands import main; main(prog_name='allocator')"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_help_lists_every_command_and_loads_none_of_the_heavy_ones() -> None:
    code = (
        "import sys\nfrom allocator.cli.commands import main\n"
        "main(['--help'], standalone_mode=False, terminal_width=100)\n"
        "assert not {'allocator.testing', 'kafka', 'kazoo', 'rich', 'tornado'} & set(sys.modules), 'loaded too much'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name in (*LAZY, "run"):
        assert f"\n  {name} " in done.stdout, "every command is under a heading"


def test_every_command_has_json() -> None:
    without = {
        " ".join(path)
        for path, command in leaves(main)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert not without


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "describe", "billing", "--nope"],
        ["group", "offsets", "reset", "billing"],
        ["cluster", "up", "--kafka", "7.7"],
        ["run", "no-such.toml"],
        ["traffic", "record", "--brokers", "127.0.0.1:1", "--topic", "orders", "/no/such/directory/orders.json"],
        ["group", "list", "--timeout", "nan"],
        ["group", "list", "--root", "/a/../b"],
        ["group", "list", "--zookeeper", "127.0.0.1:1/../x"],
        ["doctor", "a/b"],
    ],
)
def test_wrong_usage_is_code_2_and_an_object_with_json(arguments: list[str]) -> None:
    environ = {"ALLOCATOR_ZOOKEEPER_HOSTS": "127.0.0.1:1"}
    assert CliRunner().invoke(main, arguments, env=environ).exit_code == 2
    found = CliRunner().invoke(main, [*arguments, "--json"], env=environ)
    assert found.exit_code == 2
    error = json.loads(found.stdout)["error"]
    assert error["message"]
    assert error["retriable"] is False


@pytest.mark.parametrize("command", [["group", "list"], ["top", "--once"]])
def test_unreachable_servers_are_named_in_one_line(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "allocator.cli", *command, "--zookeeper", "127.0.0.1:1", "--timeout", "0.5"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ZooKeeper 127.0.0.1:1: no node responded within 0.5 s")
    arguments = [*command, "--json", "--zookeeper", "127.0.0.1:1", "--timeout", "0.5"]
    assert json.loads(CliRunner().invoke(main, arguments).stdout)["error"]["retriable"] is True


@pytest.mark.parametrize("command", [["web", "--zookeeper", "127.0.0.1:1"], ["run", "orders.toml", "--check"]])
def test_a_page_without_its_extra_names_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path, "127.0.0.1:1", more="[web]\nport = 0")
    result = CliRunner().invoke(main, command)
    assert result.exit_code in (1, 2)
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("pip install 'zk-partition-allocator[web]'")


def test_the_page_prints_its_address_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "allocator.cli", "web", "--zookeeper", "127.0.0.1:1", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--timeout", "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = json.loads(process.stdout.readline())
        logged = process.stderr.readline()
        process.terminate()
        assert process.wait(60) == 0
    assert shown["url"].startswith("http://127.0.0.1:")
    assert shown["changes"] == "read-only"
    (history,) = (tmp_path / "allocator").iterdir()
    assert history.name.startswith("history-"), "it keeps its history by default"
    assert re.match(r"20\S+Z warning allocator\.web\.watch: ZooKeeper 127\.0\.0\.1:1: no node", logged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*ZK, "--operator", "alice"], "need --user-header"),
        ([*ZK, "--tls-key", "key.pem"], "--tls-key needs --tls-cert"),
        ([*ZK, "--tls-cert", "nowhere.pem"], "nowhere.pem"),
        ([*ZK, "--user-header", "X-User", "--proxy", "proxy.example"], "not an IP address"),
        ([*ZK, "--history", "orders.toml/h.sqlite"], "choose another file with --history"),
        (["--brokers", "127.0.0.1:1"], "or name groups of Kafka's own protocols with --kafka-group"),
        ([*ZK, "--kafka-group", "billing"], "no brokers were given: give --brokers"),
        (["--brokers", "127.0.0.1:1", "--kafka-group", ""], "--kafka-group: name a group"),
    ],
)
def test_a_page_that_cannot_be_served_names_the_wrong_option(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.toml").write_text("")
    result = CliRunner().invoke(main, ["web", *options])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.servers
def test_two_simultaneous_signals_stop_once() -> None:
    command = [sys.executable, "-m", "allocator.cli", "cluster", "up", "--kafka", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ZooKeeper: ")
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "stopping\n")


async def test_completion_offers_the_groups_of_the_ensemble(zk_chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect(10)
    try:
        for name in ("billing", "books", "orders"):
            await zk.ensure_path(f"/allocator/{name}")
    finally:
        await zk.close()
    run = asyncio.get_running_loop().run_in_executor
    found = await run(None, completed, "allocator", "group", "describe", "--zookeeper", zk_chroot, "b")
    assert found == ["billing", "books"]
    monkeypatch.setenv("ALLOCATOR_ZOOKEEPER_HOSTS", zk_chroot)
    assert await run(None, completed, "allocator", "top", "ord") == ["orders"]
    monkeypatch.setenv("ALLOCATOR_ZOOKEEPER_HOSTS", "127.0.0.1:1")
    assert not any(await run(None, completed, "allocator", "top", "ord")), "no names, and no error in the line"
