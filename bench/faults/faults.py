"""The faults. A fault ends when its function returns; the group may need more time to recover."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence

from allocator.testing import LocalCluster, Node, wait_until
from allocator.testing.probe import zookeeper_mode
from allocator.testing.proxy import Direction

from .group import Group, Member

__all__ = ["ALL", "FAULTS", "FORGETFUL", "MORE", "Fault"]

Fault = Callable[[Group, random.Random], str]
"""A function that causes a fault and returns the name of its victim."""


def kill(group: Group, chance: random.Random) -> str:
    """Kills a member with SIGKILL. A new member starts before or after the killed member's session expires."""
    member = chance.choice(group.members)
    group.kill(member)
    time.sleep(chance.uniform(0, 2) * group.settings.session_timeout_s)
    group.add()
    return member.name


def pause(group: Group, chance: random.Random) -> str:
    """Stops a member with SIGSTOP for one to three session timeouts."""
    member = chance.choice(group.members)
    member.signal(signal.SIGSTOP)
    time.sleep(chance.uniform(1, 3) * group.settings.session_timeout_s)
    member.signal(signal.SIGCONT)
    return member.name


def cut_zookeeper(group: Group, chance: random.Random) -> str:
    """Cuts one member off from ZooKeeper, but not from Kafka, in one or both directions."""
    return cut(group, chance, group.cluster.zookeepers)


def cut_kafka(group: Group, chance: random.Random) -> str:
    """Cuts one member off from Kafka, but not from ZooKeeper, in one or both directions."""
    return cut(group, chance, group.cluster.brokers)


def cut(
    group: Group,
    chance: random.Random,
    nodes: list[Node],
    directions: Sequence[Direction] = ("both", "both", "to_server", "to_client"),
) -> str:
    member: Member = chance.choice(group.members)
    direction = chance.choice(directions)
    for node in nodes:
        assert node.proxy is not None
        node.proxy.drop(direction=direction, client=member.pid)
    time.sleep(chance.uniform(1, 3) * group.settings.session_timeout_s)
    for node in nodes:
        assert node.proxy is not None
        node.proxy.heal(client=member.pid)
    return f"{member.name} ({direction})"


def one_way(group: Group, chance: random.Random) -> str:
    """Cuts one member off from ZooKeeper, in one direction."""
    return cut(group, chance, group.cluster.zookeepers, ("to_server", "to_client"))


def wiped(group: Group, chance: random.Random) -> str:
    """Stops the ensemble, deletes its data, and starts it empty after at least one session timeout.

    Only for brokers without ZooKeeper (KRaft).
    """
    nodes = group.cluster.zookeepers
    for node in nodes:
        node.kill()
    for node in nodes:
        shutil.rmtree(node.directory / "data")
    time.sleep(chance.uniform(1, 2) * group.settings.session_timeout_s)
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_ready()
    return "all nodes"


def zookeeper_leader(group: Group, chance: random.Random) -> str:
    """Kills the leader of the ensemble with SIGKILL, and restarts it after a while."""
    nodes = group.cluster.zookeepers
    leader = wait_until(
        lambda: next((node for node in nodes if zookeeper_mode(node.port) in ("leader", "standalone")), None),
        60,
        "ZooKeeper to have a leader",
    )
    leader.kill()
    time.sleep(chance.uniform(0.3, 1.5) * group.settings.session_timeout_s)
    leader.start()
    return f"node {leader.id}"


def broker(group: Group, chance: random.Random) -> str:
    """Kills a broker with SIGKILL, restarts it after a while, and waits until all replicas are in sync."""
    node = chance.choice(group.cluster.brokers)
    node.kill()
    time.sleep(chance.uniform(0.3, 2) * group.settings.session_timeout_s)
    node.start()
    wait_until(lambda: in_sync(group.cluster), 120, "all replicas to be in sync again")
    return f"broker {node.id}"


def rolling(group: Group, chance: random.Random) -> str:
    """Replaces all members, one after the other (a rolling restart)."""
    late = []
    for member in tuple(group.members):
        if not group.leave(member):
            late.append(member.name)
        joined = group.add()
        wait_until(
            lambda: joined.owns() or not joined.alive,  # noqa: B023
            60,
            lambda: f"{joined.name} to own something; see {joined.log}",  # noqa: B023
        )
    return "all" + (f", killed because they took too long to leave: {', '.join(late)}" if late else "")


def in_sync(cluster: LocalCluster) -> bool:
    views = cluster.metadata()
    return len(views) == len(cluster.brokers) and all(
        state.leader is not None and set(state.isr) == set(state.replicas)
        for view in views
        for partitions in view.topics.values()
        for state in partitions.values()
    )


FAULTS: dict[str, Fault] = {
    "kill -9": kill,
    "pause": pause,
    "cut from ZooKeeper": cut_zookeeper,
    "cut from Kafka": cut_kafka,
    "ZooKeeper leader killed": zookeeper_leader,
    "broker killed": broker,
    "rolling restart": rolling,
}
MORE: dict[str, Fault] = {**FAULTS, "one-way loss": one_way}
FORGETFUL: dict[str, Fault] = {"kill -9": kill, "pause": pause, "ensemble wiped": wiped}
"""Faults for brokers without ZooKeeper, because `wiped` deletes the data of the ensemble."""
ALL = {**MORE, **FORGETFUL}
