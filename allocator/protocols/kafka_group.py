"""Base class of the state machines of Kafka's two group protocols.

The classic protocol (`kafka_classic.group`) and KIP-848 (`kip848.group`) assign partitions in different ways. In both,
a member finds the coordinator, sends heartbeats, reports errors and leaves the group in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from allocator.core.aio import TaskGroup, start_task
from allocator.core.client import Coordinator, ErrorCode, Identity, KafkaClient, Reaction, for_code, reaction_to
from allocator.core.membership import MemberSettings
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.heartbeat import HeartbeatLoop, HeartbeatTimer
from allocator.protocols.reactions import MEMBER_COMMIT, GroupReaction, Reactions

log = logging.getLogger(__name__)

T = TypeVar("T")

# seconds for leaving the group. Higher: closing waits longer for an absent coordinator; lower: the other members may
# wait until the session ends
LEAVE_WITHIN_S = 3.0


class KafkaGroupParticipant(Protocol):
    """The methods that the state machine of either protocol calls when a membership ends or fails."""

    async def lost(self, why: str) -> None:
        """Stops all work at once: another member may already own the held partitions."""

    def failed(self, error: BaseException) -> None:
        """Reports this error to the user."""


@dataclass(frozen=True)
class GroupSettings(MemberSettings):
    """The settings of a member under either protocol. Times in seconds."""

    rack: str | None = None
    topic_poll_s: float = 10.0  # between two metadata requests that detect new partitions and topics
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    max_poll_interval_s: float | None = None  # None: the user may poll at any interval
    # makes the member static (KIP-345): the group keeps its partitions for its successor until its session ends
    instance_id: str | None = None
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # pause after an error that an operator must fix and that was reported to the user

    def pause_s(self, error: AllocatorError) -> float:
        """Returns the seconds to wait before a retry after `error`."""
        return self.retry_backoff_s if passes(error) else self.failure_pause_s


@dataclass
class Signals:
    """The events of a running member. Created by `run`: before Python 3.10 an event belongs to the current loop."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set when the state machine must act
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    # KIP-848: the coordinator knows which partitions the member owns
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class LostMembership:
    """The reason why a membership ended although the member did not leave, and the next phase."""

    why: str
    to: Any
    """The next phase of the member."""
    forget_id: bool = True


class KafkaGroup:
    """One member of one group under either protocol. `KafkaMember` runs it.

    `phase` is the state of the member: `OUT` while it is not a member and may join, `AWAY` after it left because the
    user did not poll, `CLOSED` after it left for good.
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
        self.for_good = False
        """Whether a static member leaves for good when it closes, so that the group keeps nothing for a successor."""
        self.heartbeat = timer = HeartbeatTimer(clock, settings.max_poll_interval_s)
        """The timer of the heartbeats. Metrics read it."""
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
        self._since = 0  # generation or epoch at which this membership began

    @property
    def coordinator(self) -> int | None:
        """Node id of the coordinator, None while unknown."""
        return self._coordinator.node

    @property
    def failure(self) -> BrokerError | None:
        """Error of the last attempt to join, or None. The member retries."""
        return self._failure or self._coordinator.failure

    @property
    def identity(self) -> Identity | None:
        """The identity that requests carry now; None while this process is not a member of the group."""
        raise NotImplementedError

    async def run(self, joined: asyncio.Future[None]) -> None:
        """Joins, takes part and leaves. Resolves `joined` at the first assignment, or with the error that prevented
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
        except asyncio.CancelledError:
            request, node = self._last_request(), self._coordinator.node
            if request is not None and node is not None:
                with contextlib.suppress(AllocatorError):  # the client may be closed
                    self._client.send_now(node, request, LEAVE_WITHIN_S, lambda *_: None)
            # stops all work in the same step; the next owners need not wait for the user's listener
            await self._listener.lost("the membership was cancelled")
            raise
        finally:
            self._close()
            if not joined.done():
                joined.cancel()

    def polled(self) -> None:
        """Called when the user polls. A member that left because the user did not poll joins again."""
        self.heartbeat.polled()
        if self.phase is self.AWAY:
            self._poke()

    def leave(self) -> None:
        """Makes `run` release all partitions, leave the group and return."""
        self.closing = True
        if self._begun:
            self._signals.stop.set()
        self._poke()

    def refused(self, code: int, sent: Identity) -> bool | None:
        """Implements `Committer.refused`. Returns True if the membership is still the same: then the partitions that
        the member still holds may be committed in the current generation or the next one."""
        reaction = MEMBER_COMMIT.get(code)
        if reaction is None:
            return None
        if sent == self.identity:  # otherwise the error code concerns an earlier generation
            self._commit_refused(reaction, f"a commit was refused: {for_code(code, 'the coordinator')}")
        now = self.identity
        return now is not None and sent.member_id == now.member_id and sent.generation >= self._since

    # -- implemented by the protocol ------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises `ConfigError` if the brokers lack the protocol."""
        raise NotImplementedError

    async def _take_part(self) -> None:
        """Takes part in the group until the phase is `CLOSED`."""
        raise NotImplementedError

    async def _cannot_go_on(self, error: Exception) -> None:
        self._report(error)

    def _last_request(self) -> Any:
        """Returns the request by which a cancelled member leaves, so that the others need not wait until its session
        ends; None if it must not leave, or has begun to."""
        raise NotImplementedError

    def _close(self) -> None:
        """Called when the member's task ends: drops the identity."""
        raise NotImplementedError

    def _commit_refused(self, reaction: GroupReaction, why: str) -> None:
        """Handles a commit of the current membership that the coordinator refused."""
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
            why = f"the user did not poll for {self._settings.max_poll_interval_s:g} s"
            self._end_membership(LostMembership(why, self.AWAY))
        else:
            self.heartbeat.polled()  # the user could not poll while the member joins or leaves

    def _may_go_away(self) -> bool:
        """Whether the member leaves because the user does not poll."""
        raise NotImplementedError

    # -- the end of a membership ----------------------------------------------------------------------------------

    @property
    def _restarts(self) -> bool:
        """Whether the group keeps the partitions of this static member for its next process if it leaves now."""
        return self._settings.instance_id is not None and not (self.closing and self.for_good)

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
        self, request: Callable[[], Any], code_of: Callable[[Any], int], reactions: Reactions, member_id: str, why: str
    ) -> None:
        """Leaves the group, so that the other members need not wait until the session ends.

        Retries for at most `LEAVE_WITHIN_S` seconds, and only logs a failure. `request` is called for each attempt,
        because a request keeps the version that it negotiated with the first broker.
        """
        member = f"{self.group}: {member_id}"
        deadline = time.monotonic() + LEAVE_WITHIN_S
        while True:
            try:
                code = code_of(await self._coordinator.send(request(), deadline))
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
    """Returns whether the error is temporary. The member retries after such an error and need not report it."""
    return error.retriable and isinstance(error, BrokerError)


class Interrupted(Exception):
    """Ends a request whose result no longer matters. Only the Kafka protocols raise and catch it."""

    def __init__(self, member_id: str = "") -> None:
        super().__init__(member_id)
        self.member_id = member_id
        """The member id that the coordinator assigned while the request was in progress."""


async def unless(work: Awaitable[T], *events: asyncio.Event) -> T:
    """Returns the result of `work`. If one of the events is set first, cancels `work`, waits until it has ended and
    raises `Interrupted`."""

    async def result() -> T:
        return await work

    task = start_task(result())
    waits = [start_task(event.wait()) for event in events]
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
            task.exception()  # marks it as retrieved, because `Interrupted` takes precedence
