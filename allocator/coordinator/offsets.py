"""What a group has committed, and committing it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import OffsetFetchRequest

from allocator.coordinator.find import Coordinator
from allocator.coordinator.identity import Committer, Identity
from allocator.coordinator.messages import (
    ALL_PARTITIONS,
    OUTSIDE,
    commit_request,
    commit_results,
    fetch_request,
    fetch_results,
)
from allocator.coordinator.reactions import COMMIT, FETCH, MEMBER_COMMIT, Reaction, react
from allocator.errors import AllocatorError, BrokerError, CommitFailed, Fenced, NoOffsetsError
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.kafka_errors import for_code

__all__ = ["GroupOffsets"]

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, OffsetAndMetadata]

NO_MEMBER = 25  # as the coordinator says of a member that it does not know (any more)
FENCING = (Reaction.LOST, Reaction.RESET, Reaction.FENCED)  # no member, or not of this generation


class _Commit:
    """One call of `commit`: what is still to be committed, and what never will be."""

    def __init__(self, offsets: Offsets) -> None:
        self.left = offsets
        self.failed: dict[TopicPartition, BrokerError] = {}
        self.last: dict[TopicPartition, AllocatorError] = {}  # why a partition is still left


class GroupOffsets:
    """Committed offsets of one group, in Kafka's coordinator (or in ZooKeeper through any broker on 0.8.1).

    Guarantees: a commit that returned stands in Kafka; commits take effect in the order of the calls, since one
    request at a time is under way and what waits goes out together, later offsets over earlier ones. One exception:
    a broker that answers nothing for a whole request timeout may still apply what it was sent, after a newer commit;
    then records are read twice, none is lost.

    0.8.1 keeps the offset alone and drops its metadata without a word.

    With a `committer`, commits are those of a member of the group by Kafka's own protocol: they carry its generation
    and member id, the coordinator refuses them once that generation is over, and a partition that the member has
    given up meanwhile is not committed any more. Without one they are nobody's, and Kafka takes them from anybody
    while the group has no members by its own protocol.

    `retention_s` is how long commits are kept, None (and always on 0.8.2) for as long as the broker is configured to.

    `timeout_s` bounds each call, retries included. Use it from the loop of `client`, which stays the caller's to
    close; `close` waits for a request that a cancelled commit left under way.
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
    ) -> None:
        self.group = group
        self._retention_s = retention_s
        self.committer = committer
        self._client = client
        self._retry_backoff_s = retry_backoff_s
        self._timeout_s = timeout_s
        self._coordinator = Coordinator(client, group, retry_backoff_s)
        self._waiting: list[_Commit] = []
        self._turn: asyncio.Lock | None = None
        self._under_way: asyncio.Task[Any] | None = None

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
        """Wait for the request that is under way, if any; at most the request timeout. Idempotent."""
        if self._under_way is not None:
            await asyncio.gather(self._under_way, return_exceptions=True)

    # -- fetch ----------------------------------------------------------------------------------------------------

    async def fetch(self, partitions: Iterable[TopicPartition] | None) -> Offsets:
        """What is committed for these partitions; one that is absent from the answer has nothing committed.

        None asks for all; brokers before 0.10.2 are then asked about every partition of the cluster. Raises
        `NoOffsetsError` naming the cause if the coordinator refuses, or does not say within the timeout.
        """
        deadline = time.monotonic() + self._timeout_s
        if partitions is None:
            version = self._client.api_version(OffsetFetchRequest)
            if version is None or version < ALL_PARTITIONS:
                partitions = await self._all_partitions()
        left = None if partitions is None else set(partitions)
        found: Offsets = {}
        while left is None or left:
            try:
                left = await self._fetch_once(left, found, deadline)
            except BrokerError as exc:
                cause = exc
            else:
                if not left:
                    break
                some = min(left)
                cause = BrokerError(f"{some.topic}:{some.partition} is not available yet", retriable=True)
            if not cause.retriable or time.monotonic() >= deadline:
                error = NoOffsetsError(f"group {self.group!r}: its committed offsets cannot be read: {cause}")
                error.retriable = cause.retriable
                raise error from cause
            await asyncio.sleep(self._retry_backoff_s)
        return found

    async def _fetch_once(
        self, left: set[TopicPartition] | None, found: Offsets, deadline: float
    ) -> set[TopicPartition]:
        """Fills `found`; returns the partitions to ask about again. Raises `BrokerError`."""
        response = await self._coordinator.ask(fetch_request(self.group, left), deadline)
        if response.error_code:
            raise self._group_error(response.error_code)
        again = set()
        unknown = set()
        for tp, code, committed in fetch_results(response):
            if committed is not None:
                found[tp] = committed
            if code == 0:
                continue
            reaction = react(FETCH, code)
            if reaction is Reaction.CHECK_TOPIC:
                # v0 says so of every partition for which ZooKeeper holds nothing
                if response.API_VERSION > 0:
                    unknown.add(tp)
            elif reaction is Reaction.FAIL:
                raise for_code(code, f"{tp.topic}:{tp.partition}")
            else:
                if reaction is Reaction.REFIND:
                    self._coordinator.forget()
                again.add(tp)
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

    def _group_error(self, code: int) -> BrokerError:
        error = for_code(code, f"group {self.group!r}")
        reaction = react(FETCH, code)
        error.retriable = reaction is not Reaction.FAIL
        if reaction is Reaction.REFIND:
            self._coordinator.forget()
        return error

    # -- commit ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit each offset: the next record to read. Returns when all of them stand in Kafka.

        Retries what may succeed later, alone for the partitions concerned; metadata that is too large is left out
        with a warning. Raises `CommitFailed` naming the partitions that were not committed and why; the others are.
        It is `Fenced` if the group took one of them from the `committer`.
        A cancelled call may or may not have committed.
        """
        if not offsets:
            return
        deadline = time.monotonic() + self._timeout_s
        mine = _Commit(dict(offsets))
        self._waiting.append(mine)
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with self._turn:  # first come, first served
                # whoever went before may have committed ours along with its own
                while mine.left and time.monotonic() < deadline:
                    await self._commit_once(deadline)
        finally:
            self._waiting.remove(mine)
        if mine.failed or mine.left:
            raise self._commit_failed(mine)

    async def _commit_once(self, deadline: float) -> None:
        """One request with what all callers wait for now, and what its answer means to each of them."""
        if self._under_way is not None:  # a cancelled call's request: what it says must not come after ours
            await asyncio.wait({self._under_way})
        callers = list(self._waiting)
        identity = self._identity(callers)
        merged: Offsets = {}
        for call in callers:
            merged.update(call.left)
        if not merged:
            return
        request = commit_request(self.group, merged, identity, self._retention_s)
        try:
            self._under_way = asyncio.get_running_loop().create_task(self._coordinator.ask(request, deadline))
            self._under_way.add_done_callback(self._ended)
            response = await asyncio.shield(self._under_way)
        except BrokerError as exc:
            for call in callers:
                _note(call, call.left, exc, final=not exc.retriable)
            if exc.retriable:
                await asyncio.sleep(self._retry_backoff_s)
            return
        pause = False
        for tp, code, _ in commit_results(response):
            if tp not in merged:
                continue
            reaction = self._reaction(code, identity)
            if reaction is Reaction.DROP_METADATA:
                if merged[tp].metadata:
                    log.warning(
                        "%s:%s: its commit's metadata (%d characters) is too large for the broker; committing without",
                        tp.topic,
                        tp.partition,
                        len(merged[tp].metadata),
                    )
                    for call in callers:
                        if tp in call.left:
                            call.left[tp] = call.left[tp]._replace(metadata="")
                    continue
                reaction = Reaction.FAIL
            if reaction is Reaction.REFIND:
                self._coordinator.forget()
            pause = pause or reaction in (Reaction.RETRY, Reaction.REFIND)
            for call in callers:
                if tp not in call.left:
                    continue
                if reaction is None:
                    del call.left[tp]
                else:
                    _note(call, [tp], for_code(code, "the coordinator"), final=reaction is Reaction.FAIL)
        if pause:
            await asyncio.sleep(self._retry_backoff_s)

    def _identity(self, callers: Iterable[_Commit]) -> Identity:
        """Under whose name the next request goes out; what that one may not commit (any more) has failed."""
        if self.committer is None:
            return OUTSIDE
        identity = self.committer.identity
        for call in callers:
            foreign = [tp for tp in call.left if identity is None or not self.committer.may_commit(tp)]
            why = "this process is no member of the group" if identity is None else "this member does not hold it"
            _note(call, foreign, BrokerError(f"{why} (any more)", code=NO_MEMBER), final=True)
        return OUTSIDE if identity is None else identity

    def _reaction(self, code: int, sent: Identity) -> Reaction | None:
        """None for success, or one of those that a commit knows."""
        if code == 0:
            return None
        if self.committer is None:
            return react(COMMIT, code)
        reaction = react(MEMBER_COMMIT, code)
        if reaction not in (*FENCING, Reaction.REJOIN):
            return reaction
        self.committer.refused(code, sent)
        # a rebalance has begun, or ended while we asked: what is still held is committed in the next generation
        passing = reaction is Reaction.REJOIN or self.committer.identity not in (None, sent)
        return Reaction.RETRY if passing else Reaction.FAIL

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way = None
        if not task.cancelled():
            task.exception()  # seen: its caller may have been cancelled

    def _commit_failed(self, call: _Commit) -> CommitFailed:
        reasons: dict[str, list[str]] = {}
        for tp, exc in call.failed.items():
            reasons.setdefault(str(exc), []).append(f"{tp.topic}:{tp.partition}")
        for tp in call.left:
            why = call.last.get(tp)
            reason = f"not within {self._timeout_s:g} s" + (f", last: {why}" if why is not None else "")
            reasons.setdefault(reason, []).append(f"{tp.topic}:{tp.partition}")
        what = "; ".join(f"{', '.join(sorted(names))} ({reason})" for reason, names in reasons.items())
        fenced = self.committer is not None and any(
            exc.code is not None and react(MEMBER_COMMIT, exc.code) in FENCING for exc in call.failed.values()
        )
        error = (Fenced if fenced else CommitFailed)(f"group {self.group!r}: not committed: {what}")
        error.retriable = not call.failed
        return error


def _note(call: _Commit, partitions: Iterable[TopicPartition], exc: BrokerError, *, final: bool) -> None:
    for tp in list(partitions):
        if final:
            del call.left[tp]
            call.failed[tp] = exc
        else:
            call.last[tp] = exc
