"""Findings about brokers that are down, unreachable or of another version; and the list on the doctor's page."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.operate import doctor
from allocator.operate.doctor import Finding
from allocator.operate.doctor.doctor import examine
from allocator.testing import LocalCluster, wait_until, wait_until_async
from tests.docs.blocks import command_faults
from tests.doctor.doctor_patient import Patient
from tests.doctor.printed import Shell
from tests.racked import racked_brokers

pytestmark = pytest.mark.deadline(200)

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
SOURCES = "".join(path.read_text() for path in Path(doctor.__file__).parent.glob("*.py"))


def listed(cluster: LocalCluster, count: int) -> None:
    """Waits until each responding broker lists this many."""
    wait_until(
        lambda: all(len(known.brokers) == count for known in cluster.metadata()) and cluster.metadata(),
        60,
        lambda: f"{count} brokers, not {[sorted(known.brokers) for known in cluster.metadata()]}",
    )


def line(finding: Finding, cluster: LocalCluster) -> str:
    """The command of a finding, as the doctor prints it."""
    assert finding.command is not None
    return str(finding.command.naming({"BROKERS": cluster.bootstrap}))


async def test_a_broker_that_died(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    cluster = await asyncio.to_thread(racked_brokers, cluster_factory)
    twice = await asyncio.to_thread(topic_factory, 3, replication=2, cluster=cluster)
    once = await asyncio.to_thread(topic_factory, 3, cluster=cluster)
    patient = Patient(cluster, twice, group, 3)

    async def healthy() -> bool:
        return not await patient.examined(group=None)

    # tests that shared these brokers may have killed some a moment ago
    await wait_until_async(healthy, 90, "nothing to be found", interval_s=0.5)
    await asyncio.to_thread(cluster.brokers[2].kill)
    await asyncio.to_thread(listed, cluster, 2)
    found: dict[str, list[Any]] = {}

    def places(finding: str, topic: str) -> list[str]:
        return [place for one in found.get(finding, ()) for place in one.where if place.startswith(topic)]

    async def both_found() -> bool:
        found.clear()
        found.update(await patient.examined(group=None))
        # brokers notice the change one after the other; one partition of `twice` has its replicas on the other two
        return places("leaderless", once) == [f"{once}:2"] and len(places("under-replicated", twice)) == 2

    await wait_until_async(both_found, 60, lambda: f"both findings, not {found}", interval_s=0.5)
    assert "Start the brokers with their replicas: broker 2." in found["leaderless"][0].do
    assert "broker 2 unavailable" in found["under-replicated"][0].what
    shell = Shell(tmp_path)
    for finding, topic in (("leaderless", once), ("under-replicated", twice)):
        assert topic in await asyncio.to_thread(shell.run, line(found[finding][0], cluster))


@pytest.mark.servers
@pytest.mark.long
async def test_a_broker_that_clients_cannot_reach(group: str) -> None:
    async with LocalCluster("3.9.1", brokers=2, proxied=True) as cluster:
        await asyncio.to_thread(cluster.create_topic, "t", 2)
        patient = Patient(cluster, "t", group, 2)
        async with patient.clients() as (client, zk, _):
            assert not await examine(None, client=client, zookeeper=zk)
            cluster.brokers[1].proxy.drop(client=os.getpid())
            found = await examine(None, client=client, zookeeper=zk)
            unreachable = [finding for finding in found if finding.id == "broker-unreachable"]
            assert [finding.where for finding in unreachable] == [("broker 1",)]
            assert cluster.brokers[1].address in unreachable[0].what


@pytest.mark.servers
@pytest.mark.long
async def test_brokers_of_two_versions(group: str, tmp_path: Path) -> None:
    protocol = {"inter.broker.protocol.version": "1.1"}
    async with LocalCluster("1.1.1", broker_config=protocol) as old:
        joining: dict[str, Any] = {"zookeeper.connect": old.zookeeper, "broker.id": 7, **protocol}
        async with LocalCluster("2.8.2", broker_config=joining):
            await asyncio.to_thread(listed, old, 2)
            found = await Patient(old, "t", group, 1).examined(group=None)
            assert found["mixed-versions"][0].where == ("broker 0: 1.1", "broker 7: 2.8")
            versions = await asyncio.to_thread(Shell(tmp_path).run, line(found["mixed-versions"][0], old))
            assert versions.count("(id: ") == 2


def test_the_page_lists_every_finding_and_no_other() -> None:
    known = {*re.findall(r'[Ff]inding\(\s*"([a-z-]+)"', SOURCES), "could-not-look", "chroot-missing"}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)) == known


def test_the_commands_of_findings_exist() -> None:
    commands = re.findall(r'f?"(allocator [^"]+)"(?:\s+f?"(--[^"]+)")?', SOURCES)
    assert len(commands) >= 6
    assert not list(command_faults("\n".join(map(" ".join, commands))))
