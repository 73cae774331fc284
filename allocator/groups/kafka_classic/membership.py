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

from allocator.assignors import Assignor, left_out
from allocator.client.client import KafkaClient
from allocator.clock import boot_clock
from allocator.errors import AllocatorError, ConfigError
from allocator.groups.kafka_classic.consumer_protocol import PROTOCOL_TYPE, Malformed, MemberAssignment
from allocator.groups.kafka_classic.group import GroupCoordinator
from allocator.groups.kafka_classic.messages import JoinedMember
from allocator.groups.kafka_classic.plan import (
    DOUBT_S,
    GroupMembers,
    OwnMetadata,
    PartitionCounts,
    decide,
    is_cooperative,
    offers,
)
from allocator.groups.kafka_classic.settings import KafkaGroupSettings
from allocator.groups.kafka_member import KafkaMember
from allocator.groups.membership import AssignmentListener
from allocator.groups.patterns import compiled
from allocator.groups.view import GroupViewBuilder, Load, tell_left_out
from allocator.offsets.coordinator import Coordinator
from allocator.tasks import wait_for_event
from allocator.types import NO_PARTITIONS, Partitions

__all__ = ["KafkaMembership", "KafkaSettings"]

log = logging.getLogger(__name__)

# more: load is older; less: the second round of a rebalance, in which what was released is given away, may want
# something else than the first
LOAD_FRESH_S = 10.0


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
    group: KafkaGroupSettings = field(default_factory=KafkaGroupSettings)


class KafkaMembership(KafkaMember):
    """One member of one group; see the module for what it guarantees.

    `client` is connected and stays the caller's. `owner` is told what to process; `assignors` are this member's
    allocator functions by name, the preferred one first; `load` tells those that want it how much work each partition
    is. The constructor touches nothing.

    It is the `Committer` of a `GroupOffsets` too, which then commits as this member.
    """

    protocol_type = PROTOCOL_TYPE
    _group: GroupCoordinator

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        owner: AssignmentListener,
        assignors: Mapping[str, Assignor],
        settings: KafkaSettings,
        *,
        load: Load | None = None,
        coordinator: Coordinator | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        if not assignors:
            raise ConfigError("a member of a group offers at least one allocator function, e.g. 'range'")
        super().__init__(client, group, owner, settings.connect_timeout_s, clock)
        self.member_id = ""
        self.generation = 0
        self._assignors = dict(assignors)
        self._settings = settings
        self._cooperative = is_cooperative(self._assignors)
        self._topics = settings.topics
        self._pattern = compiled(settings.pattern)
        self._wanted: frozenset[str] = settings.topics
        self._before: tuple[Partitions, int] = (NO_PARTITIONS, -1)
        self._counts: Mapping[str, int] | None = None
        self._sizes = PartitionCounts(client.partitions, clock)
        self._surroundings = GroupViewBuilder(group, client, load, fresh_s=LOAD_FRESH_S)
        self._target: Mapping[str, Partitions] = {}
        self._left_out: Partitions = NO_PARTITIONS
        self._group = GroupCoordinator(client, group, self, settings.group, coordinator=coordinator, clock=clock)

    # -- the surface ----------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this member computed the current assignment."""
        return self._counts is not None

    @property
    def group(self) -> GroupCoordinator:
        """The protocol beneath: phase, coordinator, heartbeats."""
        return self._group

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; takes effect with the rebalance that this causes."""
        self._topics, self._pattern = frozenset(topics), compiled(pattern)
        self._group.request_rejoin("the subscription changed")

    async def _begin(self) -> None:
        self._doubt = asyncio.Event()
        self._follow()

    # -- called by the coordinator --------------------------------------------------------------------------------

    def offers(self) -> Sequence[tuple[str, bytes]]:
        held = self._held | self._draining if self._cooperative else NO_PARTITIONS
        (before, before_generation), identity = self._before, self._group.identity
        me = OwnMetadata(
            topics=self._wanted,
            held=held,
            # of the last JoinGroup, synced or not: leaders of other clients may give away at once what a member claims
            # since an older generation than the others
            generation=identity.generation if held and identity is not None else -1,
            before=before,
            before_generation=before_generation,
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
        keep = frozenset(p for p in self._held if p.topic in self._wanted) if self._cooperative else NO_PARTITIONS
        await self._give_up(self._held - keep)

    async def compute_assignment(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        assignor, joined = self._assignors[protocol], GroupMembers(protocol, members)
        self._follow(joined.topics)
        try:
            await self._client.refresh(joined.topics, max_age_s=1.0)
        except AllocatorError as error:
            log.warning("%s: assigning by metadata that may be old: %s", self._group_name, error)
        counts = {topic: len(self._sizes(topic)) for topic in joined.topics}
        exist = {topic: count for topic, count in counts.items() if count}
        view = await self._surroundings.view(assignor, joined.members, exist, joined.owned)
        decision = decide(assignor, joined, view, self._target)
        if decision.problem is not None:
            log.error("%s: members keep what they have: %s", self._group_name, decision.problem)
            self._owner.failed(decision.problem)
        else:
            without = left_out(view, decision.target)
            if without != self._left_out:
                tell_left_out(self._group_name, assignor.name, without)
            self._left_out = without
        self._target = decision.target
        self._counts = counts
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
            await self._give_up(gone)
            self._group.request_rejoin("released what moves to other members")
        if gained:
            self._held |= gained
            await self._owner.assigned(gained)

    async def lost(self, why: str) -> None:
        self._counts = None
        self._before = (NO_PARTITIONS, -1)  # whoever has them now is the one to keep them
        await super().lost(why)

    async def leaving(self) -> None:
        await self._give_up(self._held)

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        session_s = self._settings.group.session_timeout_s
        self._lease.renew(started, session_s, self._group.rebalance_timeout_s, rebalancing=rebalancing)

    # -------------------------------------------------------------------------------------------------------------

    def _read(self, assignment: bytes) -> Partitions:
        try:
            given = MemberAssignment.decode(assignment).partitions
        except Malformed as error:
            self._owner.failed(error)
            return NO_PARTITIONS
        foreign = sorted({p.topic for p in given} - self._wanted)
        if foreign:
            log.error("%s: the leader gave us topics that we did not ask for: %s", self._group_name, foreign)
        return frozenset(p for p in given if p.topic in self._wanted)

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
            if await wait_for_event(self._doubt, self._settings.topic_poll_s):
                await asyncio.sleep(DOUBT_S)
                self._doubt.clear()
            if self.leading or self._pattern is not None:
                try:
                    await self._client.refresh()
                except AllocatorError as error:
                    log.debug("%s: metadata is not to be had: %s", self._group_name, error)
                else:
                    self._metadata_came()
