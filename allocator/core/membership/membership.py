"""The interface between a group protocol and the consumer.

A consumer holds a `Membership`, which says which partitions this member owns. The membership calls an
`AssignmentListener` when it gains or loses partitions, and gets partition counts from a `PartitionCountSource`. Code
above this module does not depend on the protocol of the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from allocator.core.aio.tasks import ends
from allocator.core.client.offset_messages import Committer
from allocator.core.errors import IllegalState
from allocator.core.settings.table import DEFAULT
from allocator.core.subscription.tenures import Phase, Tenure, Tenures
from allocator.core.types import NO_PARTITIONS, Partitions, TopicPartition

if TYPE_CHECKING:
    from allocator.core.fetch.doubts import TopicRecords

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemberSettings:
    """Settings of a member in any kind of group. Times are in seconds."""

    name: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    connect_timeout_s: float | None = DEFAULT["connect_timeout_s"]  # limit of `join`; None: no limit


class AssignmentListener(Protocol):
    """Processes the partitions of a member. The membership calls it, one call at a time except `revoked`."""

    @cached_property
    def tenures(self) -> Tenures[Any]:
        """The record of what the member owns. Only the membership changes it: before it calls `assigned`, `revoked` or
        `lost`, and after `revoked`, when it releases the partitions."""
        return Tenures(Tenure)

    def expect(self, partitions: Partitions, free: bool) -> None:
        """Prepares for partitions that this member is about to get, if the membership knows them before. `assigned`
        follows if the claim succeeds.

        With `free`, no other member holds them, and none can get them unless the claim fails. So their committed
        offsets may be read.
        """
        return

    async def assigned(self, partitions: Partitions) -> None:
        """Starts these partitions: this member owns them from now on."""

    async def revoked(self, partitions: Partitions) -> Partitions | None:
        """Stops, drains and commits these partitions. The membership releases them when this returns.

        May return partitions that are still in use. The membership releases the others, and calls again for the
        returned ones. Cancelled if the session is lost.
        """

    async def lost(self, partitions: Partitions) -> None:
        """Stops these partitions and commits nothing: another member may already own them."""

    def suspended(self, why: str) -> None:
        """Stops deliveries and commits until `resumed`. The member still owns its partitions."""

    def resumed(self) -> None:
        """Resumes deliveries and commits: the lease is valid again."""

    def failed(self, error: BaseException) -> None:
        """Passes to the user an error that no call of the user caused."""


class Membership(Protocol):
    """One member of a group: which partitions it owns, and whether it may still act on them."""

    @property
    def ended(self) -> BaseException | None:
        """The error that ended the membership permanently; None before such an error, and after a normal `leave`."""

    @property
    def member_id(self) -> str:
        """The member's id in the group; empty before it joined."""

    @property
    def generation(self) -> int:
        """Number of the assignment that this member follows."""

    @property
    def held(self) -> Partitions:
        """The partitions that this member owns now, except those that are draining."""

    @property
    def committer(self) -> Committer | None:
        """The identity that commits carry; None if Kafka does not know the members of the group."""

    @property
    def topic_records(self) -> TopicRecords | None:
        """What the service that coordinates the group records about topics; None if it records nothing."""

    async def connect(self) -> None:
        """Connects to the service that coordinates the group, while the caller does other work before `join`.

        Optional: `join` connects otherwise. After an error the caller must call `leave`.
        """

    async def join(self) -> None:
        """Becomes a member. Returns once the group knows the member, perhaps before it owns a partition."""

    async def leave(self) -> None:
        """Drains, commits and releases everything, then leaves. Safe to call twice."""

    async def abandon(self) -> None:
        """Leaves at once: nothing is drained or committed. Does nothing after `leave`. A cancelled `leave` calls it."""

    def leave_for_good(self) -> None:
        """Makes the next `leave` reserve no partitions for the next process with the same instance id. Only some
        memberships reserve partitions."""

    def may_act(self) -> bool:
        """Whether the member may deliver records and send commits at this instant."""

    async def confirm(self) -> bool:
        """Requests an acknowledgement from the group, and waits for it.

        Returns False if the membership ended first. After True, the member owned every partition that still has the
        same fence throughout the call.
        """

    async def next_owners(self, partitions: Partitions) -> Mapping[TopicPartition, str]:
        """Returns the ids of the members that get these partitions once this member has released them, if known.

        Raises AllocatorError.
        """

    def polled(self) -> None:
        """Notes that the user polls. If the user does not poll for `max_poll_interval_s` seconds, the member leaves the
        group. It joins again at the next poll."""

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; takes effect with the rebalance that this causes. Raises ConfigError."""

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Replaces the subscription by these partitions. Returns the partitions that the member now gains.

        Raises IllegalState if a group assigns the partitions, ConfigError for a partition that does not exist.
        """

    def join_again_if(self, admitted: Callable[[Any], Awaitable[bool]]) -> None:
        """After a lost session, joins only when `admitted` returns True; it is called with the new session.

        Does nothing for a membership without sessions.
        """


class GroupMembership:
    """The parts of `Membership` that all memberships share. `join` starts the member's work as `_task`."""

    ended: BaseException | None = None
    _task: asyncio.Task[None] | None = None

    def __init__(self, listener: AssignmentListener) -> None:
        self._listener = listener
        self.tenures = listener.tenures

    @property
    def held(self) -> Partitions:
        return self.tenures.held

    async def _give_up(self, draining: list[Tenure]) -> None:
        """Calls `revoked`, and releases the tenures that are no longer in use, until all have ended."""
        while draining:
            in_use: Partitions | None = NO_PARTITIONS
            try:
                in_use = await self._listener.revoked(frozenset(tenure.partition for tenure in draining))
            except Exception:
                # the next owner reads uncommitted records again; keeping the partitions would stop the whole group
                log.exception("the release of %d partitions failed", len(draining))
            done = [tenure for tenure in draining if tenure.partition not in (in_use or NO_PARTITIONS)]
            self.tenures.release(done)
            await self._released(frozenset(tenure.partition for tenure in done))
            draining = [tenure for tenure in draining if tenure.phase is Phase.DRAINING]

    async def _released(self, partitions: Partitions) -> None:
        """Called after these partitions were drained and released in `tenures`."""

    async def _until_left(self) -> None:
        """Waits until the member has left. Called after the member was notified to leave."""
        task = self._task
        assert task is not None
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # the caller cancelled `leave`: stop at once, since the end of the session releases the partitions
            await self.abandon()
            raise
        self._task = None
        if not task.cancelled():  # a start that failed at the same time cancels it
            task.result()

    async def abandon(self) -> None:
        """Cancels the member's task, which leaves the group, and waits for its end, even if the caller is cancelled."""
        task = self._task
        if task is None:
            return
        task.cancel()
        try:
            await ends(task)
        finally:
            self._task = None
        if not task.cancelled():
            task.exception()

    async def next_owners(self, partitions: Partitions) -> Mapping[TopicPartition, str]:
        return {}

    @property
    def committer(self) -> Committer | None:
        return None

    @property
    def topic_records(self) -> TopicRecords | None:
        return None

    def leave_for_good(self) -> None:
        pass

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        raise IllegalState('the group assigns the partitions; use membership="fixed" to assign them by hand')

    def join_again_if(self, admitted: Callable[[Any], Awaitable[bool]]) -> None:
        pass
