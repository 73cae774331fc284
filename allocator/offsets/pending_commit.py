"""The pending commits of one group: one request at a time, of a size that does not hold up the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from allocator.client.errors import COMMIT, MEMBER_COMMIT, GroupReaction, for_code, react
from allocator.client.offset_commit import OffsetCommit, OffsetCommitAnswer
from allocator.errors import AllocatorError, BrokerError, CommitFailed, ConfigError, Fenced
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.messages import OUTSIDE, Committer, Identity, commit_request
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["MOST_PARTITIONS", "CommitQueue", "Offsets", "PendingCommit"]

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, OffsetAndMetadata]

UNKNOWN_ERROR = -1
UNKNOWN_MEMBER = 25
FENCING = (
    GroupReaction.LOST,
    GroupReaction.RESET,
    GroupReaction.FENCED,
)  # no member, or not of this generation
PASSING = (GroupReaction.REJOIN, GroupReaction.NEW_EPOCH)  # still a member, which may commit again soon
# of one request. more: encoding it and reading the answer holds up the loop, and beyond `max.message.bytes` of the
# offsets topic the coordinator refuses it; less: more round trips. 500 partitions cost about 2 ms at a time.
MOST_PARTITIONS = 500
MOST_BYTES = 250_000
RECORD_BYTES = 100  # about the size of a record in the offsets topic, without names and metadata
# more: a commit succeeds later after a failure of the coordinator; less: more requests to one that struggles
BACKOFF_MAX_S = 1.0
# retries of a partition after "unknown server error", which may be temporary. more: 0.8.1 has longer for its
# ZooKeeper; less: callers learn sooner of a broken coordinator
MOST_UNKNOWN = 5
NAMED = 10  # partitions that an error lists


class PendingCommit:
    """One call of `commit`: the offsets that are still to be committed, and those that have failed for good.

    Raises ConfigError for an offset below 0: brokers store it in the place of the position.
    """

    def __init__(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for tp, value in offsets.items():
            _check(tp, value.offset)
        self.left: Offsets = dict(offsets)
        self.unknown: dict[TopicPartition, int] = {}  # number of unknown errors
        self.failed: dict[TopicPartition, BrokerError] = {}
        self.last: dict[TopicPartition, AllocatorError] = {}  # why a partition is not committed yet

    def note(self, partitions: Iterable[TopicPartition], exc: BrokerError, *, final: bool) -> None:
        for tp in list(partitions):
            if tp not in self.left:
                continue
            if final:
                del self.left[tp]
                self.failed[tp] = exc
            else:
                self.left[tp] = self.left.pop(tp)  # behind those that were not sent yet
                self.last[tp] = exc


class CommitQueue:
    """Sends commits in the order of the calls, later offsets over earlier ones. `GroupOffsets` has the guarantees."""

    def __init__(
        self,
        coordinator: Coordinator,
        group: str,
        *,
        retry_backoff_s: float,
        committer: Committer | None,
        retention_s: float | None,
        in_zookeeper: bool = False,
    ) -> None:
        self.committer = committer
        self._coordinator = coordinator
        self._group = group
        self._retry_backoff_s = retry_backoff_s
        self._retention_s = retention_s
        self._in_zookeeper = in_zookeeper
        self._waiting: list[PendingCommit] = []
        self._turn: asyncio.Lock | None = None
        self._abandoned = False  # a caller was cancelled: its request may be under way
        self._failures = 0  # failed requests in a row

    async def commit(self, call: PendingCommit, timeout_s: float) -> None:
        """`enter` and `finish`."""
        self.enter(call)
        await self.finish(call, timeout_s)

    def enter(self, call: PendingCommit) -> None:
        """Gives the commit its place in the order; the caller then awaits `finish`."""
        self._waiting.append(call)

    async def finish(self, call: PendingCommit, timeout_s: float) -> None:
        """Returns when all of it is committed. Raises `CommitFailed`."""
        with self._coordinator.measures.span("commit", partitions=len(call.left)):
            await self._finish(call, timeout_s)

    async def _finish(self, call: PendingCommit, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with self._turn:  # first come, first served
                # an earlier call may have committed these offsets along with its own
                while call.left and time.monotonic() < deadline:
                    await self._send_some(deadline)
        finally:
            self.withdraw(call)
        if call.failed or call.left:
            raise self._failure(call, timeout_s)

    def withdraw(self, call: PendingCommit) -> None:
        """Later requests do not contain this commit."""
        if call in self._waiting:
            self._waiting.remove(call)

    async def settled(self) -> None:
        """Waits for the request that a cancelled caller left under way, if any."""
        if self._abandoned:
            await self._coordinator.settled(OffsetCommit)

    async def close(self) -> None:
        """Waits for the request that is under way, if any."""
        await self._coordinator.settled(OffsetCommit)

    async def _send_some(self, deadline: float) -> None:
        """Sends one request for all waiting callers, and notes the result for each of them."""
        if self._abandoned:  # that request must not take effect after this one
            await self._coordinator.settled(OffsetCommit)
            self._abandoned = False
        callers = list(self._waiting)
        some = _some(callers, self._group)
        identity = self._identity(callers, some)
        if not some:
            return
        request = commit_request(self._group, some, identity, self._retention_s, in_zookeeper=self._in_zookeeper)
        try:
            response = await self._coordinator.ask(request, deadline)
        except asyncio.CancelledError:
            self._abandoned = True
            raise
        except BrokerError as exc:
            for call in callers:
                call.note(call.left, exc, final=not exc.retriable)
            if exc.retriable:
                await self._pause(deadline)
            return
        if self._read(response, callers, some, identity):
            await self._pause(deadline)
        else:
            self._failures = 0

    async def _pause(self, deadline: float) -> None:
        """Waits before the next request: longer after each failure in a row, and not past the deadline."""
        pause_s = min(BACKOFF_MAX_S, self._retry_backoff_s * (1 << min(self._failures, 10)))
        self._failures += 1
        await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))

    def _read(
        self, response: OffsetCommitAnswer, callers: Sequence[PendingCommit], sent: Offsets, identity: Identity
    ) -> bool:
        """Returns whether to pause before the next request."""
        pause = False
        errors: dict[int, BrokerError] = {}
        for tp, code in response.results:
            if code == 0:
                for call in callers:
                    call.left.pop(tp, None)
                continue
            reaction = self._reaction(code, identity)
            if reaction is GroupReaction.DROP_METADATA:
                if sent[tp].metadata:
                    log.warning(
                        "group %s: metadata of %s:%d is too large (%d characters) and left out",
                        self._group,
                        tp.topic,
                        tp.partition,
                        len(sent[tp].metadata),
                    )
                    for call in callers:
                        if tp in call.left:
                            call.left[tp] = call.left[tp]._replace(metadata="")
                    continue
                reaction = GroupReaction.FAIL
            if reaction is GroupReaction.REFIND:
                self._coordinator.forget()
            pause = pause or reaction in (GroupReaction.RETRY, GroupReaction.REFIND)
            error = errors.setdefault(code, for_code(code, "the coordinator"))
            for call in callers:
                final = reaction is GroupReaction.FAIL
                if code == UNKNOWN_ERROR and tp in call.left:
                    call.unknown[tp] = call.unknown.get(tp, 0) + 1
                    final = final or call.unknown[tp] > MOST_UNKNOWN
                call.note([tp], error, final=final)
        return pause

    def _identity(self, callers: Iterable[PendingCommit], some: Offsets) -> Identity:
        """The identity for the next request. Removes from `some` the partitions that it may not commit (any more)."""
        if self.committer is None:
            return OUTSIDE
        identity, may_commit = self.committer.identity, self.committer.may_commit
        foreign = [tp for tp in some if identity is None or not may_commit(tp)]
        if foreign:
            why = "this process is no member of the group" if identity is None else "this member does not hold it"
            error = BrokerError(f"{why} (any more)", code=UNKNOWN_MEMBER)
            for call in callers:
                call.note(foreign, error, final=True)
            for tp in foreign:
                del some[tp]
        return OUTSIDE if identity is None else identity

    def _reaction(self, code: int, sent: Identity) -> GroupReaction:
        """To a code other than success."""
        if self.committer is None:
            return react(COMMIT, code)
        reaction = react(MEMBER_COMMIT, code)
        if reaction not in (*FENCING, *PASSING):
            return reaction
        # a rebalance began, or ended, in the meantime: partitions still held are committed in the next generation
        return GroupReaction.RETRY if self.committer.refused(code, sent) else GroupReaction.FAIL

    def _failure(self, call: PendingCommit, timeout_s: float) -> CommitFailed:
        reasons: dict[str, list[TopicPartition]] = {}
        for tp, exc in call.failed.items():
            reasons.setdefault(str(exc), []).append(tp)
        for tp in call.left:
            why = call.last.get(tp)
            reason = f"not within {timeout_s:g} s" + (f", last: {why}" if why is not None else "")
            reasons.setdefault(reason, []).append(tp)
        what = "; ".join(f"{_names(parts)} ({reason})" for reason, parts in reasons.items())
        fenced = self.committer is not None and any(
            exc.code is not None and react(MEMBER_COMMIT, exc.code) in FENCING for exc in call.failed.values()
        )
        error = (Fenced if fenced else CommitFailed)(f"group {self._group!r}: not committed: {what}")
        error.retriable = not call.failed
        return error


def _check(tp: TopicPartition, offset: Any) -> None:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 2**63:
        raise ConfigError(
            f"{tp.topic}:{tp.partition}: offset {offset!r} cannot be committed; give the offset of the next record to "
            "read, 0 or more. To take a committed offset away, stop the group and use Kafka's DeleteOffsets"
        )


def _some(callers: Iterable[PendingCommit], group: str) -> Offsets:
    """The part of their offsets that fits into one request, with the newest offset of each partition."""
    some: Offsets = {}
    room = MOST_BYTES
    for call in callers:
        for tp in some.keys() & call.left.keys():
            some[tp] = call.left[tp]
        for tp, value in call.left.items():
            if len(some) >= MOST_PARTITIONS or room <= 0:
                break
            if tp not in some:
                some[tp] = value
                room -= RECORD_BYTES + len(group) + len(tp.topic) + len(value.metadata or "")
    return some


def _names(partitions: Sequence[TopicPartition]) -> str:
    names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in nsmallest(NAMED, partitions))
    more = len(partitions) - NAMED
    return names if more <= 0 else f"{names} and {more} more"
