"""`allocator run --check --connect` on real servers: each fault is one line with a remedy, and nothing changes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from click.testing import Result

from allocator import Consumer
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import wait_until
from tests.daemon.daemon_processes import Setup, stopped
from tests.joining import joined


def checks(done: Result) -> dict[str, dict[str, Any]]:
    found = json.loads(done.stdout)
    assert found["ok"] == all(check["ok"] is not False for check in found["checks"])
    assert done.exit_code == (0 if found["ok"] else 1), done.stderr
    assert all(check["remedy"] for check in found["checks"] if not check["ok"]), "a fault without a remedy"
    assert all("\n" not in check["found"] for check in found["checks"])
    return {check["what"]: check for check in found["checks"]}


async def exists(hosts: str) -> bool:
    servers, _, chroot = hosts.partition("/")
    zk = ZooKeeperClient(servers)
    await zk.connect()
    try:
        return await zk.exists(f"/{chroot}") is not None
    finally:
        await zk.close()


async def test_valid_settings_pass_and_nothing_is_created(make: Callable[..., Setup]) -> None:
    it = make(partitions=3)
    it.fill(9)
    bare = it.zookeeper.partition("/")[0]
    found = checks(it.check(it.config(zookeeper={"hosts": bare, "root": f"/{it.group}"}), "--connect", "--json"))
    assert all(check["ok"] for check in found.values()), found
    assert found[f"topic {it.topic}"]["found"] == "3 partitions"
    assert found["group coordinator"]["found"].startswith("nothing committed")
    assert "no other members" in found[f"group {it.group}"]["found"]
    assert not await exists(f"{bare}/{it.group}"), "to check is not to join"


async def test_each_mistyped_setting_is_a_line_of_its_own(make: Callable[..., Setup]) -> None:
    it = make()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wrong = it.config(
            kafka={"brokers": [*it.cluster.bootstrap.split(","), "127.0.0.1:1"]},
            group={"topics": [it.topic + "x"]},
            handler={"dead_letter_topic": "no-such-topic"},
            web={"port": taken.getsockname()[1]},
        )
        done = it.check(wrong, "--connect")
    failed = {line.split(":")[0].split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {"status page", "ZooKeeper session", f"topic {it.topic}x", "topic no-such-topic (dead letters)"}, (
        done.stdout
    )
    assert done.exit_code == 1
    assert "warning  Kafka broker 127.0.0.1:1: no connection: " in done.stdout
    assert f"Did you mean {it.topic}?" in done.stdout
    assert "or start once with --create" in done.stdout
    assert not await exists(it.zookeeper), "the chroot was created"


def test_unreachable_servers_are_named_and_the_others_are_checked(make: Callable[..., Setup]) -> None:
    it = make()
    away = it.config(zookeeper={"hosts": "127.0.0.1:1"}, group={"connect_timeout_s": 2})
    found = checks(it.check(away, "--connect", "--json"))
    assert found["ZooKeeper session"]["ok"] is False
    assert "127.0.0.1:1" in found["ZooKeeper session"]["found"]
    assert found["Kafka cluster"]["ok"] is True
    away = it.config(kafka={"brokers": ["127.0.0.1:1"]}, group={"connect_timeout_s": 2})
    found = checks(it.check(away, "--connect", "--json"))
    assert found["Kafka cluster"]["ok"] is False
    assert "group coordinator" not in found


async def test_members_without_a_common_allocator_function_are_reported(make: Callable[..., Setup]) -> None:
    it = make()
    bare, root = it.zookeeper.partition("/")[0], f"/{it.group}"
    options = {"brokers": it.cluster.bootstrap, "zookeeper": bare, "root": root, "group": it.group}
    async with Consumer(it.topic, **joined(assignor="sticky", client_id="other", **options)):
        here: dict[str, Any] = {"hosts": bare, "root": root}
        found = checks(it.check(it.config(zookeeper=here, group={"assignor": ["range"]}), "--connect", "--json"))
        members = found[f"group {it.group}"]
        assert members["ok"] is False
        assert "other@" in members["found"]
        assert "they offer sticky" in members["remedy"]
        both = it.config(zookeeper=here, group={"assignor": ["range", "sticky"]})
        found = checks(it.check(both, "--connect", "--json"))
        assert found[f"group {it.group}"]["ok"] is True


def test_a_missing_chroot_is_rejected_without_create(make: Callable[..., Setup]) -> None:
    it = make()
    it.fill(1)
    assert it.run(it.config(), create=False).wait(60) == 2
    last = it.logs()[-1]["message"]
    assert f"has no znode /{it.group}" in last
    assert last.endswith("Correct the chroot in zookeeper.hosts, or start once with --create")
    assert not asyncio.run(exists(it.zookeeper))
    for create, count in ((True, 1), (False, 2)):  # it exists from the first one on
        process = it.run(it.config(), create=create)
        wait_until(lambda count=count: len(it.done()) == count, 60, "the daemon to start")
        assert stopped(process) == 0
        it.fill(1)
