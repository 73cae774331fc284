"""The code that Kafka's two group protocols share: the frame of the state machine, interruptible requests, leaving.

The classic protocol (`kafka_classic.group`) and KIP-848 (`kip848.group`) assign partitions in different ways. In both,
members find the coordinator, send heartbeats, report errors, and leave the group in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from allocator.core.aio import TaskGroup
from allocator.core.client import ErrorCode, KafkaClient, Reaction, for_code, reaction_to
from allocator.core.membership import MemberSettings
from allocator.core.offsets import Coordinator, Identity
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.heartbeat import HeartbeatLoop, HeartbeatTimer
from allocator.protocols.reactions import MEMBER_COMMIT, GroupReaction, Reactions

log = logging.getLogger(__name__)

T = TypeVar("T")

# limit of leaving. more: closing waits longer for an absent coordinator; less: the group may wait for the end of the
# session
LEAVE_WITHIN_S = 3.0


class KafkaGroupParticipant(Protocol):
    """The part of a participant that is the same in both protocols."""

    async def lost(self, why: str) -> None:
        """Another member may own the held partitions already."""

    def failed(self, error: BaseException) -> None:
        """Pass this error to the user."""


@dataclass(frozen=True)
class GroupSettings(MemberSettings):
    """How a member takes part in a group of either protocol. Times in seconds."""

    rack: str | None = None
    topic_poll_s: float = 10.0  # between two metadata requests that look for new partitions and topics
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    max_poll_interval_s: float | None = None  # None: the user may poll at any interval
    # of a static member (KIP-345): the group keeps its partitions for its successor until its session ends
    instance_id: str | None = None
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # after an error that a retry does not cure; the user has been notified of it

    def pause_s(self, error: AllocatorError) -> float:
        """Seconds to wait before a retry after `error`."""
        return self.retry_backoff_s if passes(error) else self.failure_pause_s


@dataclass
class Signals:
    """Created when the member begins to run: before Python 3.10 an event belongs to the loop that is current then."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)  # there is something to do
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)  # KIP-848: the coordinator knows what is owned


@dataclass(frozen=True)
class LostMembership:
    """Another process or the coordinator ended the membership, or the user was silent for too long."""

    why: str
    to: Any
    """The phase in which the member is then."""
    forget_id: bool = True


class KafkaGroup:
    """One member of one group by either protocol. `KafkaMember` runs it.

    `phase` is the member's state: `OUT` while it is no member and may join, `AWAY` after it left because the user was
    silent, `CLOSED` when it is over.
    """

    OUT: ClassVar[Any]
    AWAY: ClassVar[Any]
    CLOSED: ClassVar[Any]
    phase: Any
    member_id: str

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        participant: KafkaGroupParticipant,
        coordinator: Coordinator | None,
        settings: GroupSettings,
        clock: Callable[[], float],
    ) -> None:
        self.group = group
        self.closing = False  # `leave` was called
        self.heartbeat = timer = HeartbeatTimer(clock, settings.max_poll_interval_s)
        """The times of the heartbeats, for metrics."""
        self._client = client
        self._listener = participant
        self._settings = settings
        self._coordinator = coordinator or Coordinator(client, group, settings.retry_backoff_s)
        self._signals: Signals
        self._begun = False
        self._loss: LostMembership | None = None
        self._failure: BrokerError | None = None
        self._loop = HeartbeatLoop(
            timer, wanted=self._keeps_alive, send=self._send_heartbeat, failed=self._heartbeat_failed, idle=self._idle
        )
        self._joined: asyncio.Future[None]
        self._since = 0  # the generation or epoch with which this membership began

    @property
    def coordinator(self) -> int | None:
        """Node id of the coordinator, None while unknown."""
        return self._coordinator.node

    @property
    def failure(self) -> BrokerError | None:
        """Why the last attempt to join failed; the member tries again."""
        return self._failure or self._coordinator.failure

    @property
    def identity(self) -> Identity | None:
        """The identity that requests carry now; None while this is no member of the group."""
        raise NotImplementedError

    async def run(self, joined: asyncio.Future[None]) -> None:
        """Joins, takes part, and leaves. Resolves `joined` at the first assignment, or with the error that prevents
        it."""
        self._signals, self._begun = Signals(), True
        self._joined = joined
        self.heartbeat.polled()
        if self.closing:
            self._signals.stop.set()
        try:
            self._check()
            await TaskGroup().run(self._take_part(), heartbeats=self._loop.run())
        except Exception as error:
            if not isinstance(error, AllocatorError):
                log.exception("%s: the membership of %s ended", self.group, self.member_id)
            await self._cannot_go_on(error)
        finally:
            self._close()
            if not joined.done():
                joined.cancel()

    def polled(self) -> None:
        """Call it when the user asks for records. A member that left because the user did not ask joins again."""
        self.heartbeat.polled()
        if self.phase is self.AWAY:
            self._poke()

    def leave(self) -> None:
        """Makes `run` release everything, leave and end."""
        self.closing = True
        if self._begun:
            self._signals.stop.set()
        self._poke()

    def refused(self, code: int, sent: Identity) -> bool | None:
        """Implements `Committer.refused`: whether the membership is still the same. Then partitions that are still held
        may be committed in the present generation or the next."""
        reaction = MEMBER_COMMIT.get(code)
        if reaction is None:
            return None
        if sent == self.identity:  # otherwise the code is not about the present generation
            self._commit_refused(reaction, f"a commit was refused: {for_code(code, 'the coordinator')}")
        now = self.identity
        return now is not None and sent.member_id == now.member_id and sent.generation >= self._since

    # -- implemented by the protocol ------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises `ConfigError` if the brokers lack the protocol."""
        raise NotImplementedError

    async def _take_part(self) -> None:
        """Runs until the phase is `CLOSED`."""
        raise NotImplementedError

    async def _cannot_go_on(self, error: Exception) -> None:
        self._report(error)

    def _close(self) -> None:
        """The member's task ends: it has no identity any more."""
        raise NotImplementedError

    def _commit_refused(self, reaction: GroupReaction, why: str) -> None:
        """A commit of the present membership was refused."""
        raise NotImplementedError

    # -- called by the heartbeat loop -----------------------------------------------------------------------------

    def _keeps_alive(self) -> bool:
        raise NotImplementedError

    async def _send_heartbeat(self) -> None:
        raise NotImplementedError

    def _heartbeat_failed(self, error: BrokerError) -> float:
        raise NotImplementedError

    def _idle(self) -> None:
        if self._may_go_away():
            why = f"the user asked for nothing for {self._settings.max_poll_interval_s:g} s"
            self._end_membership(LostMembership(why, self.AWAY))
        else:
            self.heartbeat.polled()  # the user could not poll while the member joins or leaves

    def _may_go_away(self) -> bool:
        """Whether this is a member that a silent user costs its membership."""
        raise NotImplementedError

    # -- the end of a membership ----------------------------------------------------------------------------------

    def _lose(self, reaction: object, why: str) -> None:
        to = self.OUT
        if reaction is GroupReaction.FENCED:
            to = self.CLOSED
            why = f"another process runs as instance {self._settings.instance_id!r} of group {self.group!r}"
        self._end_membership(LostMembership(why, to, reaction is not GroupReaction.LOST))

    def _end_membership(self, loss: LostMembership) -> None:
        if self._loss is None and self._begun:
            self._loss = loss
            self._signals.lost.set()
            self._poke()

    def _report_fenced(self, loss: LostMembership) -> None:
        why = f"{loss.why}; give each process an instance id of its own"
        self._report(BrokerError(why, code=ErrorCode.FENCED_INSTANCE_ID))

    def _poke(self) -> None:
        if self._begun:
            self._signals.changed.set()
            self._loop.poke()

    def _report(self, error: Exception) -> None:
        if not self._joined.done():
            self._joined.set_exception(error)
        else:
            log.error("%s: %s", self.group, error)
            self._listener.failed(error)

    async def _repeat_leave(
        self,
        request: Callable[[], Any],
        code_of: Callable[[Any], int],
        reactions: Reactions,
        member_id: str,
        why: str,
    ) -> None:
        """Leaves the group, so that its other members need not wait until the session ends.

        Repeats the request while that may help, for at most `LEAVE_WITHIN_S`. Only logs a failure. `request` creates a
        new one for each attempt: the version of a request is that of the broker which got it first.
        """
        member = f"{self.group}: {member_id}"
        deadline = time.monotonic() + LEAVE_WITHIN_S
        while True:
            try:
                code = code_of(await self._coordinator.ask(request(), deadline))
                reaction = reaction_to(code, reactions)
            except BrokerError as error:
                log.debug("%s: cannot leave: %s", member, error)
                reaction = Reaction.RETRY if error.retriable else Reaction.FAIL
            if reaction is Reaction.DONE:
                log.info("%s left: %s", member, why)
                return
            if reaction is Reaction.REFIND:
                self._coordinator.forget()
            if reaction is Reaction.FAIL or time.monotonic() >= deadline:
                log.warning("%s could not leave; its session will time out", member)
                return
            await asyncio.sleep(self._settings.retry_backoff_s)


def passes(error: AllocatorError) -> bool:
    """Whether the broker's error ends without intervention, so that the user need not see it."""
    return error.retriable and isinstance(error, BrokerError)


class Interrupted(Exception):
    """The result of a request does not matter any more. Caught within the rooms of the Kafka protocols."""

    def __init__(self, member_id: str = "") -> None:
        super().__init__(member_id)
        self.member_id = member_id
        """The id that the coordinator assigned to this member while the request was in progress."""


async def unless(work: Awaitable[T], *events: asyncio.Event) -> T:
    """Returns the result of `work`. If one of the events comes first, cancels `work`, awaits its end and raises
    `Interrupted`."""
    task = asyncio.ensure_future(work)
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait({task, *waits}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Interrupted
    finally:
        pending = [each for each in (task, *waits) if not each.done()]
        for each in pending:
            each.cancel()
        if pending:
            await asyncio.wait(pending)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the interruption takes precedence
