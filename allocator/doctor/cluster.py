"""What may be wrong with brokers, topics, clocks and session timeouts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from allocator.doctor.finding import Finding, Severity, names
from allocator.doctor.look import Look

__all__ = ["cluster_findings"]

OLD = (0, 10)
SKEW_S = 2.0  # clocks that are kept by NTP differ by milliseconds; requests take their time too
LATE_S = 10.0  # a broker that restarts waits this long and longer for the znode of its former session to go


def cluster_findings(before: Look, after: Look) -> Iterator[Finding]:
    yield from _brokers(after)
    yield from _replicas(after)
    yield from _clocks(before, after)
    yield from _session_timeouts(after)


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _brokers(look: Look) -> Iterator[Finding]:
    for broker in look.brokers.values():
        if broker.refused is not None:
            yield Finding(
                "broker-unreachable",
                Severity.CRITICAL,
                f"broker {broker.id} at {broker.address} belongs to the cluster and does not answer: {broker.refused}",
                (f"broker {broker.id}",),
                "What it leads cannot be read, and a group that it coordinates can neither commit nor rebalance.",
                f"Check that {broker.address} is the address which clients are to use (advertised.listeners), that "
                "no firewall is between, and that the process is not paused or collecting garbage.",
            )
    versions = Counter(broker.version for broker in look.brokers.values() if broker.version)
    if len(versions) > 1:
        listed = ", ".join(f"{count} of {version_text(version)}" for version, count in sorted(versions.items()))
        yield Finding(
            "mixed-versions",
            Severity.WARNING,
            f"the brokers are of different versions: {listed}",
            tuple(f"broker {b.id}: {version_text(b.version)}" for b in look.brokers.values() if b.version),
            "A client speaks as the broker does that it met first; requests of newer versions fail on the older ones, "
            "and which one answers changes with each reconnection.",
            "Finish the upgrade (inter.broker.protocol.version last), or roll the newer brokers back.",
        )
    if look.version and look.version < OLD:
        missing = "records have no timestamps, so nothing can be reset to a time"
        if look.version < (0, 9):
            missing += "; there are no groups by Kafka's own protocol and no TLS"
        if look.version < (0, 8, 2):
            missing += "; offsets are kept in ZooKeeper only"
        yield Finding(
            "old-version",
            Severity.INFO,
            f"the brokers are Kafka {version_text(look.version)}",
            tuple(f"broker {node}" for node in sorted(look.brokers)),
            f"It gets no fixes any more; {missing}.",
            "Plan to move off it: mirror the topics, map the offsets, cut over.",
        )


def _replicas(look: Look) -> Iterator[Finding]:
    leaderless = [p for p, seen in look.replicas.items() if seen.leader is None]
    if leaderless:
        yield Finding(
            "leaderless",
            Severity.CRITICAL,
            f"{len(leaderless)} partitions have no leader",
            names(leaderless),
            "They can neither be read nor written until a replica that has their records is up again.",
            "Start the brokers that hold them: "
            + _numbers({node for p in leaderless for node in look.replicas[p].all} - set(look.brokers))
            + ". If they are lost for good, an unclean election brings the partitions back without their last records.",
        )
    lacking = {p for p, seen in look.replicas.items() if set(seen.all) - set(seen.in_sync)} - set(leaderless)
    if lacking:
        behind = {node for p in lacking for node in set(look.replicas[p].all) - set(look.replicas[p].in_sync)}
        gone, slow = behind - set(look.brokers), behind & set(look.brokers)
        who = [f"{_numbers(nodes)} {what}" for nodes, what in ((gone, "not there"), (slow, "behind")) if nodes]
        yield Finding(
            "under-replicated",
            Severity.WARNING,
            f"{len(lacking)} partitions have fewer replicas in sync than they should: {'; '.join(who)}",
            names(lacking),
            "The next broker that fails may take acknowledged records with it, or leave partitions without a leader.",
            "Start what is not there; where a broker is behind, look at its disk, network and num.replica.fetchers.",
        )


def _clocks(before: Look, after: Look) -> Iterator[Finding]:
    skew_s = _zookeeper_skew_s(before, after)
    if abs(skew_s) > SKEW_S:
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            f"ZooKeeper's clock is {_ahead(skew_s)} this machine's",
            ("ZooKeeper", "this machine"),
            "Ownership does not rest on wall clocks, but logs cannot be put side by side, and offsets that are reset "
            "to a time begin elsewhere.",
            "Compare both with NTP (`chronyc tracking`) and correct the one that is wrong.",
        )
    for each in after.registrations:
        skew_s = (each.broker_ms - each.zookeeper_ms) / 1000
        if skew_s > SKEW_S or skew_s < -LATE_S:
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"when broker {each.broker} started, its clock was {_ahead(skew_s)} ZooKeeper's",
                (f"broker {each.broker}", "ZooKeeper"),
                "It stamps records (LogAppendTime) and expires records and offsets by that clock.",
                "Compare both with NTP (`chronyc tracking`); the broker says so again until it is restarted.",
            )
    if after.ahead:
        furthest = max(after.ahead.values())
        yield Finding(
            "records-from-the-future",
            Severity.WARNING,
            f"{len(after.ahead)} partitions hold records stamped up to {(furthest - after.ended_ms) / 1000:.0f} s "
            "ahead of this machine's clock",
            names(after.ahead),
            "Their log segments outlive the retention time, and offsets that are reset to a time land before records "
            "that are newer. A producer writes seconds or microseconds for milliseconds, or its clock is wrong.",
            "Find the producer; message.timestamp.type=LogAppendTime, or message.timestamp.difference.max.ms, keeps "
            "such records out.",
        )


def _zookeeper_skew_s(before: Look, after: Look) -> float:
    """Seconds, at least, that ZooKeeper's clock is ahead of ours (negative: behind); 0 if that cannot be told."""
    newest = after.zookeeper_ms
    if newest is None:
        return 0.0
    if newest > after.ended_ms:
        return (newest - after.ended_ms) / 1000
    if before.zookeeper_ms is not None and newest > before.zookeeper_ms and newest < before.begun_ms:
        return (newest - before.begun_ms) / 1000  # it was written between the two looks
    return 0.0


def _session_timeouts(look: Look) -> Iterator[Finding]:
    asked, granted = look.asked_s, look.granted_s
    if asked is not None and granted is not None and abs(asked - granted) > 0.001:
        limit = "least" if granted > asked else "most"
        yield Finding(
            "session-timeout-out-of-range",
            Severity.WARNING,
            f"ZooKeeper grants {granted:g} s where {asked:g} s are asked for: the {limit} that it allows",
            ("ZooKeeper",),
            "Members that die are noticed at that time, not at the one in the settings. By default ZooKeeper allows "
            "2 to 20 times its tickTime.",
            "Set the members' session timeout within the range, or minSessionTimeout and maxSessionTimeout in zoo.cfg.",
        )
    if asked is None or (look.state is not None and look.state.members and look.kafka is None):
        return  # what the coordinator allows is nothing to members through ZooKeeper
    least, most = (_seconds(look, f"group.{end}.session.timeout.ms") for end in ("min", "max"))
    if (least is not None and asked < least) or (most is not None and asked > most):
        yield Finding(
            "session-timeout-out-of-range",
            Severity.WARNING if look.kafka is None else Severity.CRITICAL,
            f"the brokers allow session timeouts of {least or 0:g} to {most or 0:g} s in groups by Kafka's own "
            f"protocol, and {asked:g} s are asked for",
            ("Kafka's group coordinator",),
            "A member that asks for one out of range is refused when it joins.",
            "Set the members' session timeout within the range, or group.min.session.timeout.ms and "
            "group.max.session.timeout.ms of the brokers.",
        )


def _seconds(look: Look, name: str) -> float | None:
    text = look.settings.get(name)
    return None if text is None else int(text) / 1000


def _ahead(skew_s: float) -> str:
    return f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'}"


def _numbers(nodes: set[int]) -> str:
    return ("broker " if len(nodes) == 1 else "brokers ") + ", ".join(map(str, sorted(nodes)))
