"""Membership of one group by Kafka's own protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Knows nothing of partitions: a `Participant` says what this member offers, computes assignments when it leads, and is
told what it was given. The consumer's is in `allocator.groups.kafka_classic.membership`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kafka.protocol.consumer import JoinGroupRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import HEARTBEAT, JOIN, MEMBER_COMMIT, SYNC, GroupReaction, for_code, react
from allocator.errors import AllocatorError, BrokerError
from allocator.groups.group_requests import Interrupted, SlowRequests, leave_group, unless
from allocator.groups.heartbeat import Heart, Heartbeat
from allocator.groups.kafka_classic.messages import JoinResult, heartbeat_request, join_result
from allocator.groups.kafka_classic.settings import KafkaGroupSettings, Participant, passes
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.messages import Identity
from allocator.tasks import TaskGroup, wait_for_event

__all__ = ["MOVES", "GroupCoordinator", "GroupPhase", "KafkaGroupSettings", "LostMembership", "Participant"]

log = logging.getLogger(__name__)


class GroupCoordinator:
    """One member of one group.

    Guarantees: `prepare` has returned before each JoinGroup and its generation's `joined` is called once at most;
    heartbeats go on through everything the participant does; an answer that belongs to an older generation changes
    nothing. A JoinGroup under way is not given up for a change of subscription: its assignment is then not adopted,
    and another preparation and JoinGroup follow.

    `run` is the member's life and the owner's to await. The constructor touches nothing.
    """

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        participant: Participant,
        settings: KafkaGroupSettings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.phase = GroupPhase.OUT
        self._client = client
        self._participant = participant
        self._settings = settings
        self._clock = clock
        self._coordinator = coordinator or Coordinator(client, group, settings.retry_backoff_s)
        self._member_id = ""
        self._generation = -1
        self._since = -1  # the generation in which this membership began
        self._rejoin: str | None = "first join"  # why what was prepared last is out of date
        self._why = ""  # of the rebalance under way
        self._loss: LostMembership | None = None
        self._failure: BrokerError | None = None
        self.closing = False  # `leave` was called
        self._slow = SlowRequests(
            client, self._coordinator, group, participant.protocol_type, settings, self._keeps_alive
        )
        self._timing = Heartbeat(
            clock,
            session_timeout_s=settings.session_timeout_s,
            interval_s=settings.heartbeat_interval_s,
            max_poll_interval_s=settings.max_poll_interval_s,
        )
        self._heart = Heart(
            self._timing,
            wanted=self._keeps_alive,
            beat=self._beat,
            failed=self._beat_failed,
            idle=self._idle,
            silent=self._silent,
        )

    # -- the surface ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        """As of now; None while this is no member of any generation."""
        if self._generation < 0 or self._loss is not None:
            return None
        return self._me

    @property
    def coordinator(self) -> int | None:
        """Node id, None while unknown."""
        return self._coordinator.node

    @property
    def failure(self) -> BrokerError | None:
        """Why the last attempt to join failed; it is repeated."""
        return self._failure or self._coordinator.failure

    @property
    def heartbeat(self) -> Heartbeat:
        """Its times, for metrics."""
        return self._timing

    @property
    def rebalance_timeout_s(self) -> float:
        """How long the group waits for this member once a rebalance has begun."""
        old = not self._client.api_version(JoinGroupRequest)  # before 0.10.1
        return self._settings.session_timeout_s if old else self._settings.rebalance_timeout_s

    def request_rejoin(self, why: str) -> None:
        """What this member offers has changed, or an assignment should be computed anew. May be called at any time:
        during a rebalance it has another one follow."""
        if self._rejoin is None:
            self._rejoin = why
            self._poke()

    def polled(self) -> None:
        """The user is alive; brings a member back that left for the lack of it."""
        self._timing.polled()
        if self.phase is GroupPhase.AWAY:
            self._poke()

    def leave(self) -> None:
        """Have `run` give everything up, leave and end."""
        self.closing = True
        self._poke(stop=True)

    def refused(self, code: int, sent: Identity) -> bool:
        """A commit was refused: what that says of the membership. Returns whether this is the membership under which
        it was sent, so that what is still held may be committed in the present generation or the next."""
        if sent == self.identity:
            self._told(react(MEMBER_COMMIT, code), f"a commit was refused: {for_code(code, 'the coordinator')}")
        return self.identity is not None and sent.member_id == self._member_id and sent.generation >= self._since

    async def run(self, joined: asyncio.Future[None]) -> None:
        """Joins, takes part, and leaves. `joined` is resolved at the first assignment, or with what prevents it."""
        self._news = asyncio.Event()
        self._lost = asyncio.Event()
        self._stop = asyncio.Event()
        self._joined = joined
        self._timing.polled()
        if self.closing:
            self._stop.set()
        try:
            self._settings.check(self.group, self._client.api_version(JoinGroupRequest))
            await TaskGroup().run(self._take_part(), heartbeats=self._heart.run())
        except Exception as error:
            if not isinstance(error, AllocatorError):
                log.exception("%s: the membership of %s ended", self.group, self._member_id)
            if self._joined.done():
                self._report(error)
                await self._give_up()
            else:
                await self._give_up()  # first: whoever hears of the error ends this task
                self._report(error)
        finally:
            if self.phase is not GroupPhase.CLOSED:
                self._generation = -1
                self._move(GroupPhase.CLOSED, "the task ended")
            if not joined.done():
                joined.cancel()

    # -- rebalances -----------------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        while self.phase is not GroupPhase.CLOSED:
            self._news.clear()
            if not self.closing:
                self._stop.clear()
            try:
                if self._loss is not None:
                    await self._tell_loss(self._loss)
                elif self.closing:
                    await self._depart()
                elif self.phase is GroupPhase.AWAY:
                    if self._timing.idle_too_long:
                        await self._news.wait()
                    else:
                        self._move(GroupPhase.OUT, "the user is back")
                elif self.phase is GroupPhase.STABLE and self._rejoin is None:
                    await self._news.wait()
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
                await wait_for_event(self._stop, self._settings.pause_s(error))

    async def _rebalance(self) -> None:
        if self.phase is not GroupPhase.JOINING:
            self._why = self._rejoin or "again"
            if self.phase is not GroupPhase.PREPARING:
                self._move(GroupPhase.PREPARING, self._why)
            await self._prepare()
            self._move(GroupPhase.JOINING, "prepared")
        joined = await self._join()
        if joined is None:
            return
        self._move(GroupPhase.SYNCING, f"generation {joined.generation} under {joined.protocol!r}")
        assignment = await self._sync(joined)
        if assignment is None:
            return
        self._move(GroupPhase.STABLE, f"generation {joined.generation}")
        if self._rejoin is not None:
            return  # what was offered is out of date, and so is the assignment; synced, or no commit would be taken
        if not self._joined.done():
            self._joined.set_result(None)
        await unless(self._participant.joined(joined.generation, joined.protocol, assignment), self._lost)

    async def _prepare(self) -> None:
        """Until it was done for everything that was requested."""
        while True:
            self._rejoin = None  # what is requested from here on may come too late for this preparation
            await unless(self._participant.prepare(), self._lost)
            if self._rejoin is None:
                return

    async def _join(self) -> JoinResult | None:
        """One JoinGroup; None when it is to be tried again."""
        if self.closing:
            raise Interrupted
        offers = self._participant.offers()
        await self._slow.ready(self._lost, self._stop)
        started = self._clock()
        try:
            response = await self._slow.join(self._member_id, offers, self._why, self._lost, self._stop)
        except Interrupted as interruption:
            self._member_id = self._member_id or interruption.member_id
            raise
        if response.error_code:
            if react(JOIN, response.error_code) is GroupReaction.TAKE_ID:
                self._member_id = response.member_id
                return None
            await self._react(JOIN, response.error_code, "cannot join")
            return None
        joined = join_result(response)
        if self._generation < 0:
            self._since = joined.generation
        self._member_id, self._generation = joined.member_id, joined.generation
        self._failure = None
        self._timing.reset_session_timeout()
        self._participant.acknowledged(started, rebalancing=False)
        names = [name for name, _ in offers]
        if joined.protocol not in names:
            await self._give_up()
            raise BrokerError(
                f"group {self.group!r}: the coordinator (broker {self._coordinator.node}) chose the allocator function "
                f"{joined.protocol!r:.80}, which this member does not offer; it offers {', '.join(names)}. This "
                "is a fault of the broker, or of a proxy before it"
            )
        return joined

    async def _sync(self, joined: JoinResult) -> bytes | None:
        """The part of this member; None when it must join again."""
        assignments: Mapping[str, bytes] = {}
        if joined.leads and not joined.skip_assignment:
            log.info("%s: leads %d members (generation %d)", self.group, len(joined.members), joined.generation)
            assignments = await unless(
                self._participant.compute_assignment(joined.protocol, joined.members), self._lost, self._stop
            )
        started = self._clock()
        response = await self._slow.sync(self._me, joined.protocol, assignments, self._lost, self._stop)
        if response.error_code:
            self._why = "not synced"
            await self._react(SYNC, response.error_code, "cannot sync")
            self._back_to_joining()
            return None
        self._timing.reset_session_timeout()
        self._participant.acknowledged(started, rebalancing=False)
        return bytes(response.assignment or b"")

    async def _react(self, table: dict[int, GroupReaction], code: int, what: str) -> None:
        """To the refusal of a JoinGroup or SyncGroup."""
        reaction = react(table, code)
        error = for_code(code, f"group {self.group!r}: {what}")
        if reaction in (GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED):
            self._lose(reaction, str(error))
        elif reaction is GroupReaction.FAIL:
            error.retriable = False
            raise error
        else:
            self._failure = error
            log.info("%s; trying again", error)
            if reaction is GroupReaction.REFIND:
                self._coordinator.forget()
            if reaction is not GroupReaction.REJOIN:
                await wait_for_event(self._stop, self._settings.retry_backoff_s)

    # -- the end of a membership ----------------------------------------------------------------------------------

    def _told(self, reaction: GroupReaction, why: str) -> None:
        """What the coordinator says of the present membership in its answer to something else than a join."""
        if reaction is GroupReaction.REJOIN:
            # older brokers also answer this while they wait for the leader; a member that is joining knows already
            if self.phase is GroupPhase.STABLE:
                self.request_rejoin("the group rebalances")
        elif reaction is GroupReaction.LOST and self.phase is GroupPhase.JOINING:
            pass  # the new generation has begun, and our JoinGroup's answer is on its way
        elif reaction in (GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED):
            self._lose(reaction, why)

    def _lose(self, reaction: GroupReaction, why: str) -> None:
        if reaction is GroupReaction.FENCED:
            why = f"another process runs as instance {self._settings.instance_id!r} of group {self.group!r}"
        if self._loss is None:
            to = GroupPhase.CLOSED if reaction is GroupReaction.FENCED else GroupPhase.OUT
            self._loss = LostMembership(why, to, reaction is not GroupReaction.LOST)
            self._poke()
            self._lost.set()

    async def _tell_loss(self, loss: LostMembership) -> None:
        left = self._me
        self._generation = -1
        if loss.forget_id:
            self._member_id = ""
        self._rejoin = loss.why
        self._move(loss.to, loss.why)
        self._loss = None
        self._lost.clear()
        await self._participant.lost(loss.why)
        if loss.to is GroupPhase.AWAY:
            await self._leave_group(left, loss.why)
        elif loss.to is GroupPhase.CLOSED:
            self._report(BrokerError(f"{loss.why}; give each process an instance id of its own", code=82))

    async def _depart(self) -> None:
        if self.phase in (GroupPhase.STABLE, GroupPhase.PREPARING, GroupPhase.JOINING, GroupPhase.SYNCING):
            await unless(self._participant.leaving(), self._lost)
        left = self._me
        self._generation = -1
        self._move(GroupPhase.CLOSED, "closing")
        await self._leave_group(left, "closing")

    async def _give_up(self) -> None:
        """The membership cannot go on: stops what is held and leaves, so that others need not wait for our session."""
        left, self._generation = self._me, -1
        if left.generation >= 0:
            try:
                await self._participant.lost("the membership ended")
            except Exception:
                log.exception("%s: what was held did not end well", self.group)
        await self._leave_group(left, "it cannot take part")

    async def _leave_group(self, who: Identity, why: str) -> None:
        if who.member_id and who.instance_id is None:
            self._member_id = ""
            await leave_group(self._coordinator, self.group, who, why, self._settings.retry_backoff_s)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def _keeps_alive(self) -> bool:
        return (
            self._generation >= 0
            and self._loss is None
            and self.phase not in (GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED)
        )

    async def _beat(self) -> None:
        me, started, session_s = self._me, self._timing.last_sent, self._settings.session_timeout_s
        # a coordinator that hangs must leave us the time to find its successor
        response = await self._coordinator.ask(heartbeat_request(self.group, me), time.monotonic() + session_s / 3)
        code = response.error_code
        if me != self._me or not self._keeps_alive():
            return  # about a generation that is over
        reaction = react(HEARTBEAT, code) if code else GroupReaction.DONE
        if reaction is GroupReaction.DONE:
            self._participant.acknowledged(started, rebalancing=False)
        elif reaction in (GroupReaction.REJOIN, GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED):
            if reaction is GroupReaction.REJOIN:
                self._participant.acknowledged(started, rebalancing=True)
            self._told(reaction, str(for_code(code, "the coordinator")))
        else:
            if reaction is GroupReaction.REFIND:
                self._coordinator.forget()
            error = for_code(code, f"group {self.group!r}: heartbeat refused")
            error.retriable = reaction is not GroupReaction.FAIL
            raise error

    def _beat_failed(self, error: BrokerError) -> float:
        log.warning("%s: %s", self.group, error)
        if not error.retriable:
            self._participant.failed(error)
        return self._settings.pause_s(error)

    def _idle(self) -> None:
        why = f"no sign of life from the user for {self._settings.max_poll_interval_s:g} s"
        if self.phase in (GroupPhase.STABLE, GroupPhase.PREPARING):
            self._loss = LostMembership(why, GroupPhase.AWAY, forget_id=True)
            self._poke()
            self._lost.set()
        else:
            self._timing.polled()  # no user could have done anything meanwhile

    def _silent(self) -> None:
        log.warning("%s: the coordinator has not acknowledged us for a whole session timeout", self.group)
        self._coordinator.forget()

    # -- helpers --------------------------------------------------------------------------------------------------

    @property
    def _me(self) -> Identity:
        return Identity(self._generation, self._member_id, self._settings.instance_id)

    def _back_to_joining(self) -> None:
        if self.phase is GroupPhase.SYNCING:
            self._move(GroupPhase.JOINING, "not synced")

    def _move(self, to: GroupPhase, why: str) -> None:
        if to not in MOVES[self.phase]:
            raise RuntimeError(f"group {self.group!r}: {self.phase.name} -> {to.name} ({why}) is no legal move")
        log.info("%s: %s -> %s: %s", self.group, self.phase.name, to.name, why)
        self.phase = to
        self._heart.poke()

    def _poke(self, *, stop: bool = False) -> None:
        if hasattr(self, "_news"):
            self._news.set()
            self._heart.poke()
            if stop:
                self._stop.set()

    def _report(self, error: Exception) -> None:
        if not self._joined.done():
            self._joined.set_exception(error)
        else:
            log.error("%s: %s", self.group, error)
            self._participant.failed(error)


# -- phases ----------
# Where a member stands with its group.


class GroupPhase(enum.Enum):
    OUT = "no member; nothing is held"
    PREPARING = "a rebalance is due; what must be given up is being drained and committed"
    JOINING = "JoinGroup is under way, or is about to be repeated"
    SYNCING = "in a new generation; its assignment is computed and handed out"
    STABLE = "assigned"
    AWAY = "left because the user was silent for too long; joins again at the next sign of life"
    CLOSED = "left for good, or fenced"


MOVES = {
    GroupPhase.OUT: {GroupPhase.PREPARING, GroupPhase.CLOSED},
    GroupPhase.PREPARING: {GroupPhase.JOINING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    GroupPhase.JOINING: {GroupPhase.SYNCING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    # back to JOINING: the next rebalance began first, or the coordinator went; what was prepared still is
    GroupPhase.SYNCING: {GroupPhase.STABLE, GroupPhase.JOINING, GroupPhase.OUT, GroupPhase.CLOSED},
    GroupPhase.STABLE: {GroupPhase.PREPARING, GroupPhase.OUT, GroupPhase.AWAY, GroupPhase.CLOSED},
    GroupPhase.AWAY: {GroupPhase.OUT, GroupPhase.CLOSED},
    GroupPhase.CLOSED: set(),
}


@dataclass(frozen=True)
class LostMembership:
    """The end of a membership that this member did not choose."""

    why: str
    to: GroupPhase
    forget_id: bool
