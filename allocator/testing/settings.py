"""The configuration files of the servers: small, quick, on 127.0.0.1 only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .versions import Release

__all__ = ["advertised", "broker_settings", "log4j_settings", "properties", "with_controller", "zookeeper_settings"]


def properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def log4j_settings(file: Path) -> str:
    """Everything from INFO up into `file`, with thread and time."""
    return properties(
        {
            "log4j.rootLogger": "INFO, file",
            "log4j.appender.file": "org.apache.log4j.FileAppender",
            "log4j.appender.file.File": file,
            "log4j.appender.file.layout": "org.apache.log4j.PatternLayout",
            "log4j.appender.file.layout.ConversionPattern": "%d{ISO8601} %-5p %c{1} [%t] %m%n",
        }
    )


def zookeeper_settings(
    number: int, directory: Path, port: int, quorum: Mapping[int, tuple[int, int]], tick_ms: int
) -> dict[str, object]:
    """`quorum`: node -> (peer port, election port); with one node it stands alone."""
    settings: dict[str, object] = {
        "dataDir": directory / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "tickTime": tick_ms,
        "minSessionTimeout": 2 * tick_ms,
        "maxSessionTimeout": 120_000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
        "extendedTypesEnabled": "true",
        "preAllocSize": 1024,
        "snapCount": 10_000,
    }
    if len(quorum) > 1:
        settings["initLimit"] = 40
        settings["syncLimit"] = 4
        for node, (peer, election) in quorum.items():
            settings[f"server.{node}"] = f"127.0.0.1:{peer}:{election}"
    return settings


def broker_settings(
    release: Release, number: int, directory: Path, port: int, brokers: int, zookeeper: str
) -> dict[str, object]:
    """For a broker that coordinates through ZooKeeper or, on KRaft, for what both kinds share."""
    replicas = min(3, brokers)
    settings: dict[str, object] = {
        "log.dirs": directory / "data",
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "num.partitions": 1,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.segment.bytes": 1 << 20,
        # the default takes a third of our small heap
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.index.size.max.bytes": 1 << 20,
        # records with timestamps of long ago are not to vanish in the middle of a test
        "log.retention.hours": 1_000_000,
        "controlled.shutdown.retry.backoff.ms": 500,
    }
    if release.number >= (0, 9):
        settings["group.min.session.timeout.ms"] = 1000  # the default of 6 s is long to wait for a member's end
    if release.number >= (0, 10):
        settings["group.initial.rebalance.delay.ms"] = 0
    if release.number >= (0, 11):
        settings["transaction.state.log.num.partitions"] = 4
        settings["transaction.state.log.replication.factor"] = replicas
        settings["transaction.state.log.min.isr"] = 1
    if release.kraft:
        return settings
    settings["broker.id"] = number
    settings["zookeeper.connect"] = zookeeper
    settings["zookeeper.connection.timeout.ms"] = 30_000
    settings["zookeeper.session.timeout.ms"] = 4_000
    if release.listeners:
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    else:
        settings.update({"host.name": "127.0.0.1", "port": port})
    return settings


def advertised(release: Release, port: int) -> dict[str, object]:
    """What makes clients of a broker with ZooKeeper come by another port."""
    if release.listeners:
        return {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    return {"advertised.host.name": "127.0.0.1", "advertised.port": port}


def kraft_settings(
    number: int, port: int, controller_port: int, voters: Sequence[tuple[int, int]]
) -> dict[str, object]:
    """What a KRaft node has besides; `voters` are (node, controller port), and a voter is a controller too."""
    votes = any(node == number for node, _ in voters)
    listeners = f"PLAINTEXT://127.0.0.1:{port}"
    if votes:
        listeners += f",CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller" if votes else "broker",
        "node.id": number,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{peer}" for node, peer in voters),
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 400,
    }


def with_controller(asked: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """What was asked for, its listeners joined by the one over which the KRaft nodes in `settings` vote."""
    mine = [each for each in str(settings.get("listeners", "")).split(",") if each.startswith("CONTROLLER:")]
    if "listeners" not in asked or not mine or "CONTROLLER:" in str(asked["listeners"]):
        return dict(asked)
    return {**asked, "listeners": ",".join([str(asked["listeners"]), *mine])}
