"""The state machine of one member of a KIP-848 group. It sends only ConsumerGroupHeartbeat.

The coordinator assigns the partitions. A member reports its subscription and the partitions that it owns; the response
contains the partitions that it may own. This module knows partitions by the ids of their topics. A `Kip848Participant`
knows them by name and processes them. The consumer's participant is `Kip848Membership`.
"""

from __future__ import annotations

import enum
import logging
import time
import uuid
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from allocator.core.aio import Backoff, wait_for_event
from allocator.core.client import (
    Coordinator,
    ErrorCode,
    Identity,
    KafkaClient,
    Reaction,
    describe_configs,
    for_code,
    reaction_to,
)
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.kafka_group import Interrupted, KafkaGroup, KafkaGroupParticipant, LostMembership, unless
from allocator.protocols.kip848.messages import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
    IdPartitions,
    MemberState,
    assigned,
    heartbeat_request,
    leave_request,
    message,
    refusal,
    unsupported,
)
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.protocols.reactions import KIP848_HEARTBEAT, KIP848_LEAVE, REMOVED, GroupReaction

log = logging.getLogger(__name__)

NONE: IdPartitions = frozenset()

SESSION_TIMEOUT = "consumer.session.timeout.ms"
# seconds between two requests for the session timeout. Higher: the member notices a shorter timeout later; lower: more
# requests
SESSION_READ_EVERY_S = 60.0
# seconds for the response with the session timeout. Higher: a hung broker delays a heartbeat longer; lower: a slow
# broker does not report the timeout
RESPONSE_WITHIN_S = 2.0
# longest pause in seconds between two attempts to join while another process has the instance id. Higher: a restarted
# process joins later; lower: more requests
NAMESAKE_RETRY_MAX_S = 1.0
UNNAMED_RETRY_S = 0.5  # seconds until the metadata is read again for the name of a new topic


class Kip848Phase(enum.Enum):
    """The state of a member in its group."""

    JOINING = "not a member; the next heartbeat joins"
    RECONCILING = "a member that still has to start or to release partitions of its assignment"
    STABLE = "owns exactly its assignment"
    AWAY = "left because the user did not poll; joins again at the next poll"
    CLOSED = "left for good, or fenced"


class Kip848Participant(KafkaGroupParticipant, Protocol):
    """The methods that the state machine calls: one at a time, except `lost`, `acknowledged` and `failed`."""

    def topics(self) -> frozenset[str]:
        """Returns the current subscription."""

    async def take(self, assigned: IdPartitions) -> bool:
        """Starts the partitions of `assigned` that the member does not own yet.

        Returns False if the name of a topic is not known yet; `take` is then called again.
        """

    async def release(self, revoked: IdPartitions) -> None:
        """Drains, commits and releases these partitions: other members may own them after this returns. Cancelled if
        the membership is lost."""

    def acknowledged(self, started: float, session_timeout_s: float, *, revoking: bool) -> None:
        """Called when the coordinator acknowledged this member in a heartbeat that began at `started`.

        `revoking`: whether the coordinator may have been waiting since before `started` for this member to release
        partitions.
        """


class Kip848Group(KafkaGroup):
    """One member of one group.

    Guarantee: an assigned partition counts as owned until `release` has returned, and each heartbeat that lists the
    owned partitions includes it. Only after that does a heartbeat tell the coordinator that other members may own the
    partition. The member starts no new partitions before the coordinator has acknowledged the release. A response that
    belongs to an earlier membership changes nothing.

    This object creates the member id and keeps it; the coordinator assigns the epoch. `run` is the whole life of the
    member; its caller awaits it. The constructor does no I/O.
    """

    OUT, AWAY, CLOSED = Kip848Phase.JOINING, Kip848Phase.AWAY, Kip848Phase.CLOSED
    _settings: Kip848Settings

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        participant: Kip848Participant,
        settings: Kip848Settings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, group, participant, coordinator, settings, clock)
        self.phase = Kip848Phase.JOINING
        self.member_id = str(uuid.uuid4())
        self.epoch = JOIN_EPOCH
        self._participant = participant
        self._session_s: float | None = None  # the session timeout of the group; None while unknown
        self._session_read_at = float("-inf")
        self._reported: MemberState | None = None  # the state that the coordinator has acknowledged; None: report all
        self._assigned: IdPartitions | None = None  # the newest assignment; None before the first one of a membership
        self._reached: IdPartitions | None = None  # the last assignment that the member reached
        self._owned = NONE
        self._namesake_backoff = Backoff(settings.retry_backoff_s, NAMESAKE_RETRY_MAX_S)

    # -- called by the membership ---------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        if self.epoch <= 0 or self._loss is not None:
            return None
        return Identity(self.epoch, self.member_id, self._settings.instance_id, by_epoch=True)

    def changed(self) -> None:
        """Reports the changed subscription to the coordinator at once."""
        self._loop.send_now()

    def _commit_refused(self, reaction: GroupReaction, why: str) -> None:
        if reaction is GroupReaction.NEW_EPOCH:
            self._loop.send_now()
        elif reaction in REMOVED:
            self._lose(reaction, why)

    def _check(self) -> None:
        if self._client.api_version(ConsumerGroupHeartbeatRequest) is None:
            raise unsupported(self.group)

    def _last_request(self) -> Any:
        return self._leave_request() if self._is_member else None

    def _close(self) -> None:
        self.epoch = JOIN_EPOCH
        if self.phase is not Kip848Phase.CLOSED:
            self.move(Kip848Phase.CLOSED, "the task ended")

    # -- taking and releasing partitions --------------------------------------------------------------------------

    async def _take_part(self) -> None:
        while self.phase is not Kip848Phase.CLOSED:
            self._signals.changed.clear()
            try:
                if self._loss is not None:
                    await self._handle_loss(self._loss)
                elif self.closing:
                    await self._depart()
                elif self.phase is Kip848Phase.AWAY and not self.heartbeat.idle_too_long:
                    self.move(Kip848Phase.JOINING, "the user is back")
                    self._loop.send_now()
                elif self._assigned is not None and self._assigned != self._reached:
                    await self._reconcile(self._assigned)
                else:
                    await self._signals.changed.wait()
            except Interrupted:
                pass

    async def _reconcile(self, assigned: IdPartitions) -> None:
        """Takes one step towards `assigned`: releases the partitions that are not in it, or else starts the new
        ones."""
        if self._owned - assigned:
            self.move(Kip848Phase.RECONCILING, f"{len(self._owned - assigned)} partitions to release")
            await self._release(self._owned - assigned)
            # other members wait for these partitions. When the coordinator knows that they are free, it may assign more
            # partitions to this member
            self._signals.acknowledged.clear()
            self._loop.send_now()
            await unless(self._signals.acknowledged.wait(), self._signals.lost, self._signals.stop)
            return
        complete = await unless(self._participant.take(assigned), self._signals.lost)
        if not self._joined.done():
            self.heartbeat.polled()
            self._joined.set_result(None)
        if complete:
            self._reached = assigned
            self.move(Kip848Phase.STABLE, f"{len(assigned)} partitions at epoch {self.epoch}")
        else:
            self.move(Kip848Phase.RECONCILING, "some topics are not known yet")
            await wait_for_event(self._signals.changed, UNNAMED_RETRY_S)

    async def _release(self, revoked: IdPartitions) -> None:
        await unless(self._participant.release(revoked), self._signals.lost)
        # restarts partitions that the coordinator has assigned to this member again in the meantime
        self._owned = (self._owned - revoked) | (self._assigned or NONE)
        self._reached = None

    # -- the end of a membership ----------------------------------------------------------------------------------

    async def _handle_loss(self, loss: LostMembership) -> None:
        was_member = self.epoch > 0
        self.epoch, self._reported, self._assigned, self._reached, self._owned = JOIN_EPOCH, None, None, None, NONE
        self.move(loss.to, loss.why)
        await self._participant.lost(loss.why)
        self._loss = None
        self._signals.lost.clear()
        if loss.to is Kip848Phase.AWAY and was_member:
            await self._leave_group(loss.why)
        elif loss.to is Kip848Phase.CLOSED:
            self._report_fenced(loss)
        self._loop.send_now()

    async def _depart(self) -> None:
        if self.epoch > 0:
            await self._release(self._owned)
        was_member = self._is_member
        self.epoch = JOIN_EPOCH
        self.move(Kip848Phase.CLOSED, "closing")
        if was_member:
            await self._leave_group("closing")

    @property
    def _is_member(self) -> bool:
        """Whether the coordinator may know this member."""
        out = self.phase in (Kip848Phase.AWAY, Kip848Phase.CLOSED)
        return not out and self.heartbeat.last_sent > float("-inf")

    def _leave_request(self) -> Any:
        return leave_request(self.group, self.member_id, self._settings.instance_id, restarts=self._restarts)

    async def _leave_group(self, why: str) -> None:
        await self._repeat_leave(self._leave_request, attrgetter("error_code"), KIP848_LEAVE, self.member_id, why)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def _keeps_alive(self) -> bool:
        return self._loss is None and self.phase not in (Kip848Phase.AWAY, Kip848Phase.CLOSED)

    async def _send_heartbeat(self) -> None:
        """Sends one heartbeat and handles the response. Raises `BrokerError` if the heartbeat must be repeated."""
        await self._read_session_timeout()
        # a response proves nothing about the time before its request was sent
        await self._coordinator.find(time.monotonic() + self._coordinator.patience_s)
        epoch, known, reported = self.epoch, self._assigned, self._reported
        state = MemberState(self._participant.topics(), self._owned)
        # a third of the session timeout: if the coordinator hangs, the rest is enough to find its successor
        patience_s = self._coordinator.patience_s
        if self._session_s is not None:
            patience_s = min(patience_s, self._session_s / 3)
        request = heartbeat_request(self.group, self.member_id, epoch, self._settings, state, reported)
        started = self.heartbeat.sent_heartbeat()
        response = await self._coordinator.send(request, time.monotonic() + patience_s, patience_s)
        if not self._keeps_alive() or epoch != self.epoch:
            return  # the response belongs to an earlier membership
        if response.error_code:
            await self._react(response)
            return
        with self._client.reading(self._coordinator.node, ConsumerGroupHeartbeatRequest):
            self._adopt(response)
        # an earlier response was lost. If it had an assignment, the coordinator has waited for a release since then
        missed = reported is None and epoch != JOIN_EPOCH
        known = self._assigned if missed and response.assignment is not None else known
        unsure = missed and response.assignment is None
        revoking = unsure or (known is not None and bool(state.owned - known))
        self._reported = state
        self._participant.acknowledged(started, self.heartbeat.session_timeout_s, revoking=revoking)
        if not state.owned - self._owned:
            self._signals.acknowledged.set()

    def _adopt(self, response: Any) -> None:
        self._failure = None
        if self.epoch == JOIN_EPOCH:
            self._since = response.member_epoch
        new_epoch = self.epoch != response.member_epoch
        if new_epoch:
            log.info("%s: %s is at epoch %d", self.group, self.member_id, response.member_epoch)
        self.epoch = response.member_epoch
        self._namesake_backoff.reset()
        # if the session timeout is unknown, uses the heartbeat interval, which is always shorter
        timer, interval_s = self.heartbeat, response.heartbeat_interval_ms / 1000
        session_s = self._session_s or interval_s
        timer.session_timeout_s = session_s
        timer.interval_s = min(interval_s, session_s / 3, self._settings.rebalance_timeout_s / 3)
        timer.received_heartbeat()
        if new_epoch:
            timer.expect_rebalance()  # other members are still releasing partitions for this member
        new = assigned(response)
        if new is not None:
            self._assigned = new
            self._owned |= new
            self._poke()

    async def _read_session_timeout(self) -> None:
        """Reads the session timeout from the broker. Needs the right to DESCRIBE_CONFIGS on the group."""
        now, first = self.heartbeat.clock(), self._session_read_at == float("-inf")
        if now < self._session_read_at + SESSION_READ_EVERY_S:
            return
        self._session_read_at = now
        try:
            found = await describe_configs(
                self._client, "group", [self.group], [SESSION_TIMEOUT], timeout_s=RESPONSE_WITHIN_S
            )
            self._session_s = int(found[self.group][SESSION_TIMEOUT]) / 1000
        except (AllocatorError, KeyError, ValueError) as error:
            log.debug("%s: the session timeout cannot be read: %s", self.group, error)
        if self._session_s is None and first:
            log.warning(
                "%s: this user may not read the group's session timeout, so the lease is as short as the heartbeat "
                "interval. Allow DESCRIBE_CONFIGS on the group",
                self.group,
            )

    async def _react(self, response: Any) -> None:
        """Handles a heartbeat that the coordinator refused."""
        reaction = reaction_to(response.error_code, KIP848_HEARTBEAT)
        error = for_code(response.error_code, f"group {self.group!r}")
        if reaction in REMOVED and self.epoch != JOIN_EPOCH:
            self._lose(reaction, f"{error}{message(response)}")
        elif response.error_code == ErrorCode.FENCED_MEMBER_EPOCH:
            # the coordinator still knows an earlier membership of this process, which would last until its session ends
            await self._leave_group("the coordinator has an earlier epoch of this member")
            self._loop.send_now()
        elif reaction in (*REMOVED, Reaction.FAIL):
            self._fail(refusal(response, self.group, self._settings))
        else:
            if response.error_code == ErrorCode.UNRELEASED_INSTANCE_ID and not self._namesake_backoff.pauses:
                log.warning("%s: waiting until the predecessor has left or expired%s", self.group, message(response))
            if reaction is Reaction.REFIND:
                self._coordinator.forget()
            error.retriable = True
            raise error

    def _heartbeat_failed(self, error: BrokerError) -> float:
        # the coordinator may have received the heartbeat, and the lost response may have contained an assignment
        self._reported = None
        self._failure = error
        if error.code == ErrorCode.UNRELEASED_INSTANCE_ID:  # `_react` has already logged this error
            return self._namesake_backoff.next()
        if error.retriable:
            log.info("%s: heartbeat failed: %s", self.group, error)
            return self._settings.retry_backoff_s
        self._fail(error)
        return self._settings.failure_pause_s

    def _fail(self, error: AllocatorError) -> None:
        """Reports an error that needs an operator, and schedules a retry."""
        self._reported = None
        self.heartbeat.failed_heartbeat(self._settings.failure_pause_s)
        first = not self._joined.done()
        self._report(error)
        if first:
            self.move(Kip848Phase.CLOSED, "refused")

    def _may_go_away(self) -> bool:
        return self._joined.done() and self.epoch > 0 and not self.closing

    # -------------------------------------------------------------------------------------------------------------

    def move(self, to: Kip848Phase, why: str) -> None:
        if to is not self.phase:
            log.info("%s: %s -> %s: %s", self.group, self.phase.name, to.name, why)
            self.phase = to
            self._poke()
