"""Findings about brokers, topics, clocks and session timeouts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from allocator.operate.doctor.finding import Finding, Severity, names
from allocator.operate.doctor.observation import Observation
from allocator.operate.shell_command import ShellCommand

OLD = (0, 10)
SKEW_S = 2.0  # NTP keeps clocks within milliseconds, but requests take time
LATE_S = 10.0  # a restarted broker waits at least this long until ZooKeeper deletes the znode of its former session


def cluster_findings(before: Observation, after: Observation) -> Iterator[Finding]:
    yield from _brokers(after)
    yield from _replicas(after)
    yield from _clocks(before, after)
    yield from _session_timeouts(after)


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _brokers(seen: Observation) -> Iterator[Finding]:
    for broker in seen.brokers.values():
        if broker.refused is not None:
            yield Finding(
                "broker-unreachable",
                Severity.CRITICAL,
                f"broker {broker.id} at {broker.address} is in the cluster but does not respond: {broker.refused}",
                (f"broker {broker.id}",),
                "Its partitions cannot be read. The groups that it coordinates cannot commit or rebalance.",
                f"Check the process, and that clients can connect to {broker.address} (advertised.listeners).",
                ShellCommand(("nc", "-vz", "--", *broker.address.rpartition(":")[::2])),
            )
    versions = Counter(broker.version for broker in seen.brokers.values() if broker.version)
    if len(versions) > 1:
        listed = ", ".join(f"{count} of {version_text(version)}" for version, count in sorted(versions.items()))
        yield Finding(
            "mixed-versions",
            Severity.WARNING,
            f"the brokers have different versions: {listed}",
            tuple(f"broker {b.id}: {version_text(b.version)}" for b in seen.brokers.values() if b.version),
            "Some clients use the request versions of the first broker they connect to, and fail on older brokers.",
            "Finish the upgrade (inter.broker.protocol.version last), or roll the newer brokers back.",
            ShellCommand.of("kafka-broker-api-versions.sh", bootstrap_server="BROKERS"),
        )
    if seen.version and seen.version < OLD:
        missing = "records have no timestamps, so offsets cannot be reset to a time"
        if seen.version < (0, 9):
            missing += "; the brokers support neither TLS nor Kafka's group protocols"
        if seen.version < (0, 8, 2):
            missing += "; offsets are stored only in ZooKeeper"
        yield Finding(
            "old-version",
            Severity.INFO,
            f"the brokers are Kafka {version_text(seen.version)}",
            tuple(f"broker {node}" for node in sorted(seen.brokers)),
            f"This version gets no more fixes; {missing}.",
            "Plan a migration: mirror the topics, map the offsets, then cut over.",
            ShellCommand.of(
                "allocator mirror",
                "BROKERS",
                "NEW-BROKERS",
                topic="TOPIC",
                zookeeper="ZOOKEEPER",
                old_zookeeper="KAFKA-ZOOKEEPER",
            ),
        )


def _replicas(seen: Observation) -> Iterator[Finding]:
    leaderless = [p for p, replicas in seen.replicas.items() if replicas.leader is None]
    if leaderless:
        yield Finding(
            "leaderless",
            Severity.CRITICAL,
            f"{len(leaderless)} partitions have no leader",
            names(leaderless),
            "Nobody can read or write them until a broker with one of their in-sync replicas runs again.",
            "Start the brokers with their replicas: "
            + _numbers({node for p in leaderless for node in seen.replicas[p].all} - set(seen.brokers))
            + ". If these brokers are lost, an unclean election restores the partitions without their last records.",
            ShellCommand.of("kafka-topics.sh", bootstrap_server="BROKERS", describe=True, unavailable_partitions=True),
        )
    out_of_sync = {p: set(replicas.all) - set(replicas.in_sync) for p, replicas in seen.replicas.items()}
    lacking = {p for p, nodes in out_of_sync.items() if nodes} - set(leaderless)
    if lacking:
        behind = set().union(*(out_of_sync[p] for p in lacking))
        gone, slow = behind - set(seen.brokers), behind & set(seen.brokers)
        causes = [f"{_numbers(nodes)} {what}" for nodes, what in ((gone, "unavailable"), (slow, "behind")) if nodes]
        yield Finding(
            "under-replicated",
            Severity.WARNING,
            f"{len(lacking)} partitions have replicas that are not in sync: {'; '.join(causes)}",
            names(lacking),
            "If another broker fails, acknowledged records may be lost, or partitions may lose their leader.",
            "Start unavailable brokers. If a broker is behind, check its disk, its network and num.replica.fetchers.",
            ShellCommand.of(
                "kafka-topics.sh", bootstrap_server="BROKERS", describe=True, under_replicated_partitions=True
            ),
        )


def _clocks(before: Observation, after: Observation) -> Iterator[Finding]:
    skew_s = _zookeeper_skew_s(before, after)
    if abs(skew_s) > SKEW_S:
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            f"ZooKeeper's clock is {_ahead(skew_s)} the clock of this machine",
            ("ZooKeeper", "this machine"),
            "Ownership does not depend on clocks. But an offset reset to a time may find a wrong offset, and times in "
            "logs cannot be compared.",
            "Compare both clocks with NTP, and correct the wrong one.",
            ShellCommand.of("chronyc tracking"),
        )
    for each in after.registrations:
        skew_s = (each.broker_ms - each.zookeeper_ms) / 1000
        if skew_s > SKEW_S or skew_s < -LATE_S:
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"when broker {each.broker} started, its clock was {_ahead(skew_s)} ZooKeeper's clock",
                (f"broker {each.broker}", "ZooKeeper"),
                "The broker uses its clock for LogAppendTime and to expire records and offsets.",
                "Compare both clocks with NTP. This finding stays until the broker restarts.",
                ShellCommand.of("chronyc tracking"),
            )
    if after.future_timestamps:
        furthest = max(after.future_timestamps.values())
        yield Finding(
            "records-from-the-future",
            Severity.WARNING,
            f"{len(after.future_timestamps)} partitions hold records with timestamps up to "
            f"{(furthest - after.ended_ms) / 1000:.0f} s ahead of this machine's clock",
            names(after.future_timestamps),
            "Their log segments outlive the retention time, and an offset reset to a time may find a wrong offset.",
            "Correct the clock or the unit (milliseconds) of the producer, or set LogAppendTime.",
            ShellCommand.of(
                "kafka-configs.sh",
                bootstrap_server="BROKERS",
                alter=True,
                entity_type="topics",
                entity_name=min(after.future_timestamps).topic,
                add_config="message.timestamp.type=LogAppendTime",
            ),
        )


def _zookeeper_skew_s(before: Observation, after: Observation) -> float:
    """Returns by how many seconds ZooKeeper's clock is at least ahead (negative: behind); 0 if unknown."""
    newest = after.zookeeper_ms
    if newest is None:
        return 0.0
    if newest > after.ended_ms:
        return (newest - after.ended_ms) / 1000
    if before.zookeeper_ms is not None and newest > before.zookeeper_ms and newest < before.began_ms:
        return (newest - before.began_ms) / 1000  # the znode was written between the two polls
    return 0.0


def _session_timeouts(seen: Observation) -> Iterator[Finding]:
    requested, granted = seen.requested_session_s, seen.granted_session_s
    if requested is not None and granted is not None and abs(requested - granted) > 0.001:
        limit = "least" if granted > requested else "most"
        yield Finding(
            "session-timeout-out-of-range",
            Severity.WARNING,
            f"ZooKeeper grants a session timeout of {granted:g} s instead of {requested:g} s: the {limit} it allows",
            ("ZooKeeper",),
            "The group notices a crashed member after the granted timeout, not after the configured one. By default "
            "ZooKeeper allows 2 to 20 times its tickTime.",
            "Change the members' session timeout, or minSessionTimeout and maxSessionTimeout in zoo.cfg.",
        )
    if requested is None or (seen.state is not None and seen.state.members and seen.kafka is None):
        return  # the limits of Kafka's coordinator do not apply to members in ZooKeeper
    least, most = (_seconds(seen, f"group.{end}.session.timeout.ms") for end in ("min", "max"))
    if (least is not None and requested < least) or (most is not None and requested > most):
        yield Finding(
            "session-timeout-out-of-range",
            Severity.WARNING if seen.kafka is None else Severity.CRITICAL,
            f"the brokers allow session timeouts of {least or 0:g} to {most or 0:g} s in groups of Kafka's own "
            f"protocols, and the members request {requested:g} s",
            ("Kafka's group coordinator",),
            "The coordinator refuses a member with a session timeout outside this range.",
            "Change the members' session timeout, or group.min/max.session.timeout.ms of the brokers.",
        )


def _seconds(seen: Observation, name: str) -> float | None:
    text = seen.settings.get(name)
    return None if text is None else int(text) / 1000


def _ahead(skew_s: float) -> str:
    return f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'}"


def _numbers(nodes: set[int]) -> str:
    return ("broker " if len(nodes) == 1 else "brokers ") + ", ".join(map(str, sorted(nodes)))
