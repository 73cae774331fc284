"""The counts of a mirror, and the reasons why it stopped topics."""

from __future__ import annotations

import enum
import logging
from collections import Counter, deque
from typing import Final, NamedTuple

from allocator.core.text import some_of
from allocator.errors import AllocatorError
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

LOSSES: Final = 1000  # maximum length of `MirrorReport.losses`


class TopicsStopped(AllocatorError):
    """The mirror stopped some topics, until an operator has carried out their remedies. The others are mirrored."""


class RecordsGone(AllocatorError):
    """The old cluster deleted records before they were mirrored. Everything else is done."""


class TransactionsOpen(AllocatorError):
    """All records before some open transactions are mirrored, and those in and behind them are not."""


class GroupsNotSynced(AllocatorError):
    """The offsets of some groups are not synced, until an operator has corrected the cause. Everything else is done."""


class Remedy(enum.Enum):
    """The action of an operator that lets the mirror of a stopped topic continue."""

    RECREATED = (
        "Start with --recreated {topic}=earliest to mirror it from its earliest record, after the records on the new "
        "cluster; or with --recreated {topic}=continue to resume at the stored position, as if it were the same topic"
    )
    TRUNCATED = (
        "Start with --recreated {topic}=continue to resume at the first offset that the old log lost: the new cluster "
        "keeps the lost records and appends the new ones. Or start with --recreated {topic}=earliest to mirror all "
        "records again"
    )
    EXPIRED = (
        "Set retention.ms of the new topic to -1 until its consumers have moved, and start the mirror again; or start "
        "with --accept-loss to mirror these records nevertheless"
    )
    CYCLE = (
        "Stop one of the mirrors, or let it leave the topic out (--exclude). If a cutover has moved the producers, "
        "start this one with --back-of and the group of the other. If that one has ended for good, delete its offset "
        "map"
    )
    ENDED = (
        "To copy in this direction again, move the producers with a cutover first, and start with --back-of and the "
        "group of the mirror back"
    )
    NOT_MOVED = "Move them with a cutover (step producers), and start the mirror again"
    OTHER_TARGET = (
        "If that was a mirror to another cluster, start this one with another --group. If the offset map was deleted, "
        "start with --restart {topic} to mirror the topic again from its earliest old record"
    )
    TIMES = (
        "Set message.timestamp.after.max.ms of the new topic to 9223372036854775807 (for times in the past, "
        "message.timestamp.before.max.ms; before Kafka 3.6, message.timestamp.difference.max.ms), and start the mirror "
        "again"
    )
    UNFIT = (
        "Correct it and start the mirror again, or leave the topic out (--exclude {topic}), or a setting that the new "
        "cluster refuses (--skip-setting)"
    )
    RESTART = (
        "Start with --restart {topic} to mirror it again from its earliest old record, after the records on the new "
        "cluster"
    )


class Stop(NamedTuple):
    """The reason why a topic is not mirrored, and its remedy."""

    reason: str
    remedy: Remedy

    def text(self, topic: str) -> str:
        return f"topic {topic!r} is not mirrored: {self.reason}. {self.remedy.value.format(topic=topic)}"


class SourceLoss(NamedTuple):
    """Old offsets from `first` to `last` that were deleted before they were mirrored."""

    partition: TopicPartition
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition} offsets {self.first} to {self.last}"

    @property
    def offsets(self) -> int:
        return self.last - self.first + 1


class MirrorReport:
    """Counts the work of one process of a mirror since its start. The counts survive reconnections."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self.records_of: Counter[str] = Counter()
        """Acknowledged records since the start of this process, by old topic."""
        self.bytes_of: Counter[str] = Counter()
        """Bytes of these records on the wire, by old topic."""
        self.last_progress_ms: int | None = None
        """Time of the last acknowledgement, or of the start of `run`; milliseconds since the epoch."""
        self.errors = 0
        """Number of failures after which the mirror retried."""
        self.problem: str | None = "it has not reached its servers yet"
        """The reason why nothing is mirrored now; None while it runs."""
        self.duplicated = 0
        """Number of unexpected records on the new cluster: written by another producer, or twice."""
        self.already_present = 0
        """Number of records that the new cluster had after a crash, and that were not sent again."""
        self.lost_at_source = 0
        """Number of old offsets that were deleted before they were mirrored."""
        self.losses: deque[SourceLoss] = deque(maxlen=LOSSES)
        """The last thousand ranges of these offsets."""
        self.stops: dict[str, Stop] = {}
        """Stopped old topics with the reasons."""
        self.left_out: dict[str, str] = {}
        """Topics that match the pattern, but belong to this library on the old cluster -> what they are."""
        self.unsynced: dict[str, str] = {}
        """Groups of `sync_group_offsets` whose offsets are refused, for example because this user may not write them ->
        the reason. The expression, if the groups cannot be listed."""
        self.caught_up = False
        """Whether `run(until_caught_up=True)` has mirrored all records of its goal."""
        self.uncommitted: dict[TopicPartition, str] = {}
        """Partitions in which `run(until_caught_up=True)` has ended at an open transaction -> where that begins, and
        whose it is."""
        self._lost_to: dict[tuple[TopicPartition, int], int] = {}

    @property
    def records(self) -> int:
        """Acknowledged records since the start of this process."""
        return sum(self.records_of.values())

    @property
    def bytes(self) -> int:
        """Bytes of these records on the wire."""
        return sum(self.bytes_of.values())

    @property
    def stopped(self) -> dict[str, str]:
        """Stopped old topics -> the reason."""
        return {topic: stop.reason for topic, stop in self.stops.items()}

    def is_lost(self, topic: str) -> bool:
        """Returns whether the topic is stopped because the new cluster has lost records of it."""
        stop = self.stops.get(topic)
        return stop is not None and stop.remedy is Remedy.RESTART

    def count_lost(self, loss: SourceLoss, incarnation: int) -> None:
        """Counts and logs a loss, except offsets that were counted before a reconnection.

        `incarnation` is the number of the old topic: a recreated topic begins at offset 0 again.
        """
        key = (loss.partition, incarnation)
        loss = loss._replace(first=max(loss.first, self._lost_to.get(key, 0)))
        if loss.offsets <= 0:
            return
        self._lost_to[key] = loss.last + 1
        self.lost_at_source += loss.offsets
        self.losses.append(loss)
        log.error("%s: the old cluster deleted %s before they were mirrored", self.settings.group, loss)

    def check(self) -> None:
        """Raises TopicsStopped if topics are stopped, RecordsGone after a loss unless `settings.accept_loss`,
        TransactionsOpen, or GroupsNotSynced."""
        if self.stops:
            raise TopicsStopped("; ".join(stop.text(topic) for topic, stop in sorted(self.stops.items())))
        if self.lost_at_source and not self.settings.accept_loss:
            raise RecordsGone(
                f"the old cluster deleted {self.lost_at_source} offsets before they were mirrored: "
                f"{some_of([*map(str, self.losses)])}; all "
                "that it still had is mirrored. Copy them from a backup, or pass --accept-loss to end without this "
                "error"
            )
        if self.uncommitted:
            rest = [f"{each.topic}:{each.partition} {text}" for each, text in sorted(self.uncommitted.items())]
            raise TransactionsOpen(
                f"all is mirrored but the records in and behind open transactions of the old cluster: {some_of(rest)}. "
                "Brokers end a transaction after its transaction.timeout.ms; if it stays longer, it hangs: find and "
                "abort it with `kafka-transactions.sh`. Then start the mirror again"
            )
        if self.unsynced:
            raise GroupsNotSynced(
                "the offsets of these groups are not synced: "
                + "; ".join(f"{group!r}: {reason}" for group, reason in sorted(self.unsynced.items()))
                + ". Correct the cause, or leave the groups out of --sync-group-offsets"
            )
