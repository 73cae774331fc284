"""The state machine of one member of a classic Kafka group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

It does not know partitions. A `Participant` names the assignors that this member offers, computes the assignment if
this member leads, and receives the member's own assignment. The consumer's participant is `KafkaMembership`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafka.protocol.consumer import JoinGroupRequest

from allocator.core.aio import start_task, wait_for_event
from allocator.core.client import Coordinator, Identity, KafkaClient, Reaction, for_code, reaction_to
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.kafka_classic.messages import (
    JoinedMember,
    heartbeat_request,
    joined_members,
    leave_code,
    leave_request,
)
from allocator.protocols.kafka_classic.predecessor import Predecessor
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.protocols.kafka_classic.slow_requests import SlowRequests
from allocator.protocols.kafka_group import (
    Interrupted,
    KafkaGroup,
    KafkaGroupParticipant,
    LostMembership,
    passes,
    unless,
)
from allocator.protocols.reactions import HEARTBEAT, JOIN, LEAVE, REMOVED, SYNC, GroupReaction, Reactions

log = logging.getLogger(__name__)


class GroupPhase(enum.Enum):
    """The state of a member in its group."""

    OUT = "not a member; owns no partitions"
    PREPARING = "a rebalance is due; the member drains and commits the partitions that it releases"
    JOINING = "a JoinGroup is in progress, or about to be repeated"
    SYNCING = "in a new generation; the leader computes and sends the assignment"
    STABLE = "assigned"
    AWAY = "left because the user did not poll; joins again at the next poll"
    CLOSED = "left for good, or fenced"


MOVES = {
    GroupPhase.OUT: {GroupPhase.PREPARING, GroupPhase.CLOSED},
    GroupPhase.PREPARING: {GroupPhase.JOINING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    GroupPhase.JOINING: {GroupPhase.SYNCING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    # back to JOINING: another rebalance began first, or the coordinator is unreachable. The last preparation is still
    # valid
    GroupPhase.SYNCING: {GroupPhase.STABLE, GroupPhase.JOINING, GroupPhase.OUT, GroupPhase.CLOSED},
    GroupPhase.STABLE: {GroupPhase.PREPARING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    GroupPhase.AWAY: {GroupPhase.OUT, GroupPhase.CLOSED},
    GroupPhase.CLOSED: set(),
}


class Participant(KafkaGroupParticipant, Protocol):
    """The methods that the state machine calls: one at a time, except `lost`, `acknowledged` and `failed`."""

    protocol_type: str

    def offers(self) -> Sequence[tuple[str, bytes]]:
        """Returns pairs of assignor name and the member's metadata for it, the preferred assignor first."""

    async def prepare(self) -> None:
        """Releases the partitions that the member may not own while it joins. Called before JoinGroup. Cancelled if the
        membership is lost."""

    async def compute_assignment(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        """Returns member id -> assignment. Called if this member leads."""

    async def lead_on(self, members: Sequence[JoinedMember]) -> None:
        """Follows the topics of `members`. Called if this member leads and the coordinator keeps the assignment."""

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        """Called when a new generation begins, with the assignment of this member. Cancelled if the membership is
        lost."""

    async def leaving(self) -> None:
        """Drains, commits and releases all partitions. Cancelled if the membership is lost."""

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        """Called when the coordinator acknowledged this member in a request that began at `started`.

        `rebalancing`: whether the coordinator waits for this member to join again.
        """


class ClassicMember(KafkaGroup):
    """One member of one group.

    Guarantees:

    - `prepare` returns before each JoinGroup is sent, and `joined` is called at most once in a generation.
    - Heartbeats continue whatever the participant does.
    - A response that belongs to an older generation changes nothing.
    - A change of subscription does not cancel a JoinGroup. The member ignores the assignment that follows from it,
      prepares and joins again.

    `run` is the whole life of the member; its caller awaits it. The constructor does no I/O.
    """

    OUT, AWAY, CLOSED = GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED
    _settings: KafkaSettings

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        participant: Participant,
        settings: KafkaSettings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, group, participant, coordinator, settings, clock)
        self.heartbeat.session_timeout_s, self.heartbeat.interval_s = (
            settings.session_timeout_s,
            settings.heartbeat_interval_s,
        )
        self.phase = GroupPhase.OUT
        self._participant = participant
        self._clock = clock
        self.member_id = ""
        self.leader = ""
        """Member id of the leader of the last generation that this member joined. Clients put their client id first."""
        self._generation = -1
        self._rejoin: str | None = "first join"  # reason why the last preparation is outdated, or None
        self._why = ""  # reason of the current rebalance
        self.predecessor = Predecessor(client, self._coordinator, group, settings.instance_id)
        self._slow = SlowRequests(
            client, self._coordinator, group, participant.protocol_type, settings, self._keeps_alive
        )

    # -- called by the membership ---------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        if self._generation < 0 or self._loss is not None:
            return None
        return self._me

    @property
    def rebalance_timeout_s(self) -> float:
        """Seconds that the group waits for this member after the start of a rebalance."""
        old = not self._client.api_version(JoinGroupRequest)  # brokers before 0.10.1 have no separate rebalance timeout
        return self._settings.session_timeout_s if old else self._settings.rebalance_timeout_s

    def request_rejoin(self, why: str) -> None:
        """Makes the member join again: its subscription changed, or the group needs a new assignment.

        May be called at any time. During a rebalance, another rebalance follows.
        """
        if self._rejoin is None:
            self._rejoin = why
            self._poke()

    def _check(self) -> None:
        self._settings.check(self.group, self._client.api_version(JoinGroupRequest))

    async def _cannot_go_on(self, error: Exception) -> None:
        if self._joined.done():
            self._report(error)
            await self._give_up()
        else:
            await self._give_up()  # leaves first, because the caller that gets the error cancels this task
            self._report(error)

    def _last_request(self) -> Any:
        left = self._me
        return leave_request(self.group, left, "cancelled") if left.member_id and not self._restarts else None

    def _close(self) -> None:
        if self.phase is not GroupPhase.CLOSED:
            self._generation = -1
            self.move(GroupPhase.CLOSED, "the task ended")

    # -- rebalances -----------------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        while self.phase is not GroupPhase.CLOSED:
            self._signals.changed.clear()
            if not self.closing:
                self._signals.stop.clear()
            try:
                if self._loss is not None:
                    await self._handle_loss(self._loss)
                elif self.closing:
                    await self._depart()
                elif self.phase is GroupPhase.AWAY:
                    if self.heartbeat.idle_too_long:
                        await self._signals.changed.wait()
                    else:
                        self.move(GroupPhase.OUT, "the user is back")
                elif self.phase is GroupPhase.STABLE and self._rejoin is None:
                    await self._signals.changed.wait()
                else:
                    await self._rebalance()
            except Interrupted:
                self._back_to_joining()
            except AllocatorError as error:
                if isinstance(error, BrokerError):
                    self._failure = error
                if passes(error):
                    log.info("%s: %s; trying again", self.group, error)
                elif self._joined.done():
                    self._report(error)
                else:
                    raise
                self._back_to_joining()
                await wait_for_event(self._signals.stop, self._settings.pause_s(error))

    async def _rebalance(self) -> None:
        if self.phase is not GroupPhase.JOINING:
            self._why = self._rejoin or "again"
            if self.phase is not GroupPhase.PREPARING:
                self.move(GroupPhase.PREPARING, self._why)
            await self._prepare()
            self.move(GroupPhase.JOINING, "prepared")
        generation = await self._reach_generation()
        if generation is None:
            return
        if self._rejoin is not None:
            # the offer is outdated, and so is the assignment. The SyncGroup was still necessary: without it the
            # coordinator would refuse the commits of the preparation that follows
            return
        if not self._joined.done():
            self._joined.set_result(None)
        await unless(self._participant.joined(*generation), self._signals.lost)

    async def _reach_generation(self) -> tuple[int, str, bytes] | None:
        """Joins and syncs. Returns the arguments of `Participant.joined`; None if the member must join again."""
        joined = await self._join()
        if joined is None:
            return None
        generation, protocol = self._generation, joined.protocol_name
        self.move(GroupPhase.SYNCING, f"generation {generation} under {protocol!r}")
        assignment = await self._sync(joined)
        if assignment is None:
            return None
        self.move(GroupPhase.STABLE, f"generation {generation}")
        return generation, protocol, assignment

    async def _prepare(self) -> None:
        """Prepares until no rejoin is requested during the preparation."""
        while True:
            self._rejoin = None
            if not self.member_id:
                await unless(self.predecessor.read(), self._signals.lost, self._signals.stop)
            await unless(self._participant.prepare(), self._signals.lost)
            if self._rejoin is None:
                return

    async def _join(self) -> Any:
        """Sends one JoinGroup. Returns the response, or None if it must be repeated."""
        if self._signals.stop.is_set():
            raise Interrupted
        offers = self._participant.offers()
        await self._slow.ready(self._signals.lost, self._signals.stop)
        started = self._clock()
        try:
            joined = await self._slow.join(self.member_id, offers, self._why, self._signals.lost, self._signals.stop)
        except Interrupted as interruption:
            self.member_id = self.member_id or interruption.member_id
            raise
        if joined.error_code:
            if reaction_to(joined.error_code, JOIN) is GroupReaction.TAKE_ID:
                self.member_id = joined.member_id
                return None
            await self._react(JOIN, joined.error_code, "cannot join")
            return None
        if self._generation < 0:
            self._since = joined.generation_id
        self.member_id, self._generation, self.leader = joined.member_id, joined.generation_id, joined.leader
        self._failure = None
        self.heartbeat.reset_session_timeout()
        self._participant.acknowledged(started, rebalancing=False)
        names = [name for name, _ in offers]
        if joined.protocol_name not in names:
            await self._give_up()
            raise BrokerError(
                f"group {self.group!r}: the coordinator (broker {self._coordinator.node}) chose the allocator function "
                f"{joined.protocol_name!r:.80}, which this member does not offer; it offers {', '.join(names)}. This "
                "is a fault of the broker, or of a proxy in front of it"
            )
        return joined

    async def _sync(self, joined: Any) -> bytes | None:
        """Sends one SyncGroup. Returns the assignment of this member, or None if it must join again."""
        assignments: Mapping[str, bytes] = {}
        if joined.member_id == joined.leader and not joined.skip_assignment:
            log.info("%s: leads %d members (generation %d)", self.group, len(joined.members), self._generation)
            assignments = await unless(self._compute(joined), self._signals.lost, self._signals.stop)
        elif joined.leader in (joined.member_id, self.predecessor.member_id):
            log.info("%s: leads again, with the assignment of generation %d", self.group, self._generation)
            # a static leader that joins again must not compute, so the coordinator sets `skip_assignment`. Brokers
            # before 3.2 name the predecessor as the leader, and list no members
            members = joined_members(joined) or self.predecessor.group
            await unless(self._participant.lead_on(members), self._signals.lost, self._signals.stop)
        started = self._clock()
        response = await self._slow.sync(
            self._me, joined.protocol_name, assignments, self._signals.lost, self._signals.stop
        )
        if response.error_code:
            self._why = "not synced"
            await self._react(SYNC, response.error_code, "cannot sync")
            self._back_to_joining()
            return None
        self.heartbeat.reset_session_timeout()
        self.heartbeat.expect_rebalance()
        self._participant.acknowledged(started, rebalancing=False)
        return bytes(response.assignment or b"")

    async def _compute(self, joined: Any) -> Mapping[str, bytes]:
        with self._client.reading(self._coordinator.node, JoinGroupRequest):  # it has what other members wrote
            return await self._participant.compute_assignment(joined.protocol_name, joined_members(joined))

    async def _react(self, table: Reactions, code: int, what: str) -> None:
        """Handles a refused JoinGroup or SyncGroup."""
        reaction = reaction_to(code, table)
        error = for_code(code, f"group {self.group!r}: {what}")
        if reaction in REMOVED:
            self._lose(reaction, str(error))
        elif reaction is Reaction.FAIL:
            error.retriable = False
            raise error
        else:
            self._failure = error
            log.info("%s; trying again", error)
            if reaction is Reaction.REFIND:
                self._coordinator.forget()
            if reaction is not GroupReaction.REJOIN:
                await wait_for_event(self._signals.stop, self._settings.retry_backoff_s)

    # -- the end of a membership ----------------------------------------------------------------------------------

    def _commit_refused(self, reaction: object, why: str) -> None:
        """Handles the error code of a heartbeat or commit for the current membership."""
        if reaction is GroupReaction.REJOIN:
            # older brokers also send this code while they wait for the leader; a joining member need not react
            if self.phase is GroupPhase.STABLE:
                self.request_rejoin("the group rebalances")
        elif reaction is GroupReaction.LOST and self.phase is GroupPhase.JOINING:
            pass  # the new generation has begun, and the response to this member's JoinGroup will follow
        elif reaction in REMOVED:
            self._lose(reaction, why)

    async def _handle_loss(self, loss: LostMembership) -> None:
        left = self._me
        self._generation = -1
        if loss.forget_id:
            self.member_id = ""
        self._rejoin = loss.why
        self.move(loss.to, loss.why)
        self._loss = None
        self._signals.lost.clear()
        await self._participant.lost(loss.why)
        if loss.to is GroupPhase.AWAY:
            await self._leave_group(left, loss.why)
        elif loss.to is GroupPhase.CLOSED:
            self._report_fenced(loss)

    async def _depart(self) -> None:
        if self.phase in (GroupPhase.STABLE, GroupPhase.PREPARING, GroupPhase.JOINING, GroupPhase.SYNCING):
            leaving = start_task(unless(self._participant.leaving(), self._signals.lost))
            try:
                await self._keep_up_until(leaving)
            finally:
                leaving.cancel()
                await asyncio.wait({leaving})
            leaving.result()
        left = self._me
        self._generation = -1
        self.move(GroupPhase.CLOSED, "closing")
        await self._leave_group(left, "closing")

    async def _keep_up_until(self, leaving: asyncio.Future[None]) -> None:
        """Waits until `leaving` has ended. Completes a rebalance that this member has joined and that ends meanwhile.

        Otherwise the coordinator would refuse the last commits, which have the former generation, and the other members
        would wait for this member's SyncGroup until its session ends.
        """
        stop, pause_s = self._signals.stop, self._settings.retry_backoff_s
        await asyncio.wait({leaving}, timeout=pause_s)
        leaving.add_done_callback(lambda _: stop.set())
        while not leaving.done() and self.phase is GroupPhase.JOINING and self.identity is not None:
            stop.clear()
            try:
                await self._reach_generation()
            except Interrupted:
                self._back_to_joining()
            except AllocatorError as error:
                log.info("%s: %s; trying again while leaving", self.group, error)
                self._back_to_joining()
                await asyncio.wait({leaving}, timeout=self._settings.pause_s(error))
        await asyncio.wait({leaving})

    async def _give_up(self) -> None:
        """Ends a membership that cannot continue. The member leaves, so that the others need not wait for the session
        timeout."""
        left, self._generation = self._me, -1
        if left.generation >= 0:
            try:
                await self._participant.lost("the membership ended")
            except Exception:
                log.exception("%s: stopping the held partitions failed", self.group)
        await self._leave_group(left, "it cannot take part")

    async def _leave_group(self, member: Identity, why: str) -> None:
        if member.member_id and not self._restarts:
            self.member_id = ""
            request = partial(leave_request, self.group, member, why)
            await self._repeat_leave(request, leave_code, LEAVE, member.member_id, why)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def _keeps_alive(self) -> bool:
        return (
            self._generation >= 0
            and self._loss is None
            and self.phase not in (GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED)
        )

    async def _send_heartbeat(self) -> None:
        if self.heartbeat.session_expired:
            log.warning("%s: the coordinator acknowledged nothing for a whole session timeout", self.group)
            self._coordinator.forget()
        me, started = self._me, self.heartbeat.sent_heartbeat()
        # a third of the session timeout: if the coordinator hangs, the rest is enough to find its successor
        deadline = time.monotonic() + self._settings.session_timeout_s / 3
        response = await self._coordinator.send(heartbeat_request(self.group, me), deadline)
        if me == self._me and self._keeps_alive():  # otherwise the response belongs to an earlier generation
            self._read_heartbeat(response.error_code, started)
        self.heartbeat.received_heartbeat()

    def _read_heartbeat(self, code: int, started: float) -> None:
        reaction = reaction_to(code, HEARTBEAT)
        if reaction is Reaction.DONE:
            self._participant.acknowledged(started, rebalancing=False)
        elif reaction is GroupReaction.REJOIN or reaction in REMOVED:
            if reaction is GroupReaction.REJOIN:
                self._participant.acknowledged(started, rebalancing=True)
            self._commit_refused(reaction, str(for_code(code, "the coordinator")))
        else:
            if reaction is Reaction.REFIND:
                self._coordinator.forget()
            error = for_code(code, f"group {self.group!r}: heartbeat refused")
            error.retriable = reaction is not Reaction.FAIL
            raise error

    def _heartbeat_failed(self, error: BrokerError) -> float:
        log.warning("%s: %s", self.group, error)
        if not error.retriable:
            self._participant.failed(error)
        return self._settings.pause_s(error)

    def _may_go_away(self) -> bool:
        return self.phase in (GroupPhase.STABLE, GroupPhase.PREPARING)

    # -------------------------------------------------------------------------------------------------------------

    @property
    def _me(self) -> Identity:
        return Identity(self._generation, self.member_id, self._settings.instance_id)

    def _back_to_joining(self) -> None:
        if self.phase is GroupPhase.SYNCING:
            self.move(GroupPhase.JOINING, "not synced")

    def move(self, to: GroupPhase, why: str) -> None:
        if to not in MOVES[self.phase]:
            raise RuntimeError(f"group {self.group!r}: {self.phase.name} -> {to.name} ({why}) is no legal move")
        log.info("%s: %s -> %s: %s", self.group, self.phase.name, to.name, why)
        self.phase = to
        self._loop.poke()
