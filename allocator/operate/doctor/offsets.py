"""Findings about the offsets of a group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from allocator.documents import to_ranges
from allocator.operate.doctor.finding import NOT_NAMED, Finding, Severity, names
from allocator.operate.doctor.observation import Observation
from allocator.operate.group_report import GroupReport, GroupState
from allocator.operate.shell_command import ShellCommand
from allocator.types import TopicPartition

MARKERS = 10  # transactions leave offsets at the end of a log that no consumer sees
NOISE = 0.1  # fraction of the written records by which the lag varies between commits
COMMITS_S = 10.0  # twice the default interval of automatic commits
FEW = 3  # members that a finding about slow partitions names. Higher: it also names healthy members
OTHER_ZOOKEEPER = "OTHER-ZOOKEEPER"  # placeholder in commands
A_WEEK_MINUTES = 7 * 24 * 60


def offset_findings(before: Observation, after: Observation) -> Iterator[Finding]:
    report = after.report
    if report is None:
        return
    yield from _outside(after, report)
    yield from _gone(after, report)
    yield from _missing(before, after, report)
    yield from _retention(after, report)
    if before is not after and before.report is not None:
        yield from _lag(before, after, before.report, report)


def _outside(seen: Observation, report: GroupReport) -> Iterator[Finding]:
    group, logs = report.state.group, report.logs

    def reset(to: str, partitions: Iterable[TopicPartition]) -> ShellCommand | None:
        """Returns the command for these partitions alone; None if no offset is in Kafka."""
        chosen = [p for p in partitions if p not in seen.old_offsets]
        if not chosen:
            return None
        command = ShellCommand.of("allocator group offsets reset", group, to=to, topic=_named(chosen), execute=True)
        return command.at(zookeeper=hosts)

    # the command refuses a group that it does not find in ZooKeeper. Without an ensemble, the caller states that none
    # has members of the group. Otherwise only the operator knows: they may be in another one, or under another root
    hosts = None
    if seen.only_in_kafka:
        hosts = "none" if seen.requested_session_s is None else OTHER_ZOOKEEPER
    elif f"ZooKeeper{NOT_NAMED}" in seen.unseen:
        hosts = OTHER_ZOOKEEPER
    elsewhere = (
        f" {OTHER_ZOOKEEPER} is the ensemble of the members, with their --root; `none` if no ensemble has members of "
        "the group."
        if hosts == OTHER_ZOOKEEPER
        else ""
    )
    below, above = {}, {}
    for partition, committed in logs.committed.items():
        start, end = logs.start.get(partition), logs.end.get(partition)
        if start is not None and committed.offset < start:
            below[partition] = start - committed.offset
        if end is not None and committed.offset > end:
            above[partition] = committed.offset - end
    if below:
        yield Finding(
            "offset-below-log-start",
            Severity.CRITICAL,
            f"{sum(below.values())} records were deleted before the group read them, in {len(below)} partitions",
            names(below),
            "The group lost these records. A member that starts there follows auto_offset_reset: with `latest` it "
            "skips the remaining records too.",
            "To read the remaining records, stop the members and reset to the earliest record. Then raise the "
            f"retention of the topic above the longest outage of the group.{elsewhere}",
            reset("earliest", below),
        )
    if above:
        yield Finding(
            "offset-above-log-end",
            Severity.CRITICAL,
            f"offsets of {len(above)} partitions are up to {max(above.values())} records beyond the end of the log",
            names(above),
            "Members follow auto_offset_reset, and repeat or skip records. The topic was deleted and created again, an "
            "unclean election truncated the log, or offsets were copied from another cluster without a map.",
            "Find the cause, then stop the members and reset these partitions: to `earliest` to miss no record, or to "
            f"`latest` if none was written since.{elsewhere}",
            reset("earliest", above),
        )


def _named(partitions: Iterable[TopicPartition]) -> list[str]:
    """Returns the values of --topic for these partitions: "orders:0,2-5"."""
    return [f"{topic}:{ranges}" for topic, ranges in sorted(to_ranges(partitions).items())]


def _gone(seen: Observation, report: GroupReport) -> Iterator[Finding]:
    # the assignment of a group without members is outdated; Kafka deletes the offsets of a topic together with it
    assigned = report.state.assigned if report.state.members else frozenset()
    gone = {p for p in {*assigned, *report.logs.committed} if p not in seen.replicas}
    if gone and seen.replicas:
        yield Finding(
            "partition-gone",
            Severity.WARNING if gone & assigned else Severity.INFO,
            f"the group has {'an assignment' if gone & assigned else 'offsets'} of {len(gone)} partitions that do not "
            "exist",
            names(gone),
            "The topic was deleted. Kafka deletes its offsets, and the leader takes its partitions from the members.",
            "If this stays for more than a minute, check the other findings about this group.",
        )


def _missing(before: Observation, after: Observation, report: GroupReport) -> Iterator[Finding]:
    in_zookeeper = set(after.old_offsets)
    if in_zookeeper:
        yield Finding(
            "offsets-in-zookeeper",
            Severity.INFO if after.old.kiel or after.old.consumers else Severity.WARNING,
            f"offsets of {len(in_zookeeper)} partitions are in ZooKeeper and not in Kafka",
            names(in_zookeeper),
            "kiel and consumers of 0.8 store them there. Most newer clients read offsets only from Kafka, and would "
            "start at the earliest or latest record.",
            "Use GroupedConsumer, which reads both, or copy the offsets while the group has no members.",
            ShellCommand.of(
                "allocator offsets copy",
                report.state.group,
                report.state.group,
                storage="zookeeper",
                topic=_named(in_zookeeper),
                brokers="BROKERS",
                zookeeper="ZOOKEEPER",
                execute=True,
            ),
        )
    active = _owned(before) & _owned(after)
    logs = report.logs
    bare = {p for p in active if p not in logs.committed and logs.end.get(p, 0) > logs.start.get(p, 0)}
    if bare and "committed offsets" not in dict(after.failed_checks):
        known = after.settings.get("offsets.retention.minutes")
        kept = f" The brokers keep offsets for {_span(int(known))}." if known is not None else ""
        yield Finding(
            "offsets-missing",
            Severity.WARNING,
            f"{len(bare)} partitions have an owner and records, but no committed offset",
            names(bare),
            "The next owner follows auto_offset_reset, and repeats or skips records. The offsets expired, or were "
            f"never committed.{kept}",
            "Check the log of the owner: a handler that hangs at its first record commits nothing. If offsets expired, "
            "raise offsets.retention.minutes above the longest idle time of a partition.",
            ShellCommand.of("allocator group offsets show", report.state.group),
        )


def _retention(seen: Observation, report: GroupReport) -> Iterator[Finding]:
    minutes = seen.settings.get("offsets.retention.minutes")
    # from 2.1 on, the offsets of a group that uses Kafka's own protocols do not expire while it has members (KIP-211)
    by_kafka = seen.kafka is not None and bool(seen.kafka.members) and seen.version >= (2, 1)
    if minutes is None or by_kafka or not set(report.logs.committed) - set(seen.old_offsets):
        return
    records = _log_retention_minutes(seen)
    if records is not None and 0 <= records <= int(minutes):
        return
    yield Finding(
        "offsets-expire",
        Severity.INFO if int(minutes) >= A_WEEK_MINUTES else Severity.WARNING,
        f"the brokers keep offsets for {_span(int(minutes))}, and records longer",
        (report.state.group,),
        "Running members commit idle offsets again in time. If all members are stopped for longer, Kafka deletes the "
        "offsets, and the next owner follows auto_offset_reset.",
        "Set offsets.retention.minutes of the brokers at least as high as the retention of the topics.",
    )


def _span(minutes: int) -> str:
    """Returns a time as text, in the largest unit of which it has at least one."""
    for unit, size in (("days", 1440), ("hours", 60)):
        if minutes >= size:
            return f"{minutes / size:g} {unit}"
    return f"{minutes} minutes"


def _log_retention_minutes(seen: Observation) -> float | None:
    """Returns the retention of the brokers; None if unlimited or unknown. Ignores settings of topics."""
    for name, factor in (("ms", 1 / 60_000), ("minutes", 1), ("hours", 60)):
        text = seen.settings.get(f"log.retention.{name}")
        if text is not None:
            return None if int(text) < 0 else int(text) * factor
    return None


def _lag(before: Observation, after: Observation, earlier: GroupReport, report: GroupReport) -> Iterator[Finding]:
    growing: dict[TopicPartition, int] = {}
    still: dict[TopicPartition, int] = {}
    behind_transaction: dict[TopicPartition, int] = {}
    seconds = (after.ended_ms - before.ended_ms) / 1000
    for partition in (_owned(before) & _owned(after)) - report.paused:
        lag, was = report.logs.lag(partition), earlier.logs.lag(partition)
        committed, before_that = report.logs.committed.get(partition), earlier.logs.committed.get(partition)
        if lag is None or was is None or committed is None or before_that is None:
            continue
        done = committed.offset - before_that.offset
        stable = after.stable.get(partition, -1)
        if lag > MARKERS and stable == before.stable.get(partition) and 0 <= stable - committed.offset <= MARKERS:
            behind_transaction[partition] = lag
            continue
        if lag > MARKERS and lag >= was and done == 0:
            still[partition] = lag
            continue
        written = report.logs.end[partition] - earlier.logs.end.get(partition, 0)
        # between two commits, the lag of a member that keeps up grows to what was written since the first one
        if lag - was > max(MARKERS, NOISE * written) and lag * max(1.0, seconds / COMMITS_S) > written:
            growing[partition] = lag - was
    if behind_transaction:
        first = min(behind_transaction)
        yield Finding(
            "open-transaction",
            Severity.WARNING,
            f"transactions in {len(behind_transaction)} partitions have been open for {seconds:.0f} s or more; the "
            f"group has read up to them, and {sum(behind_transaction.values())} records are in or behind them",
            names(behind_transaction),
            'Members with isolation level "read_committed" get these records when the transaction ends, and their '
            "handlers are not the cause. Other members do not wait for transactions: if they commit nothing, their log "
            "has the cause.",
            "Find the producer: `kafka-transactions.sh describe-producers` lists those of a partition. Brokers end its "
            "transaction after its transaction.timeout.ms. If it stays longer, it hangs (KIP-664); then run "
            f"`kafka-transactions.sh abort` for each partition, with --start-offset {after.stable[first]} for "
            f"{names([first])[0]}.",
        )
    if still:
        yield Finding(
            "no-progress",
            Severity.CRITICAL,
            f"{len(still)} partitions had no commit in {seconds:.0f} s, with {sum(still.values())} records waiting",
            names(still),
            "A handler hangs, or fails repeatedly at one record. (If the members commit less often than this, run the "
            "doctor again with a longer --interval.)",
            "Check the log of the owner. With a dead-letter topic, the group continues after a bad record.",
            ShellCommand.of("allocator group describe", report.state.group),
        )
    if growing:
        behind = sum(growing.values())
        slow = sorted({state.name_of(owner) for p in growing for state, owner in _owners(after, p)})
        of_whom = f"; they belong to {' and '.join(slow)}" if 0 < len(slow) <= FEW else ""
        yield Finding(
            "lag-grows",
            Severity.WARNING,
            f"the lag of {len(growing)} partitions grew by {behind} records in {seconds:.0f} s{of_whom}",
            names(growing),
            "The members are slower than the producers. Retention may delete records before the group reads them.",
            "Add members (up to the number of partitions), or make the handler faster. A longer --interval shows "
            "whether this is a burst or a trend.",
            ShellCommand.of("allocator doctor", report.state.group, interval="60"),
        )


def _owners(seen: Observation, partition: TopicPartition) -> Iterator[tuple[GroupState, str]]:
    """Yields the members that own a partition, in ZooKeeper or in Kafka."""
    for state in filter(None, (seen.state, seen.kafka)):
        if partition in state.owners:
            yield state, state.owners[partition]


def _owned(seen: Observation) -> set[TopicPartition]:
    found = set() if seen.state is None else set(seen.state.owners)
    found |= set() if seen.kafka is None else set(seen.kafka.owners)
    return found | seen.old.claimed | seen.old.assigned
