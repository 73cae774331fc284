"""Ownership of partitions by Kafka's own group protocol, shared with members of any other client.

Guarantee: a partition has at most one owner, as far as the protocol can give it: the coordinator gives a partition away
only after its last owner joined again without it, or was removed for its silence or its slowness; and this member stops
acting by its own clock before it can have been removed (see `kafka_lease`). What it commits carries its generation,
and the coordinator refuses it once that is over.

Members that offer `range`, `roundrobin` or `sticky` give up everything before each rebalance, as other clients do;
members that offer only others (`cooperative-sticky`, or functions of ours) hold on to what does not move (KIP-429).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allocator.assign import Assignor
from allocator.coordinator.consumer_protocol import PROTOCOL_TYPE, Given, Malformed
from allocator.coordinator.find import Coordinator
from allocator.coordinator.group import GroupCoordinator
from allocator.coordinator.group_messages import JoinedMember
from allocator.coordinator.identity import Identity
from allocator.coordinator.participant import GroupSettings
from allocator.errors import AllocatorError, BrokersUnavailable, ConfigError
from allocator.membership.base import Owner, compiled
from allocator.membership.kafka_lease import KafkaLease
from allocator.membership.kafka_plan import Self, decide, is_cooperative, offers, subscribed
from allocator.membership.kafka_sizes import DOUBT_S, Sizes
from allocator.membership.lease import boot_clock
from allocator.tasks import Scope, happens
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient

__all__ = ["KafkaMembership", "KafkaSettings"]

log = logging.getLogger(__name__)

Parts = frozenset[TopicPartition]
NONE: Parts = frozenset()


@dataclass(frozen=True)
class KafkaSettings:
    """How a member takes part. Times in seconds."""

    name: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    weight: float = 1.0
    rack: str | None = None
    connect_timeout_s: float | None = 15.0  # how long `join` waits for the coordinator; None: for ever
    topic_poll_s: float = 10.0  # how soon new partitions and topics are noticed, at one metadata request each
    group: GroupSettings = field(default_factory=GroupSettings)


class KafkaMembership:
    """One member of one group; see the module for what it guarantees.

    `client` is connected and stays the caller's. `owner` is told what to process; `assignors` are this member's
    allocator functions by name, the preferred one first. The constructor touches nothing.

    It is the `Committer` of a `GroupOffsets` too, which then commits as this member.
    """

    protocol_type = PROTOCOL_TYPE

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        owner: Owner,
        assignors: Mapping[str, Assignor],
        settings: KafkaSettings,
        *,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        if not assignors:
            raise ConfigError("a member of a group offers at least one allocator function, e.g. 'range'")
        self.member_id = ""
        self.generation = 0
        self.ended: BaseException | None = None
        """What ended this membership for good, other than `leave`."""
        self._client = client
        self._group_name = group
        self._owner = owner
        self._assignors = dict(assignors)
        self._settings = settings
        self._cooperative = is_cooperative(self._assignors)
        self._topics = settings.topics
        self._pattern = compiled(settings.pattern)
        self._wanted: frozenset[str] = settings.topics
        self._held: Parts = NONE
        self._draining: Parts = NONE
        self._before: tuple[Parts, int] = (NONE, -1)
        self._counts: Mapping[str, int] | None = None
        self._sizes = Sizes(client.partitions, clock)
        self._target: Mapping[str, Parts] = {}
        self._lease = KafkaLease(group, owner, clock)
        self._group = GroupCoordinator(client, group, self, settings.group, coordinator=coordinator, clock=clock)
        self._last_error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    # -- the surface ----------------------------------------------------------------------------------------------

    @property
    def held(self) -> Parts:
        return self._held

    @property
    def leading(self) -> bool:
        """Whether this member computed the current assignment."""
        return self._counts is not None

    @property
    def group(self) -> GroupCoordinator:
        """The protocol beneath: phase, coordinator, heartbeats."""
        return self._group

    def may_act(self) -> bool:
        return self._lease.valid

    def polled(self) -> None:
        """The user is alive (only with `max_poll_interval_s`)."""
        self._group.polled()

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; takes effect with the rebalance that this causes."""
        self._topics, self._pattern = frozenset(topics), compiled(pattern)
        self._group.request_rejoin("the subscription changed")

    async def join(self) -> None:
        """Becomes a member and waits for its first assignment, or for a rebalance that takes longer.

        Raises what prevents it: `BrokersUnavailable` when no coordinator was found in time, `ConfigError`, or
        `BrokerError` when the coordinator refuses.
        """
        if self._task is not None:
            raise RuntimeError("join() was called already")
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run(joined), name="membership")
        try:
            await asyncio.wait({joined}, timeout=self._settings.connect_timeout_s)
            if not joined.done():
                if self._group.coordinator is None:
                    raise BrokersUnavailable(
                        f"group {self._group_name!r} has no coordinator after {self._settings.connect_timeout_s} s; "
                        "is the offsets topic available?"
                    )
                log.info("%s: the group rebalances; this member gets its part when that ends", self._group_name)
                joined.set_result(None)
            joined.result()
        except BaseException:
            await self._abandon()
            raise

    async def leave(self) -> None:
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
        self._doubt = asyncio.Event()
        self._follow()
        remove = self._client.on_metadata(self._metadata_came)
        try:
            async with Scope() as scope:
                scope.start(self._poll_topics(), "topics")
                await scope.run(self._group.run(joined), "group")
                if not self._group.closing:
                    self.ended = self._last_error
        except Exception as error:
            log.exception("%s: the membership of %s ended", self._group_name, self.member_id)
            self.ended = error
            self._owner.failed(error)
        finally:
            remove()
            await self.lost("the membership ended")

    # -- commits --------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        return self._group.identity

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self._held or partition in self._draining

    def refused(self, code: int, sent: Identity) -> None:
        self._group.refused(code, sent)

    # -- called by the coordinator --------------------------------------------------------------------------------

    def offers(self) -> Sequence[tuple[str, bytes]]:
        held, (before, generation) = self._held | self._draining, self._before
        me = Self(
            topics=self._wanted,
            held=held if self._cooperative else NONE,
            generation=generation if held and self._cooperative else -1,
            before=before,
            before_generation=generation,
            name=self._settings.name,
            host=socket.gethostname(),
            weight=self._settings.weight,
            rack=self._settings.rack,
        )
        return offers(self._assignors, me)

    async def prepare(self) -> None:
        if self._pattern is not None:
            # another member may have seen a topic that we have not
            with contextlib.suppress(AllocatorError):
                await self._client.refresh()
        self._wanted = self._resolved()
        self._counts = None
        self._follow()
        keep = frozenset(p for p in self._held if p.topic in self._wanted) if self._cooperative else NONE
        await self._release(self._held - keep)

    async def assign(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        topics = subscribed(members)
        self._follow(topics)
        try:
            await self._client.refresh(topics, max_age_s=1.0)
        except AllocatorError as error:
            log.warning("%s: assigning by metadata that may be old: %s", self._group_name, error)
        decision = decide(self._assignors[protocol], members, self._sizes, self._target)
        if decision.problem is not None:
            log.error("%s: members keep what they have: %s", self._group_name, decision.problem)
            self._owner.failed(decision.problem)
        self._target = decision.target
        self._counts = decision.counts
        self._metadata_came()  # what has changed meanwhile
        return decision.given

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        identity = self._group.identity
        self.generation, self.member_id = generation, identity.member_id if identity is not None else ""
        mine = self._read(assignment)
        self._before = (mine, generation)
        gone, gained = self._held - mine, mine - self._held
        log.info(
            "%s: %s holds %d partitions in generation %d (%d new, %d to release)",
            self._group_name,
            self.member_id,
            len(mine),
            generation,
            len(gained),
            len(gone),
        )
        if gone:
            await self._release(gone)
            self._group.request_rejoin("released what moves to other members")
        if gained:
            self._held |= gained
            await self._owner.assigned(gained)

    async def lost(self, why: str) -> None:
        self._lease.end()
        self._counts = None
        self._before = (NONE, -1)  # whoever has them now is the one to keep them
        parts, self._held, self._draining = self._held | self._draining, NONE, NONE
        if parts:
            log.warning("%s: %s lost %d partitions: %s", self._group_name, self.member_id, len(parts), why)
            await self._owner.lost(parts)

    async def leaving(self) -> None:
        await self._release(self._held)

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        session_s = self._settings.group.session_timeout_s
        self._lease.renew(started, session_s, self._group.rebalance_timeout_s, rebalancing=rebalancing)

    def failed(self, error: BaseException) -> None:
        self._last_error = error
        self._owner.failed(error)

    # -------------------------------------------------------------------------------------------------------------

    def _read(self, assignment: bytes) -> Parts:
        try:
            given = Given.decode(assignment).partitions
        except Malformed as error:
            self._owner.failed(error)
            return NONE
        foreign = sorted({p.topic for p in given} - self._wanted)
        if foreign:
            log.error("%s: the leader gave us topics that we did not ask for: %s", self._group_name, foreign)
        return frozenset(p for p in given if p.topic in self._wanted)

    async def _release(self, partitions: Parts) -> None:
        if not partitions:
            return
        self._held -= partitions
        self._draining |= partitions
        try:
            await self._owner.revoked(partitions)
        except Exception:
            # whatever was not committed is processed again by the next owner; keeping it would stop the group
            log.exception("%s: releasing partitions of %s failed", self._group_name, self.member_id)
        self._draining -= partitions

    def _resolved(self) -> frozenset[str]:
        if self._pattern is None:
            return self._topics
        seen = self._client.topics() | self._wanted
        return self._topics | {topic for topic in seen if self._pattern.match(topic) and self._sizes(topic)}

    def _follow(self, also: frozenset[str] = frozenset()) -> None:
        self._sizes.keep(self._topics | self._wanted | also)
        if self._pattern is not None:
            self._client.follow_all()
        else:
            self._client.follow(self._topics | also)

    def _metadata_came(self) -> None:
        topics = self._topics if self._counts is None else self._counts
        sizes = {topic: len(self._sizes(topic)) for topic in topics}
        if self._pattern is not None and self._resolved() != self._wanted:
            self._group.request_rejoin("other topics match the pattern")
        elif self._counts is not None and sizes != self._counts:
            self._group.request_rejoin("topics or partitions were added or removed")
        if self._sizes.doubtful:
            self._doubt.set()

    async def _poll_topics(self) -> None:
        """What no message announces: new topics and partitions."""
        while True:
            if await happens(self._doubt, self._settings.topic_poll_s):
                await asyncio.sleep(DOUBT_S)
                self._doubt.clear()
            if self.leading or self._pattern is not None:
                try:
                    await self._client.refresh()
                except AllocatorError as error:
                    log.debug("%s: metadata is not to be had: %s", self._group_name, error)
                else:
                    self._metadata_came()
