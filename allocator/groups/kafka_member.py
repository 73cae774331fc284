"""What a member does whichever of Kafka's two group protocols it speaks: join, hold, release, lose, leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from allocator.client.client import KafkaClient
from allocator.errors import BrokerError, BrokersUnavailable
from allocator.groups.lease import Lease
from allocator.groups.membership import AssignmentListener, GroupMembership
from allocator.offsets.messages import Committer, Identity
from allocator.tasks import TaskGroup
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

__all__ = ["KafkaLease", "KafkaMember"]

log = logging.getLogger(__name__)


NO_COORDINATOR = 15  # also as long as the offsets topic cannot be created


class GroupProtocol(Protocol):
    """The protocol beneath. Caller: `KafkaMember`."""

    closing: bool

    @property
    def coordinator(self) -> int | None: ...

    @property
    def identity(self) -> Identity | None: ...

    async def run(self, joined: asyncio.Future[None]) -> None: ...

    def leave(self) -> None: ...

    def polled(self) -> None: ...

    @property
    def failure(self) -> BrokerError | None: ...

    def refused(self, code: int, sent: Identity) -> bool: ...


class KafkaMember(GroupMembership):
    """The part of a `Membership` and of a `Committer` that both protocols share; the others say what they want, and
    what an assignment means."""

    _group: GroupProtocol

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        owner: AssignmentListener,
        connect_timeout_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.ended: BaseException | None = None
        """What ended this membership for good, other than `leave`."""
        self._client = client
        self._group_name = group
        self._owner = owner
        self._connect_timeout_s = connect_timeout_s
        self._held: Partitions = NO_PARTITIONS
        self._draining: Partitions = NO_PARTITIONS
        self._lease = KafkaLease(group, owner, clock)
        self._last_error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> Partitions:
        return self._held

    def may_act(self) -> bool:
        # without an identity the coordinator has refused this member: what it held may have another owner by now
        return self._group.identity is not None and self._lease.valid

    def polled(self) -> None:
        """The user is alive (only with `max_poll_interval_s`)."""
        self._group.polled()

    # -- begin and end --------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Becomes a member and waits for its first assignment, or for a rebalance that takes longer.

        Raises what prevents it: `BrokersUnavailable` when no coordinator was found in time, `ConfigError` for what the
        brokers or the group do not have, or `BrokerError` when the coordinator refuses.
        """
        if self._task is not None:
            raise RuntimeError("join() was called already")
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run(joined), name="membership")
        try:
            await asyncio.wait({joined}, timeout=self._connect_timeout_s)
            if not joined.done():
                failure = self._group.failure
                if self._group.coordinator is None:
                    where = f"group {self._group_name!r}"
                    if failure is None:
                        raise BrokersUnavailable(f"{where} has no coordinator after {self._connect_timeout_s:g} s")
                    hint = "; is the offsets topic available?" if failure.code == NO_COORDINATOR else ""
                    raise BrokersUnavailable(
                        f"{where} could not be joined within {self._connect_timeout_s:g} s; last: {failure}{hint}"
                    )
                log.info(
                    "%s: no assignment yet; this member gets its part when there is one%s",
                    self._group_name,
                    f" (last: {failure})" if failure is not None else "",
                )
                joined.set_result(None)
            joined.result()
        except BaseException:
            await self._abandon()
            raise

    async def leave(self) -> None:
        """Releases everything (drained and committed) and leaves. Safe to call twice."""
        if self._task is None:
            return
        self._group.leave()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            await self._abandon()  # whoever waits for us gave up: go at once, our session's end frees what we hold
            raise
        self._task = None

    async def _abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()

    async def _run(self, joined: asyncio.Future[None]) -> None:
        remove = self._client.on_metadata(self._metadata_came)
        try:
            await self._begin()
            await TaskGroup().run(self._group.run(joined), topics=self._poll_topics())
            if not self._group.closing:
                self.ended = self._last_error
        except Exception as error:
            log.exception("%s: the membership ended", self._group_name)
            self.ended = error
            self._owner.failed(error)
        finally:
            remove()
            await self.lost("the membership ended")

    # -- for the protocol to fill in ------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Before the first request."""
        raise NotImplementedError

    async def _poll_topics(self) -> None:
        """Looks for what no message announces, as long as the membership lasts."""
        raise NotImplementedError

    def _metadata_came(self) -> None:
        raise NotImplementedError

    # -- commits --------------------------------------------------------------------------------------------------

    @property
    def committer(self) -> Committer:
        return self

    @property
    def identity(self) -> Identity | None:
        return self._group.identity

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self._held or partition in self._draining

    def refused(self, code: int, sent: Identity) -> bool:
        return self._group.refused(code, sent)

    # -- called by the protocol -----------------------------------------------------------------------------------

    async def lost(self, why: str) -> None:
        self._lease.end()
        parts, self._held, self._draining = self._held | self._draining, NO_PARTITIONS, NO_PARTITIONS
        if parts:
            log.warning("%s: lost %d partitions: %s", self._group_name, len(parts), why)
            await self._owner.lost(parts)

    def failed(self, error: BaseException) -> None:
        self._last_error = error
        self._owner.failed(error)

    async def _give_up(self, partitions: Partitions) -> None:
        if not partitions:
            return
        self._held -= partitions
        self._draining |= partitions
        try:
            await self._owner.revoked(partitions)
        except Exception:
            # whatever was not committed is processed again by the next owner; keeping it would stop the group
            log.exception("%s: releasing %d partitions failed", self._group_name, len(partitions))
        self._draining -= partitions


# -- kafka_lease ----------
# How long a member of a Kafka group may act, by its own clock.


MAX_MARGIN_S = 5.0


class KafkaLease:
    """Right to deliver records and to send commits, while two clocks of the coordinator's cannot have run out.

    The session: the coordinator removes a member that it has not heard of for the session timeout. The rebalance: it
    also removes one that it does hear of, but that has not joined again within the rebalance timeout. The first
    counts from the start of the last acknowledged request, the second from the start of the last one to which the
    coordinator did not answer that a rebalance is going on. A margin is taken off both, for clocks that differ.

    Tells the owner `suspended` when the lease lapses, and `resumed` with the next proof.
    """

    def __init__(self, group: str, owner: AssignmentListener, clock: Callable[[], float]) -> None:
        self._group = group
        self._owner = owner
        self._session = Lease(clock)
        self._rebalance = Lease(clock)
        self._suspended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def valid(self) -> bool:
        return not self._suspended and self._session.valid and self._rebalance.valid

    @property
    def remaining_s(self) -> float:
        return min(self._session.remaining_s, self._rebalance.remaining_s)

    def renew(self, started: float, session_timeout_s: float, rebalance_timeout_s: float, *, rebalancing: bool) -> None:
        """A request that began at `started` was acknowledged."""
        self._session.renew(started, session_timeout_s)
        if not rebalancing:
            margin = min(rebalance_timeout_s * Lease.MARGIN, MAX_MARGIN_S)
            self._rebalance.ends = max(self._rebalance.ends, started + rebalance_timeout_s - margin)
        if self.remaining_s <= 0:
            return  # the answer took longer than the lease lasts
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(self.remaining_s, self._lapsed)
        if self._suspended:
            self._suspended = False
            self._owner.resumed()

    def end(self) -> None:
        """The membership is over, or lost."""
        self._session.end()
        self._rebalance.end()
        self._stop_timer()

    def _lapsed(self) -> None:
        if self.remaining_s > 0 or self._suspended:
            return
        self._suspended = True
        why = (
            "the coordinator has not answered for most of the session timeout"
            if self._session.remaining_s <= 0
            else "this member has not joined the rebalance in time"
        )
        log.warning("%s: this member pauses: %s", self._group, why)
        self._owner.suspended(why)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
