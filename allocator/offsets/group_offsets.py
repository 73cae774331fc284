"""How long Kafka keeps a committed offset that is not committed again.

Kafka counts from the last commit where it knows no members of the group, and before 2.1 (KIP-211) for every group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from allocator.client.client import KafkaClient
from allocator.client.configs import BROKER_RESOURCE, describe_configs
from allocator.client.errors import COMMIT, FETCH, MEMBER_COMMIT, GroupReaction, for_code, react
from allocator.client.offset_commit import OffsetCommit, OffsetCommitAnswer
from allocator.errors import AllocatorError, BrokerError, CommitFailed, ConfigError, Fenced, NoOffsetsError
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.messages import (
    ALL_PARTITIONS,
    OUTSIDE,
    STABLE,
    Committer,
    Identity,
    commit_request,
    fetch_code,
    fetch_request,
    fetch_results,
)
from allocator.subscription.loss import as_committed, as_read
from allocator.types import OffsetAndMetadata, OnCommit, TopicPartition

__all__ = ["SHORTEST_DEFAULT_S", "Call", "CommitQueue", "GroupOffsets", "ask_retention"]

log = logging.getLogger(__name__)


SETTING: Final = "offsets.retention.minutes"


SHORTEST_DEFAULT_S: Final = 24 * 3600.0


"""Kafka's default up to 1.1; from 2.0 on it is seven days."""


RESPONSE_WITHIN_S: Final = 10.0


async def ask_retention(client: KafkaClient, coordinator: Coordinator, group: str) -> float | None:
    """Seconds, as the coordinator says; `SHORTEST_DEFAULT_S` where it never will (below 0.11, or without the right).

    None: not at this moment. It needs the right to DESCRIBE_CONFIGS of the cluster.
    """
    if client.api_version(DescribeConfigsRequest) is None:
        return SHORTEST_DEFAULT_S
    node = coordinator.node
    if node is None:
        return None
    try:
        found = await describe_configs(
            client, BROKER_RESOURCE, str(node), [SETTING], node=node, timeout_s=RESPONSE_WITHIN_S
        )
        return float(found[SETTING]) * 60
    except (AllocatorError, KeyError, ValueError) as error:
        log.debug("%s: the offset retention cannot be read: %s", group, error)
        return None if getattr(error, "retriable", False) else SHORTEST_DEFAULT_S


# -- commits ----------
# Commits of one group on their way: one request at a time, of a size that does not hold up the loop.


Offsets = dict[TopicPartition, OffsetAndMetadata]


UNKNOWN_ERROR = -1


NO_MEMBER = 25  # as the coordinator says of a member that it does not know (any more)


FENCING = (GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED)  # no member, or not of this generation


PASSING = (GroupReaction.REJOIN, GroupReaction.NEW_EPOCH)  # still a member, and soon one that may commit


# of one request. more: encoding it and reading the answer holds up the loop, and beyond `max.message.bytes` of the
# offsets topic the coordinator refuses it; less: more round trips. 500 partitions cost about 2 ms at a time.
MOST_PARTITIONS = 500


MOST_BYTES = 250_000


RECORD_BYTES = 100  # about what the offsets topic keeps of a partition, without its names and metadata


# more: a commit succeeds later after the coordinator was unable for a while; less: more requests to one that struggles
BACKOFF_MAX_S = 1.0


# of a partition, to "unknown server error", which may pass and may not. more: 0.8.1 has longer for its ZooKeeper;
# less: callers hear sooner of a coordinator that is broken
MOST_UNKNOWN = 5


NAMED = 10  # partitions that an error lists


class Call:
    """One call of `commit`: what is still to be committed, and what never will be.

    Raises ConfigError for an offset below 0: brokers store it, and have then forgotten the position.
    """

    def __init__(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for tp, value in offsets.items():
            _check(tp, value.offset)
        self.left: Offsets = dict(offsets)
        self.unknown: dict[TopicPartition, int] = {}  # how often the coordinator answered with an unknown error
        self.failed: dict[TopicPartition, BrokerError] = {}
        self.last: dict[TopicPartition, AllocatorError] = {}  # why a partition is still left

    def note(self, partitions: Iterable[TopicPartition], exc: BrokerError, *, final: bool) -> None:
        for tp in list(partitions):
            if tp not in self.left:
                continue
            if final:
                del self.left[tp]
                self.failed[tp] = exc
            else:
                self.left[tp] = self.left.pop(tp)  # behind those that were not tried yet
                self.last[tp] = exc


class CommitQueue:
    """Takes calls in order and sends them, later offsets over earlier ones; see `GroupOffsets` for the promises."""

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
        self._waiting: list[Call] = []
        self._turn: asyncio.Lock | None = None
        self._abandoned = False  # by a caller that was cancelled: a request may be under way
        self._failures = 0  # requests in a row after which to wait

    async def commit(self, call: Call, timeout_s: float) -> None:
        """`enter` and `finish`."""
        self.enter(call)
        await self.finish(call, timeout_s)

    def enter(self, call: Call) -> None:
        """From here on it has its place in the order; `finish` is to be awaited."""
        self._waiting.append(call)

    async def finish(self, call: Call, timeout_s: float) -> None:
        """Until all of it is committed. Raises `CommitFailed`."""
        with self._coordinator.measures.span("commit", partitions=len(call.left)):
            await self._finish(call, timeout_s)

    async def _finish(self, call: Call, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with self._turn:  # first come, first served
                # whoever went before may have committed ours along with its own
                while call.left and time.monotonic() < deadline:
                    await self._send_some(deadline)
        finally:
            self.withdraw(call)
        if call.failed or call.left:
            raise self._failure(call, timeout_s)

    def withdraw(self, call: Call) -> None:
        """No request from now on has anything of it."""
        if call in self._waiting:
            self._waiting.remove(call)

    async def settled(self) -> None:
        """Wait for the request that a cancelled caller left under way, if any."""
        if self._abandoned:
            await self._coordinator.settled(OffsetCommit)

    async def close(self) -> None:
        """Wait for the request that is under way, if any."""
        await self._coordinator.settled(OffsetCommit)

    # -- one request ----------------------------------------------------------------------------------------------

    async def _send_some(self, deadline: float) -> None:
        """One request with what callers wait for now, and what its answer means to each of them."""
        if self._abandoned:  # what it says must not come after ours
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
        """Before the next request: longer with each failure in a row, and not past the deadline."""
        pause_s = min(BACKOFF_MAX_S, self._retry_backoff_s * (1 << min(self._failures, 10)))
        self._failures += 1
        await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))

    def _read(self, response: OffsetCommitAnswer, callers: Sequence[Call], sent: Offsets, identity: Identity) -> bool:
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

    def _identity(self, callers: Iterable[Call], some: Offsets) -> Identity:
        """Under whose name the next request goes out; what that one may not commit (any more) has failed."""
        if self.committer is None:
            return OUTSIDE
        identity, may_commit = self.committer.identity, self.committer.may_commit
        foreign = [tp for tp in some if identity is None or not may_commit(tp)]
        if foreign:
            why = "this process is no member of the group" if identity is None else "this member does not hold it"
            error = BrokerError(f"{why} (any more)", code=NO_MEMBER)
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
        # a rebalance has begun, or ended while we asked: what is still held is committed in the next generation
        return GroupReaction.RETRY if self.committer.refused(code, sent) else GroupReaction.FAIL

    def _failure(self, call: Call, timeout_s: float) -> CommitFailed:
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


def _some(callers: Iterable[Call], group: str) -> Offsets:
    """As much of what they wait for as fits into one request, with the newest offset of each partition."""
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


# -- offsets ----------
# What a group has committed, and committing it.


class GroupOffsets:
    """Committed offsets of one group, in Kafka's coordinator (or in ZooKeeper through any broker on 0.8.1).

    Guarantees: a commit that returned stands in Kafka; commits take effect in the order of the calls, since one
    request at a time is under way and what waits goes out together, later offsets over earlier ones; many partitions
    go out as several requests, so that the loop is never held up for long. One exception: a broker that answers
    nothing for a whole request timeout may still apply what it was sent, after a newer commit; then records are read
    twice, none is lost.

    0.8.1 keeps the offset alone and drops its metadata without a word.

    With a `committer`, commits are those of a member of the group by Kafka's own protocol: they carry its generation
    and member id, the coordinator refuses them once that generation is over, and a partition that the member has
    given up meanwhile is not committed any more. Without one they are nobody's, and Kafka takes them from anybody
    while the group has no members by its own protocol.

    `retention_s` is how long commits are kept, None (and always on 0.8.2) for as long as the broker is configured to.

    `in_zookeeper`: where clients before 0.8.2 keep them (and kiel always), through any broker up to Kafka 3.x.

    `on_commit` is called with the result of each `commit_async` that has no callback of its own.

    `coordinator` is given where a membership looks for the same one. `timeout_s` bounds each call, retries included.
    Use it from the loop of `client`, which stays the caller's to close; `close` waits for a request that a cancelled
    commit left under way.
    """

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        *,
        retry_backoff_s: float = 0.1,
        timeout_s: float = 30.0,
        committer: Committer | None = None,
        retention_s: float | None = None,
        on_commit: OnCommit | None = None,
        coordinator: Coordinator | None = None,
        in_zookeeper: bool = False,
    ) -> None:
        self.group = group
        self._client = client
        self._retry_backoff_s = retry_backoff_s
        self._timeout_s = timeout_s
        self._on_commit = on_commit
        self._retention = retention_s
        self._coordinator = coordinator or Coordinator(client, group, retry_backoff_s)
        self._commits = CommitQueue(
            self._coordinator,
            group,
            retry_backoff_s=retry_backoff_s,
            committer=committer,
            retention_s=retention_s,
            in_zookeeper=in_zookeeper,
        )
        self._in_zookeeper = in_zookeeper
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def committer(self) -> Committer | None:
        """Whose commits these are; None: nobody's."""
        return self._commits.committer

    @committer.setter
    def committer(self, committer: Committer | None) -> None:
        self._commits.committer = committer

    @property
    def coordinator(self) -> int | None:
        """Node id of the coordinator, None while unknown (always, on 0.8.1)."""
        return self._coordinator.node

    async def find(self) -> int | None:
        """Find the coordinator anew, now; None on 0.8.1, which has none. Raises `NoOffsetsError` when refused."""
        self._coordinator.forget()
        try:
            return await self._coordinator.find(time.monotonic() + self._timeout_s)
        except BrokerError as exc:
            error = NoOffsetsError(f"group {self.group!r} has no coordinator: {exc}")
            error.retriable = exc.retriable
            raise error from exc

    async def close(self) -> None:
        """Wait for what `commit_async` began and for the request under way; at most the timeout. Idempotent."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._commits.close()

    async def retention_s(self) -> float | None:
        """Seconds that Kafka keeps a committed offset (see `ask_retention`); None if it cannot tell at present."""
        told = self._retention
        return await ask_retention(self._client, self._coordinator, self.group) if told is None else told

    async def settled(self) -> None:
        """Until no request of a commit that was cancelled is under way."""
        await self._commits.settled()

    # -- fetch ----------------------------------------------------------------------------------------------------

    async def fetch(self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False) -> Offsets:
        """What is committed for these partitions; one that is absent from the answer has nothing committed.

        None asks for all; brokers before 0.10.2 are then asked about every partition of the cluster.
        `require_stable`: waits for open transactions that may still commit an offset of one of them (KIP-447), which
        brokers from 2.5 on can tell; without it, what was committed before such a transaction is returned.

        Raises `NoOffsetsError` naming the cause if the coordinator refuses, does not say within the timeout, or is too
        old for `require_stable`.
        """
        deadline = time.monotonic() + self._timeout_s
        version = self._client.api_version(OffsetFetchRequest)
        if require_stable and (version is None or version < STABLE):
            raise NoOffsetsError(
                f"group {self.group!r}: the brokers are older than 2.5 and do not tell which offsets an open "
                "transaction may still change; fetch without require_stable"
            )
        if partitions is None and (self._in_zookeeper or version is None or version < ALL_PARTITIONS):
            partitions = await self._all_partitions()
        left = None if partitions is None else set(partitions)
        found: Offsets = {}
        while left is None or left:
            refused: dict[TopicPartition, int] = {}
            again: set[TopicPartition] = set()
            asked = None if left is None else set(islice(left, MOST_PARTITIONS))
            try:
                again = await self._fetch_once(asked, found, refused, deadline, require_stable)
            except BrokerError as exc:
                cause = exc
            else:
                left = again if left is None or asked is None else (left - asked) | again
                if not again:
                    continue
                some = min(again)
                cause = BrokerError(f"{some.topic}:{some.partition} is not available yet", retriable=True)
            if not cause.retriable or time.monotonic() >= deadline:
                error = NoOffsetsError(f"group {self.group!r}: its committed offsets cannot be read: {cause}")
                error.retriable = cause.retriable
                error.partitions = frozenset(refused or again)
                raise error from cause
            await asyncio.sleep(self._retry_backoff_s)
        return found

    async def _fetch_once(
        self,
        asked: set[TopicPartition] | None,
        found: Offsets,
        refused: dict[TopicPartition, int],
        deadline: float,
        require_stable: bool,
    ) -> set[TopicPartition]:
        """Fills `found` and `refused` (code by partition); returns the partitions to ask about again.

        Raises `BrokerError`, also when a partition is refused.
        """
        identity = (self.committer.identity if self.committer is not None else None) or OUTSIDE
        request = fetch_request(
            self.group, asked, require_stable=require_stable, identity=identity, in_zookeeper=self._in_zookeeper
        )
        response = await self._coordinator.ask(request, deadline)
        if fetch_code(response):
            raise self._group_error(fetch_code(response), identity)
        again = set()
        unknown = set()
        for tp, code, committed in fetch_results(response):
            if committed is not None:
                metadata = as_read(committed.metadata or "", self._client.metadata.cluster_id)
                found[tp] = committed._replace(metadata=metadata)
            if code == 0:
                continue
            reaction = react(FETCH, code)
            if reaction is GroupReaction.CHECK_TOPIC:
                # v0 says so of every partition for which ZooKeeper holds nothing
                if response.API_VERSION > 0:
                    unknown.add(tp)
            elif reaction is GroupReaction.FAIL:
                refused[tp] = code
            else:
                if reaction is GroupReaction.REFIND:
                    self._coordinator.forget()
                again.add(tp)
        if refused:
            some = min(refused)
            raise for_code(refused[some], f"{some.topic}:{some.partition}")
        if unknown:
            # A coordinator that has just started says this of partitions it has not heard of yet. Believing it would
            # restart them from the beginning, or from the end.
            await self._refresh({tp.topic for tp in unknown})
            again |= {tp for tp in unknown if tp.partition in (self._client.partitions(tp.topic) or ())}
        return again

    async def _all_partitions(self) -> set[TopicPartition]:
        await self._refresh(())  # such old brokers list all topics whichever are asked for
        topics = self._client.topics()
        return {TopicPartition(t, p) for t in topics for p in self._client.partitions(t) or ()}

    async def _refresh(self, topics: Iterable[str]) -> None:
        try:
            await self._client.refresh(topics)
        except AllocatorError as exc:
            raise BrokerError(str(exc), retriable=exc.retriable) from exc

    def _group_error(self, code: int, asker: Identity) -> BrokerError:
        error = for_code(code, f"group {self.group!r}")
        reaction = react(FETCH, code)
        error.retriable = reaction is not GroupReaction.FAIL
        if reaction is GroupReaction.REFIND:
            self._coordinator.forget()
        if asker.by_epoch and self.committer is not None and code in MEMBER_COMMIT:
            self.committer.refused(code, asker)  # who asks again has another epoch then, or is no member
        return error

    # -- commit ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit each offset: the next record to read. Returns when all of them stand in Kafka.

        Retries what may succeed later, alone for the partitions concerned; metadata that is too large is left out
        with a warning. Raises `CommitFailed` naming the partitions that were not committed and why; the others are.
        It is `Fenced` if the group took one of them from the `committer`. Raises `ConfigError` for an offset below 0,
        before anything is sent. A cancelled call may or may not have committed.
        """
        if not offsets:
            return
        await self._commits.commit(self._call(offsets), self._timeout_s)

    def _call(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Call:
        cluster = self._client.metadata.cluster_id
        return Call(
            {tp: each._replace(metadata=as_committed(each.metadata or "", cluster)) for tp, each in offsets.items()}
        )

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: OnCommit | None = None
    ) -> asyncio.Task[None]:
        """As `commit`, without waiting for it: it has its place in the order when this returns.

        `callback` (else `on_commit`, else a line in the log for a failure) is called with the offsets and None, or
        what `commit` would raise; what it raises itself is logged. The task may be awaited for the same result;
        `close` waits for it.
        """
        call = self._call(offsets)
        self._commits.enter(call)
        work = self._commits.finish(call, self._timeout_s)
        task = asyncio.get_running_loop().create_task(work, name="commit")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._committed(done, call, offsets, callback or self._on_commit))
        return task

    def _committed(
        self,
        task: asyncio.Task[None],
        call: Call,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        callback: OnCommit | None,
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._commits.withdraw(call)  # it may not even have begun
            return
        error = task.exception()
        try:
            if error is not None and not isinstance(error, AllocatorError):
                log.error("group %s: a commit ended with an error of ours", self.group, exc_info=error)
            elif callback is not None:
                callback(offsets, error)
            elif error is not None:
                log.error("%s", error)
        except Exception:
            log.exception("group %s: the callback of a commit failed", self.group)
