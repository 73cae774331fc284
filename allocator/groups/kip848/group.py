"""Membership of one group by the next-generation protocol: ConsumerGroupHeartbeat alone (KIP-848).

The coordinator decides who gets what; a member says what it wants and what it owns, and is told what it may use. Knows
partitions by the ids of their topics; a `Kip848Participant` knows them by name and processes them. The consumer's is in
`allocator.groups.kip848.membership`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allocator.client.client import KafkaClient
from allocator.client.errors import MEMBER_COMMIT, NEXT_HEARTBEAT, NEXT_LEAVE, GroupReaction, for_code, react
from allocator.errors import AllocatorError, BrokerError
from allocator.groups.group_requests import LEAVE_WITHIN_S, Interrupted, unless
from allocator.groups.heartbeat import Heartbeat
from allocator.groups.kip848.messages import ConsumerGroupHeartbeatRequest, HeartbeatAnswer, compose, parse
from allocator.groups.kip848.settings import (
    Ids,
    Kip848GroupSettings,
    Kip848Participant,
    ask_session_timeout,
    no_such_protocol,
    refusal,
)
from allocator.offsets.coordinator import PATIENCE_S, Coordinator
from allocator.offsets.messages import Identity
from allocator.tasks import TaskGroup, wait_for_event

__all__ = ["JOINS", "Kip848Group", "Kip848Phase", "Said", "Signals", "heartbeat", "say_goodbye"]

log = logging.getLogger(__name__)

NOTHING: Ids = frozenset()


SESSION_ASKED_EVERY_S = 60.0  # more: a shorter session timeout is heard of later; less: more requests


UNNAMED_RETRY_S = 0.5  # how soon metadata is asked again for the name of a topic that was just made


class Kip848Group:
    """One member of one group.

    Guarantees: what the coordinator gave counts as owned, and each heartbeat that names what is owned says so, until
    `release` has returned; only then does the coordinator hear that others may have it. Nothing new is taken before it
    has heard that. An answer of an earlier life of this member changes nothing.

    The member id is made here and stays the same for the life of this object; the epoch is the coordinator's.
    `run` is the member's life and the owner's to await. The constructor touches nothing.
    """

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        participant: Kip848Participant,
        settings: Kip848GroupSettings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.phase = Kip848Phase.JOINING
        self.member_id = str(uuid.uuid4())
        self.epoch = JOINS
        self._since = JOINS  # the epoch with which this life began
        self.closing = False  # `leave` was called
        self._client = client
        self._participant = participant
        self._settings = settings
        self._coordinator = coordinator or Coordinator(client, group, settings.retry_backoff_s)
        self._timing = Heartbeat(clock, max_poll_interval_s=settings.max_poll_interval_s)
        self._signals: Signals | None = None
        self._urgent = True  # a heartbeat is due whatever the interval says
        self._session_s: float | None = None  # as the broker said; None: it does not say
        self._session_asked = float("-inf")
        self._heard: Said | None = None  # None: say everything
        self._given: Ids | None = None  # the last assignment; None: none yet in this life
        self._reached: Ids | None = None  # the one that was carried out
        self._owned = NOTHING
        self._loss: tuple[str, Kip848Phase] | None = None
        self._failure: BrokerError | None = None
        self._waits_for_namesake = False

    # -- the surface ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        """As of now; None while this is no member."""
        if self.epoch <= 0 or self._loss is not None:
            return None
        return Identity(self.epoch, self.member_id, self._settings.instance_id, by_epoch=True)

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

    def changed(self) -> None:
        """What this member wants has changed: the coordinator hears of it at once."""
        self._beat_now()

    def polled(self) -> None:
        """The user is alive; brings a member back that left for the lack of it."""
        self._timing.polled()
        if self.phase is Kip848Phase.AWAY:
            self._poke()

    def leave(self) -> None:
        """Have `run` give everything up, leave and end."""
        self.closing = True
        if self._signals is not None:
            self._signals.stop.set()
        self._poke()

    def refused(self, code: int, sent: Identity) -> bool:
        """A commit was refused: what that says of the membership. Returns whether this is the life in which it was
        sent, so that what is still held may be committed under the present epoch or the next."""
        reaction = react(MEMBER_COMMIT, code)
        if sent != self.identity:
            pass  # it says nothing of the present epoch
        elif reaction is GroupReaction.NEW_EPOCH:
            self._beat_now()
        elif reaction in (GroupReaction.LOST, GroupReaction.RESET, GroupReaction.FENCED):
            self._lose(reaction, f"a commit was refused: {for_code(code, 'the coordinator')}")
        return self.identity is not None and sent.generation >= self._since

    async def run(self, joined: asyncio.Future[None]) -> None:
        """Joins, takes part, and leaves. `joined` is resolved at the first assignment, or with what prevents it."""
        self._signals = Signals()
        self._joined = joined
        self._timing.polled()
        if self.closing:
            self._signals.stop.set()
        try:
            if self._client.api_version(ConsumerGroupHeartbeatRequest) is None:
                raise no_such_protocol(self.group)
            await TaskGroup().run(self._take_part(self._signals), heartbeats=self._beats(self._signals))
        except AllocatorError as error:
            self._report(error)
        except Exception as error:
            log.exception("%s: the membership of %s ended", self.group, self.member_id)
            self._report(error)
        finally:
            self.epoch = JOINS
            if self.phase is not Kip848Phase.CLOSED:
                self._move(Kip848Phase.CLOSED, "the task ended")
            if not joined.done():
                joined.cancel()

    # -- what is given and taken ----------------------------------------------------------------------------------

    async def _take_part(self, signals: Signals) -> None:
        """One turn for each thing to do."""
        while self.phase is not Kip848Phase.CLOSED:
            signals.news.clear()
            try:
                if self._loss is not None:
                    await self._tell_loss(*self._loss)
                elif self.closing:
                    await self._depart(signals)
                elif self.phase is Kip848Phase.AWAY and not self._timing.idle_too_long:
                    self._move(Kip848Phase.JOINING, "the user is back")
                    self._beat_now()
                elif self._given is not None and self._given != self._reached:
                    await self._reconcile(signals, self._given)
                else:
                    await signals.news.wait()
            except Interrupted:
                pass

    async def _reconcile(self, signals: Signals, given: Ids) -> None:
        """One step towards `given`: give up what is not in it, or else take what is new."""
        if self._owned - given:
            self._move(Kip848Phase.RECONCILING, f"{len(self._owned - given)} partitions to release")
            await self._release(signals, self._owned - given)
            # others wait for these, and we may be given more once the coordinator knows that they are free
            signals.heard.clear()
            self._beat_now()
            await unless(signals.heard.wait(), signals.lost, signals.stop)
            return
        complete = await unless(self._participant.take(given), signals.lost)
        if not self._joined.done():
            self._timing.polled()
            self._joined.set_result(None)
        if complete:
            self._reached = given
            self._move(Kip848Phase.STABLE, f"{len(given)} partitions at epoch {self.epoch}")
        else:
            self._move(Kip848Phase.RECONCILING, "some topics are not known yet")
            await wait_for_event(signals.news, UNNAMED_RETRY_S)

    async def _release(self, signals: Signals, gone: Ids) -> None:
        await unless(self._participant.release(gone), signals.lost)
        # what was given back to us meanwhile is ours, though it has to be begun with anew
        self._owned = (self._owned - gone) | (self._given or NOTHING)
        self._reached = None

    # -- the end of a membership ----------------------------------------------------------------------------------

    def _lose(self, reaction: GroupReaction, why: str) -> None:
        to = Kip848Phase.JOINING
        if reaction is GroupReaction.FENCED:
            to = Kip848Phase.CLOSED
            why = f"another process runs as instance {self._settings.instance_id!r} of group {self.group!r}"
        self._end(why, to)

    def _end(self, why: str, to: Kip848Phase) -> None:
        if self._loss is None and self._signals is not None:
            self._loss = (why, to)
            self._signals.lost.set()
            self._poke()

    async def _tell_loss(self, why: str, to: Kip848Phase) -> None:
        was_member = self.epoch > 0
        self.epoch, self._heard, self._given, self._reached, self._owned = JOINS, None, None, None, NOTHING
        self._move(to, why)
        await self._participant.lost(why)
        self._loss = None
        if self._signals is not None:
            self._signals.lost.clear()
        if to is Kip848Phase.AWAY and was_member:
            await self._say_goodbye(why)
        elif to is Kip848Phase.CLOSED:
            self._report(BrokerError(f"{why}; give each process an instance id of its own", code=82))
        self._beat_now()

    async def _depart(self, signals: Signals) -> None:
        if self.epoch > 0:
            await self._release(signals, self._owned)
        was_member = self.phase is not Kip848Phase.AWAY and self._timing.last_sent > float("-inf")
        self.epoch = JOINS
        self._move(Kip848Phase.CLOSED, "closing")
        if was_member:
            await self._say_goodbye("closing")

    async def _say_goodbye(self, why: str) -> None:
        await say_goodbye(self._coordinator, self.group, self.member_id, self._settings, why)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    async def _beats(self, signals: Signals) -> None:
        """Until cancelled."""
        timing = self._timing
        while True:
            signals.beat.clear()
            if self._loss is not None or self.phase in (Kip848Phase.AWAY, Kip848Phase.CLOSED):
                await signals.beat.wait()
            elif timing.idle_too_long:
                self._idle()
            elif not self._urgent and not timing.should_heartbeat:
                ttl, idle_ttl = timing.ttl, timing.idle_ttl
                await wait_for_event(signals.beat, ttl if idle_ttl is None else min(ttl, idle_ttl))
            else:
                self._urgent = False
                try:
                    await self._beat(signals)
                except BrokerError as error:
                    # the coordinator may have heard it all the same, and its answer may have been an assignment
                    self._heard = None
                    self._failure = error
                    if error.retriable:
                        log.info("%s: heartbeat failed: %s", self.group, error)
                        timing.failed_heartbeat(self._settings.retry_backoff_s)
                    else:
                        self._tell_failure(error)

    async def _beat(self, signals: Signals) -> None:
        """One heartbeat and what its answer means. Raises `BrokerError` when it is to be repeated."""
        await self._know_session()
        # what it answers proves nothing of the time before it was asked
        await self._coordinator.find(time.monotonic() + PATIENCE_S)
        epoch, given, heard = self.epoch, self._given, self._heard
        said = Said(self._participant.topics(), self._owned)
        # a coordinator that hangs must leave us the time to find its successor
        patience_s = PATIENCE_S if self._session_s is None else min(PATIENCE_S, self._session_s / 3)
        request = heartbeat(self.group, self.member_id, epoch, said, heard, self._settings)
        started = self._timing.sent_heartbeat()
        answer = parse(await self._coordinator.ask(request, time.monotonic() + patience_s, patience_s))
        if self._loss is not None or self.phase in (Kip848Phase.AWAY, Kip848Phase.CLOSED) or epoch != self.epoch:
            return  # about an earlier life
        if answer.code:
            await self._react(answer)
            return
        self._adopt(answer)
        # an assignment that an earlier answer brought which was lost has been known to the coordinator since then
        missed = heard is None and epoch != JOINS
        given = self._given if missed and answer.assignment is not None else given
        unsure = missed and answer.assignment is None
        revoking = unsure or (given is not None and bool(said.owned - given))
        self._heard = said
        self._participant.acknowledged(started, self._timing.session_timeout_s, revoking=revoking)
        if not said.owned - self._owned:
            signals.heard.set()

    def _adopt(self, answer: HeartbeatAnswer) -> None:
        self._failure = None
        if self.epoch == JOINS:
            self._since = answer.epoch
        if self.epoch != answer.epoch:
            log.info("%s: %s is at epoch %d", self.group, self.member_id, answer.epoch)
        self.epoch = answer.epoch
        self._waits_for_namesake = False
        # a broker that does not tell the session timeout is only known to have set it to more than the interval
        session_s = self._session_s or answer.interval_s
        self._timing.session_timeout_s = session_s
        self._timing.interval_s = min(answer.interval_s, session_s / 3, self._settings.rebalance_timeout_s / 3)
        self._timing.received_heartbeat()
        if answer.assignment is not None:
            self._given = answer.assignment
            self._owned |= answer.assignment
            self._poke()

    async def _know_session(self) -> None:
        now, first = self._timing.clock(), self._session_asked == float("-inf")
        if now < self._session_asked + SESSION_ASKED_EVERY_S:
            return
        self._session_asked = now
        self._session_s = await ask_session_timeout(self._client, self.group) or self._session_s
        if self._session_s is None and first:
            log.warning(
                "%s: the broker does not tell this user the group's session timeout; to be on the safe side, this "
                "member counts on no more than the heartbeat interval. Allow DESCRIBE_CONFIGS on the group",
                self.group,
            )

    async def _react(self, answer: HeartbeatAnswer) -> None:
        """To the refusal of a heartbeat."""
        reaction = react(NEXT_HEARTBEAT, answer.code)
        error = for_code(answer.code, f"group {self.group!r}")
        if reaction in (GroupReaction.LOST, GroupReaction.FENCED) and self.epoch != JOINS:
            self._lose(reaction, f"{error} ({answer.message})" if answer.message else str(error))
        elif answer.code == 110:
            # it still counts us as a member of our earlier life, which would last until the session ends
            await self._say_goodbye("its epoch is not known any more")
            self._beat_now()
        elif reaction in (GroupReaction.LOST, GroupReaction.FENCED, GroupReaction.FAIL):
            self._tell_failure(refusal(answer.code, answer.message, self.group, self._settings))
        else:
            if answer.code == 111 and not self._waits_for_namesake:
                self._waits_for_namesake = True
                log.warning("%s: waits until its predecessor has left or expired: %s", self.group, answer.message)
            if reaction is GroupReaction.REFIND:
                self._coordinator.forget()
            error.retriable = True
            raise error

    def _tell_failure(self, error: AllocatorError) -> None:
        """Retrying does not help unless somebody changes something."""
        self._heard = None
        self._timing.failed_heartbeat(self._settings.failure_pause_s)
        first = not self._joined.done()
        self._report(error)
        if first:
            self._move(Kip848Phase.CLOSED, "refused")

    def _idle(self) -> None:
        why = f"no sign of life from the user for {self._settings.max_poll_interval_s:g} s"
        if self._joined.done() and self.epoch > 0 and not self.closing:
            self._end(why, Kip848Phase.AWAY)
        else:
            self._timing.polled()  # no user could have polled: we are not in yet, or already leaving

    # -- helpers --------------------------------------------------------------------------------------------------

    def _beat_now(self) -> None:
        self._urgent = True
        if self._signals is not None:
            self._signals.beat.set()

    def _poke(self) -> None:
        if self._signals is not None:
            self._signals.news.set()
            self._signals.beat.set()

    def _move(self, to: Kip848Phase, why: str) -> None:
        if to is not self.phase:
            log.info("%s: %s -> %s: %s", self.group, self.phase.name, to.name, why)
            self.phase = to
            self._poke()

    def _report(self, error: Exception) -> None:
        if not self._joined.done():
            self._joined.set_exception(error)
        else:
            log.error("%s: %s", self.group, error)
            self._participant.failed(error)


# -- next_phases ----------
# Where a member of the next-generation protocol may stand, and what wakes it.


class Kip848Phase(enum.Enum):
    JOINING = "no member, or not any more; the next heartbeat joins"
    RECONCILING = "a member that does not hold yet, or still holds too much of, what it was given"
    STABLE = "holds what it was given"
    AWAY = "left because the user was silent for too long; joins again at the next sign of life"
    CLOSED = "left for good, or fenced"


@dataclass
class Signals:
    """Made when the member begins to run: asyncio's events belong to a loop."""

    news: asyncio.Event = field(default_factory=asyncio.Event)  # there is something to do
    beat: asyncio.Event = field(default_factory=asyncio.Event)  # look again at when a heartbeat is due
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # the coordinator does not count more as ours than is


# -- next_messages ----------
# What a member of the next-generation protocol says: the heartbeat that has the news, or everything, or farewell.


JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2  # in place of an epoch


class Said(NamedTuple):
    """What the coordinator was told of a member."""

    topics: frozenset[str]
    owned: Ids


def heartbeat(
    group: str, member_id: str, epoch: int, said: Said, heard: Said | None, settings: Kip848GroupSettings
) -> Any:
    """In full if the coordinator is not known to have heard anything, which has it repeat the assignment; else what
    is new since `heard`."""
    if heard is None:
        return compose(
            group,
            member_id,
            epoch,
            instance_id=settings.instance_id,
            rack=settings.rack,
            rebalance_timeout_s=settings.rebalance_timeout_s,
            topics=said.topics,
            assignor=settings.server_assignor,
            owned=said.owned,
        )
    return compose(
        group,
        member_id,
        epoch,
        instance_id=settings.instance_id,
        topics=said.topics if said.topics != heard.topics else None,
        owned=said.owned if said.owned != heard.owned else None,
    )


async def say_goodbye(
    coordinator: Coordinator, group: str, member_id: str, settings: Kip848GroupSettings, why: str
) -> None:
    """Leaves, a static member for a while. Repeated while that may help, for `LEAVE_WITHIN_S` at most; a failure is
    logged and no more."""
    deadline = time.monotonic() + LEAVE_WITHIN_S
    epoch = LEAVES if settings.instance_id is None else LEAVES_FOR_A_WHILE
    while True:
        request = compose(group, member_id, epoch, instance_id=settings.instance_id)
        try:
            code = parse(await coordinator.ask(request, deadline)).code
            reaction = react(NEXT_LEAVE, code) if code else GroupReaction.DONE
        except BrokerError as error:
            log.debug("%s: cannot leave: %s", group, error)
            reaction = GroupReaction.RETRY if error.retriable else GroupReaction.FAIL
        if reaction is GroupReaction.DONE:
            log.info("%s: %s left: %s", group, member_id, why)
            return
        if reaction is GroupReaction.REFIND:
            coordinator.forget()
        if reaction is GroupReaction.FAIL or time.monotonic() >= deadline:
            log.warning("%s: %s did not get to leave; its session will end by itself", group, member_id)
            return
        await asyncio.sleep(settings.retry_backoff_s)
