"""Fetches and commits the offsets of a group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.tasks import start_task
from allocator.core.client import protocol
from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.client.errors import COMMIT, OFFSET_FETCH, ErrorCode, Reaction, RequestFailed, for_code, reaction_to
from allocator.core.client.offset_commit import OffsetCommit, OffsetCommitResponse
from allocator.core.client.offset_messages import (
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
from allocator.core.errors import AllocatorError, BrokerError, CommitFailed, Fenced, NoOffsetsError
from allocator.core.offsets.pending_commit import (
    MOST_PARTITIONS,
    TERMS,
    Offsets,
    PendingCommit,
    Terms,
    ToCommit,
    take_some,
)
from allocator.core.subscription.commit_text import as_committed, as_read, topic_of
from allocator.core.text.quoting import partition_names
from allocator.core.types import Partitions, TopicPartition

log = logging.getLogger(__name__)

# longest pause between two commit requests. Higher: a commit takes longer after the coordinator failed; lower: more
# requests to an overloaded coordinator
BACKOFF_MAX_S = 1.0
# retries of a partition after UNKNOWN_SERVER_ERROR, which may be temporary. Higher: 0.8.1 has more time for its
# ZooKeeper; lower: callers get the error of a broken coordinator sooner
MOST_UNKNOWN = 5


SILENT: Final = "the coordinator does not respond"


class GroupOffsets:
    """The committed offsets of one group.

    Guarantees:
    - When `commit` returns, Kafka has stored the offsets.
    - Commits take effect in the order of the calls. One request is in flight at a time. Commits that wait meanwhile
      share the next request, and later offsets replace earlier ones. Many partitions take several requests, so that
      encoding does not block the event loop for long.
    - Exception: a broker that does not respond within the request timeout may still apply that request after a newer
      commit. Then records are read twice, and none is lost.

    With a `committer`, commits carry the generation and id of that member of a Kafka group. The coordinator refuses
    them after the generation has ended, and partitions that the member has released are not committed. Without it,
    commits carry no member. Kafka accepts these while it knows no members of the group.

    `retention_s`: seconds that Kafka keeps the commits; None: the broker's setting, which 0.8.2 always uses.
    `in_zookeeper`: store offsets in ZooKeeper, as kiel and clients before 0.8.2 do, through any broker up to Kafka 3.
    0.8.1 always stores them there, and drops the metadata. `coordinator`: the coordinator of a membership of the same
    group, to share it. `timeout_s` bounds each call with its retries.

    Use it in the event loop of `client`, which the caller closes. `close` waits for the request of a cancelled commit.
    """

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        *,
        timeout_s: float = 30.0,
        committer: Committer | None = None,
        retention_s: float | None = None,
        coordinator: Coordinator | None = None,
        in_zookeeper: bool = False,
    ) -> None:
        self.group = group
        self._client = client
        self._timeout_s = timeout_s
        self._retention = retention_s
        self.coordinator = coordinator or Coordinator(client, group, client.retry_backoff_s)
        self.committer = committer
        """The member whose identity commits carry; None: commits carry no member."""
        self._in_zookeeper = in_zookeeper
        self._tasks: set[asyncio.Task[None]] = set()  # tasks of `commit_async`
        self._waiting: list[PendingCommit] = []  # in the order of the calls
        self._turn: asyncio.Lock | None = None
        self._abandoned = False  # the request of a cancelled call may still be in flight
        self._backoff = Backoff(client.retry_backoff_s, BACKOFF_MAX_S)  # after failed commit requests

    @property
    def may_expire(self) -> bool:
        """Whether Kafka deletes an idle offset of a group with members: it does not know the members, or its brokers
        do not look at them (before KIP-211)."""
        return self.committer is None or self._client.broker_version < (2, 1)

    async def find(self) -> int | None:
        """Finds the coordinator again and returns its node id; None on 0.8.1, which has no coordinator. Raises
        NoOffsetsError."""
        self.coordinator.forget()
        try:
            return await self.coordinator.find(time.monotonic() + self._timeout_s)
        except BrokerError as exc:
            error = NoOffsetsError(f"group {self.group!r} has no coordinator: {exc}")
            error.retriable = exc.retriable
            raise error from exc

    async def close(self) -> None:
        """Waits for every `commit_async` and for the request in flight, at most until its timeout. Idempotent."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.settled(OffsetCommit)

    async def retention_s(self) -> float | None:
        """Returns the seconds that Kafka keeps a committed offset (see `Coordinator.retention_s`)."""
        return await self.coordinator.retention_s() if self._retention is None else self._retention

    def pending(self, partitions: Partitions | None) -> set[asyncio.Future[None]]:
        """Returns the ends of the commits of these partitions, or of all, that wait or are in flight."""
        return {call.ended for call in self._waiting if partitions is None or not partitions.isdisjoint(call.left)}

    async def settled(self, partitions: Partitions) -> None:
        """Waits until no commit of these partitions waits or is in flight, including cancelled ones."""
        while ends := self.pending(partitions):
            await asyncio.wait(ends)
        if self._abandoned:
            await self._client.settled(OffsetCommit)

    # -- fetch ----------------------------------------------------------------------------------------------------

    async def fetch(self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False) -> Offsets:
        """Returns the committed offsets of these partitions. A partition without an offset is absent.

        `partitions` None: all offsets of the group. Brokers before 0.10.2 cannot list them, so the request names every
        partition of the cluster. `require_stable`: wait for open transactions that may change one of the offsets
        (KIP-447, brokers from 2.5 on); without it, the result has the offsets from before such a transaction.

        Raises `NoOffsetsError` with the cause if the coordinator refuses, does not respond in time, or is too old for
        `require_stable`.
        """
        deadline = time.monotonic() + self._timeout_s
        version = self._client.api_version(protocol.OffsetFetchRequest)
        if require_stable and (version is None or version < STABLE):
            raise NoOffsetsError(
                f"group {self.group!r}: the brokers are older than 2.5 and cannot wait for "
                "open transactions; fetch without require_stable"
            )
        if partitions is None and (self._in_zookeeper or version is None or version < ALL_PARTITIONS):
            partitions = await self._all_partitions()
        left = None if partitions is None else set(partitions)
        found: Offsets = {}
        while left is None or left:
            refused: dict[TopicPartition, int] = {}
            again: set[TopicPartition] = set()
            wanted = None if left is None else set(islice(left, MOST_PARTITIONS))
            try:
                again = await self._fetch_once(wanted, found, refused, deadline, require_stable)
            except BrokerError as exc:
                cause = exc
            else:
                left = again if left is None or wanted is None else (left - wanted) | again
                if not again:
                    continue
                some = min(again)
                why = ": a transaction may still change it" if require_stable else ""
                cause = BrokerError(f"{some.topic}:{some.partition} is not available yet{why}", retriable=True)
            if not cause.retriable or time.monotonic() >= deadline:
                error = NoOffsetsError(f"group {self.group!r}: its committed offsets cannot be read: {cause}")
                error.retriable = cause.retriable
                error.partitions = frozenset(refused or again)
                raise error from cause
            await asyncio.sleep(self._client.retry_backoff_s)
        return found

    def of_former_topics(self, committed: Offsets) -> frozenset[TopicPartition]:
        """Returns the partitions whose topic was deleted and created again after their commit."""
        ids = {tp: (topic_of(at.metadata), self._client.topic_id(tp.topic)) for tp, at in committed.items()}
        return frozenset(tp for tp, (then, now) in ids.items() if None not in (then, now) and then != now)

    async def _fetch_once(
        self,
        wanted: set[TopicPartition] | None,
        found: Offsets,
        refused: dict[TopicPartition, int],
        deadline: float,
        require_stable: bool,
    ) -> set[TopicPartition]:
        """Sends one request. Fills `found` and `refused` (error code by partition); returns the partitions to retry.

        Raises `BrokerError`, also if a partition is refused.
        """
        identity = (self.committer.identity if self.committer is not None else None) or OUTSIDE
        request = fetch_request(
            self.group, wanted, require_stable=require_stable, identity=identity, in_zookeeper=self._in_zookeeper
        )
        response = await self.coordinator.send(request, deadline)
        if fetch_code(response):
            raise self._group_error(fetch_code(response), identity)
        again = set() if wanted is None else set(wanted)  # a partition that the response omits may have an offset
        unknown = set()
        with self._client.reading(self.coordinator.node, protocol.OffsetFetchRequest):
            results = list(fetch_results(response))
        for tp, code, committed in results:
            again.discard(tp)
            if committed is not None:
                metadata = as_read(committed.metadata or "", self._client.metadata.cluster_id)
                found[tp] = committed._replace(metadata=metadata)
            if code == 0:
                continue
            reaction = reaction_to(code, OFFSET_FETCH)
            if reaction is Reaction.CHECK_TOPIC:
                # v0 sends this code for every partition without an offset in ZooKeeper
                if response.API_VERSION > 0:
                    unknown.add(tp)
            elif reaction is Reaction.FAIL:
                refused[tp] = code
            else:
                if reaction is Reaction.REFIND:
                    self.coordinator.forget()
                again.add(tp)
        if refused:
            some = min(refused)
            error = for_code(refused[some], f"{some.topic}:{some.partition}")
            # in v0, a broker that cannot reach ZooKeeper
            error.retriable |= response.API_VERSION == 0 and {*refused.values()} == {ErrorCode.UNKNOWN_SERVER_ERROR}
            raise error
        if unknown:
            # A coordinator that has just started sends this code for partitions that it does not know yet. If that
            # counted as "no offset", these partitions would be read from the start or the end.
            await self._refresh({tp.topic for tp in unknown})
            again |= {tp for tp in unknown if tp.partition in (self._client.partitions(tp.topic) or ())}
        return again

    async def _all_partitions(self) -> set[TopicPartition]:
        await self._refresh(())  # such old brokers return all topics, whatever the request names
        topics = self._client.topics()
        return {TopicPartition(t, p) for t in topics for p in self._client.partitions(t) or ()}

    async def _refresh(self, topics: Iterable[str]) -> None:
        try:
            await self._client.refresh(topics)
        except AllocatorError as exc:
            raise BrokerError(str(exc), retriable=exc.retriable) from exc

    def _group_error(self, code: int, sender: Identity) -> BrokerError:
        error = for_code(code, f"group {self.group!r}")
        reaction = reaction_to(code, OFFSET_FETCH)
        error.retriable = reaction is not Reaction.FAIL
        if reaction is Reaction.REFIND:
            self.coordinator.forget()
        if sender.by_epoch and self.committer is not None:
            self.committer.refused(code, sender)  # the next request then has another epoch, or no member
        return error

    # -- commit ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: ToCommit, terms: Terms = TERMS) -> None:
        """Commits the offset of the next record to read of each partition. Returns when Kafka has stored them.

        Calls `offsets`, if it is a function, and `terms.refusals` before each request is written, because retries and
        connecting may outlast the ownership of a partition, or a newer offset may be known.

        Retries partitions that may succeed later, but not partitions that the cluster does not have. Drops metadata
        that is too large, with a warning. Raises `CommitFailed` with the partitions that were not committed and the
        reasons; all others were committed. The error is `Fenced` if the member no longer holds one of them. Raises
        `ConfigError` for an offset below 0, before anything is sent. A cancelled call may have committed.
        """
        if offsets:
            await self._finish(self._enter(offsets, terms))

    def commit_async(self, offsets: ToCommit, terms: Terms = TERMS) -> asyncio.Task[None]:
        """Starts a commit and returns its task, whose error the caller handles. `close` waits for it.

        When this returns, the order of the commit is fixed.
        """
        call = self._enter(offsets, terms)
        task = start_task(self._finish(call), "commit")
        task.add_done_callback(lambda _: self._withdraw(call))  # the task may be cancelled before it starts
        return self._kept(task)

    def _kept(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _enter(self, offsets: ToCommit, terms: Terms) -> PendingCommit:
        """Adds a commit to the queue, which fixes its order; the caller then awaits `_finish`."""
        call = PendingCommit(offsets, terms)
        self._waiting.append(call)
        return call

    def text(self, metadata: str) -> str:
        """Returns the metadata of an offset as it is sent."""
        return as_committed(metadata, self._client.metadata.cluster_id)

    async def _finish(self, call: PendingCommit) -> None:
        """Returns when all offsets of `call` are committed. Raises `CommitFailed`."""
        deadline = time.monotonic() + self._timeout_s
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            with self._client.measures.span("commit", partitions=len(call.left)):
                async with self._turn:  # first come, first served
                    # an earlier call's request may already have committed these offsets
                    while self._is_left(call) and time.monotonic() < deadline and not self._gives_up(call):
                        await self._send_some(call, deadline)
                if call.failed or call.left:
                    raise self._failure(call)
        finally:
            self._withdraw(call)

    def _gives_up(self, call: PendingCommit) -> bool:
        return call.tried and self.coordinator.silent_s > call.terms.patience_s

    def _is_left(self, call: PendingCommit) -> bool:
        """Lets the waiting calls choose their offsets. Returns whether this call has some to commit."""
        for each in self._waiting:
            if each.choice is not None:
                each.replace(dict(each.choice(each.over)))
        return bool(call.left)

    def _withdraw(self, call: PendingCommit) -> None:
        """Removes this commit from the queue, so that later requests leave it out."""
        if call in self._waiting:
            self._waiting.remove(call)
        if not call.ended.done():
            call.ended.set_result(None)

    async def _send_some(self, caller: PendingCommit, deadline: float) -> None:
        """Sends one request with the offsets of all waiting calls, and notes its result in each call.

        Then pauses if `caller` has to repeat it.
        """
        if self._abandoned:  # an earlier request must not take effect after this one
            await self._client.settled(OffsetCommit)
            self._abandoned = False
        callers = list(self._waiting)
        if any(error.retriable for error in _refuse(callers)):
            await self._pause(deadline)
            return
        senders = take_some(callers, self.group)
        some = {tp: call.left[tp] for tp, call in senders.items()}
        identity = self._identity(callers, some)
        if not some:
            return
        request = commit_request(
            self.group, some, identity, self._retention, in_zookeeper=self._in_zookeeper, text=self.text
        )

        def check() -> None:
            # the member may lose a partition while it looks for the coordinator or connects to it
            if _refuse(callers):
                raise RequestFailed("not sent: the lease is not valid, or partitions were lost")

        request.check = check
        for call in callers:
            call.tried = True
        try:
            # the calls choose again before each request, and may give up while no coordinator is found
            response = await self.coordinator.send(request, deadline, lookup_s=self.coordinator.patience_s)
        except asyncio.CancelledError:
            self._abandoned = True
            raise
        except BrokerError as exc:
            for call in callers:
                call.note(call.left, exc, final=not exc.retriable)
            if exc.retriable and not self._gives_up(caller):
                await self._pause(deadline)
            return
        pause = self._read(response, senders, callers, some, identity)
        if not pause:
            self._backoff.reset()
            return
        unknown = {tp for tp, code in response.results.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if unknown:
            await self._give_up_deleted(callers, unknown)
        await self._pause(deadline)

    async def _give_up_deleted(self, callers: Sequence[PendingCommit], unknown: set[TopicPartition]) -> None:
        """Fails the commits of partitions in `unknown` that the cluster does not have.

        The metadata must lack a partition twice, because some brokers learn of a new topic later than others.
        """
        try:
            await self._refresh({tp.topic for tp in unknown})
        except BrokerError as exc:
            log.debug("group %s: cannot read the metadata of topics unknown to the coordinator: %s", self.group, exc)
            return
        for tp in unknown:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            known = tp.partition in (self._client.partitions(tp.topic) or ())
            if known or self._client.metadata.errors.get(tp.topic, code) != code:
                continue
            error = BrokerError("the cluster does not have this partition (any more)", code=code)
            for call in callers:
                if tp in call.left:
                    call.missing[tp] = call.missing.get(tp, 0) + 1
                    call.note([tp], error, final=call.missing[tp] > 1)

    async def _pause(self, deadline: float) -> None:
        """Pauses before the next request: longer after each failure in a row, but at most until the deadline."""
        await asyncio.sleep(max(0.0, min(self._backoff.next(), deadline - time.monotonic())))

    def _read(
        self,
        response: OffsetCommitResponse,
        senders: Mapping[TopicPartition, PendingCommit],
        callers: Sequence[PendingCommit],
        sent: Offsets,
        identity: Identity,
    ) -> bool:
        """Notes the results of a response in the calls. Returns whether to pause before the next request."""
        pause = False
        errors: dict[int, BrokerError] = {}
        codes = response.results
        stored = {tp: offset for tp, offset in sent.items() if codes.get(tp) == 0}
        for call in callers:
            call.confirm(stored, senders)
        if len(stored) == len(sent):
            return False
        for tp, code in codes.items():
            if code == 0 or tp not in sent:
                continue
            kept = None if self.committer is None else self.committer.refused(code, identity)
            # after a rebalance, partitions that the member still holds are committed in the next generation
            reaction = reaction_to(code, COMMIT) if kept is None else Reaction.RETRY if kept else Reaction.FAIL
            if reaction is Reaction.DROP_METADATA:
                if sent[tp].metadata:
                    log.warning(
                        "group %s: the metadata of %s:%d is too large (%d characters), committing without it",
                        self.group,
                        tp.topic,
                        tp.partition,
                        len(sent[tp].metadata),
                    )
                    for call in callers:
                        call.drop_metadata(tp)
                    continue
                reaction = Reaction.FAIL
            if reaction is Reaction.REFIND:
                self.coordinator.forget()
            pause = pause or reaction is not Reaction.FAIL
            error = errors.setdefault(code, _refusal(code, identity))
            for call in callers:
                final = reaction is Reaction.FAIL
                if code == ErrorCode.UNKNOWN_SERVER_ERROR and tp in call.left:
                    call.unknown[tp] = call.unknown.get(tp, 0) + 1
                    final = final or call.unknown[tp] > MOST_UNKNOWN
                call.note([tp], error, final=final, fenced=kept is False)
        omitted = sent.keys() - codes.keys()
        if omitted:
            error = BrokerError("the coordinator's response omits it", retriable=True)
            for call in callers:
                call.note(omitted, error, final=False)
        return pause or bool(omitted)

    def _identity(self, callers: Iterable[PendingCommit], some: Offsets) -> Identity:
        """Returns the identity for the next request. Removes partitions from `some` that the member may not commit."""
        if self.committer is None:
            return OUTSIDE
        identity, may_commit = self.committer.identity, self.committer.may_commit
        foreign = [tp for tp in some if identity is None or not may_commit(tp)]
        if foreign:
            why = "this process is not a member of the group" if identity is None else "this member does not hold it"
            error = BrokerError(f"{why} (any more)", code=ErrorCode.UNKNOWN_MEMBER_ID)
            for call in callers:
                call.note(foreign, error, final=True, fenced=True)
            for tp in foreign:
                del some[tp]
        return OUTSIDE if identity is None else identity

    def _failure(self, call: PendingCommit) -> CommitFailed:
        reasons: dict[str, list[TopicPartition]] = {}
        for tp, exc in call.failed.items():
            reasons.setdefault(str(exc), []).append(tp)
        for tp in call.left:
            why = call.last.get(tp)
            limit = SILENT if self._gives_up(call) else f"not within {self._timeout_s:g} s"
            reason = limit + (f", last: {why}" if why is not None else "")
            reasons.setdefault(reason, []).append(tp)
        what = "; ".join(f"{partition_names(partitions)} ({reason})" for reason, partitions in reasons.items())
        codes = {tp: exc.code for tp, exc in call.failed.items()}
        denied = {tp.topic for tp, code in codes.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        kind = Fenced if call.fenced else CommitFailed
        error = kind(f"group {self.group!r}: not committed: {what}", denied=denied)
        # retriable: a deleted topic may be created again
        error.retriable = all(code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for code in codes.values())
        return error


def _refuse(callers: Iterable[PendingCommit]) -> list[BrokerError]:
    """Gives up the offsets that may never be sent. Returns the errors of all that may not be sent now."""
    return [error for call in callers for error in call.withdraw_refused()]


def _refusal(code: int, identity: Identity) -> BrokerError:
    if code == ErrorCode.UNKNOWN_MEMBER_ID and identity is OUTSIDE:
        why = "members of Kafka's own group protocol are in this group, and then it takes commits of no other client"
        return BrokerError(why, code=ErrorCode.UNKNOWN_MEMBER_ID)
    return for_code(code, "the coordinator")
