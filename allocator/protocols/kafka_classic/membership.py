"""Membership under Kafka's classic group protocol. The group may have members of any other client.

Guarantee: a partition has at most one owner, as far as the protocol allows. The leader assigns a partition to another
member only after its owner has joined again without it, or after the coordinator has removed the owner because it was
silent or slow. By its own clock, this member stops acting before the coordinator can have removed it (`KafkaLease`).
Its commits carry its generation, and the coordinator refuses them after that generation has ended.

A member that offers `range`, `roundrobin` or `sticky` releases all partitions before each rebalance, as other clients
do. A member that offers only other assignors (`cooperative-sticky`, or the user's functions) keeps the partitions that
do not move (KIP-429).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Mapping, Sequence

from allocator.assignors import Assignor, GroupViewBuilder, Load, left_out
from allocator.core.aio import wait_for_event
from allocator.core.client import Coordinator, KafkaClient
from allocator.core.membership import AssignmentListener
from allocator.core.settings import TopicSelection
from allocator.errors import AllocatorError, ConfigError, TopicAuthorizationFailed
from allocator.protocols.kafka_classic.consumer_protocol import PROTOCOL_TYPE, StickyUserData, Subscription
from allocator.protocols.kafka_classic.group import ClassicMember
from allocator.protocols.kafka_classic.messages import JoinedMember
from allocator.protocols.kafka_classic.plan import (
    DOUBT_S,
    GroupMembers,
    PartitionCounts,
    decide,
    is_cooperative,
    offers,
)
from allocator.protocols.kafka_classic.predecessor import Inheritance
from allocator.protocols.kafka_classic.received import ReceivedAssignments
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.protocols.kafka_member import KafkaMember
from allocator.types import NO_PARTITIONS, Partitions

log = logging.getLogger(__name__)

# maximum age in seconds of a partition's load. Higher: assignments follow the load later; lower: the two rounds of a
# cooperative rebalance may see different loads, and contradict each other
LOAD_FRESH_S = 10.0


class KafkaMembership(KafkaMember):
    """One member of one group. The docstring of the module has the guarantee.

    The caller connects and closes `client`. `assignors` are the assignors of this member by name, the preferred one
    first. `load` returns the load of partitions, for assignors that want it. As the `Committer` of a `GroupOffsets`,
    this object makes commits carry the identity of the member. The constructor does no I/O.
    """

    protocol_type = PROTOCOL_TYPE
    group: ClassicMember

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        listener: AssignmentListener,
        assignors: Mapping[str, Assignor],
        settings: KafkaSettings,
        *,
        load: Load | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        if not assignors:
            raise ConfigError("a member of a group offers at least one allocator function, e.g. 'range'")
        selection = TopicSelection(settings.topics, settings.pattern)
        super().__init__(client, group, listener, selection, settings.connect_timeout_s)
        self.member_id = ""
        self.generation = 0
        self._assignors = dict(assignors)
        self._settings = settings
        self._cooperative = is_cooperative(self._assignors)
        self._before = StickyUserData(NO_PARTITIONS)
        self._counts: Mapping[str, int] | None = None
        self._inheritance: Inheritance | None = None
        """What this static member takes over, until the group knows its own topics."""
        self._led: frozenset[str] = frozenset()
        """The topics of the group if this member was its last leader. Their counts last until another member leads."""
        self._sizes = PartitionCounts(client, self._lease.clock)
        self._surroundings = GroupViewBuilder(group, client, load, fresh_s=LOAD_FRESH_S)
        self._target: Mapping[str, Partitions] = {}
        self._left_out: Partitions = NO_PARTITIONS
        self.group = ClassicMember(client, group, self, settings, coordinator=coordinator, clock=self._lease.clock)
        self._received = ReceivedAssignments(client, self.group, self._sizes, settings.failure_pause_s)

    @property
    def leading(self) -> bool:
        """Whether this member leads the group. It then watches the partition counts of the group's topics."""
        return self._counts is not None

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        self._selection = TopicSelection(topics, pattern)
        self.group.request_rejoin("the subscription changed")

    async def _begin(self) -> None:
        self._doubt = asyncio.Event()
        self._follow()

    # -- called by the state machine ------------------------------------------------------------------------------

    def offers(self) -> Sequence[tuple[str, bytes]]:
        held = self.tenures.owned if self._cooperative else NO_PARTITIONS
        identity, settings = self.group.identity, self._settings
        # the generation of the last JoinGroup, synced or not: leaders of other clients may reassign at once the
        # partitions of a member that names an older generation than the other members
        generation = identity.generation if held and identity is not None else -1
        topics = self._wanted
        if self._inheritance is not None and self._inheritance.topics != self._wanted:
            # the coordinator keeps the assignment of a static member that restarts, even if its topics have changed; a
            # change between two joins of one process makes it start a rebalance
            topics = self._inheritance.topics
            self.group.request_rejoin("the earlier process of this instance subscribed to other topics")
        mine = Subscription(tuple(sorted(topics)), None, held, generation, settings.rack)
        about = {"name": settings.name, "host": socket.gethostname(), "weight": settings.weight}
        return offers(self._assignors, mine, self._before, about)

    async def prepare(self) -> None:
        if self._selection.pattern is not None:
            # another member may know a topic that this member does not know yet
            with contextlib.suppress(AllocatorError):
                await self._client.refresh()
        self._wanted = self._resolved()
        self._counts = None
        self._inheritance = None if self.group.member_id else self.group.predecessor.inheritance()
        if self._inheritance is not None and self._inheritance.topics != self._wanted:
            self._before = StickyUserData(frozenset(p for p in self._inheritance.partitions if p.topic in self._wanted))
        self._received.forget()
        self._follow()
        keep = frozenset(p for p in self.held if p.topic in self._wanted) if self._cooperative else NO_PARTITIONS
        await self._give_up(self.tenures.drain(self.held - keep))

    async def compute_assignment(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        assignor, joined = self._assignors[protocol], GroupMembers(protocol, members)
        counts = await self._lead(joined.topics)
        exist = {topic: count for topic, count in counts.items() if count}
        for topic in sorted(filter(self._client.hides, joined.topics - exist.keys())):
            hidden = TopicAuthorizationFailed(topic, "describe")
            log.error("%s: no member gets these partitions, because its leader is %s", self._group_name, hidden)
        view = await self._surroundings.view(assignor, joined.members, exist, joined.owned)
        decision = decide(assignor, joined, view, self._target)
        if decision.problem is not None:
            log.error("%s: members keep their partitions: %s", self._group_name, decision.problem)
            self._listener.failed(decision.problem)
        else:
            without = left_out(view, decision.target)
            if without != self._left_out:
                self._surroundings.log_left_out(assignor.name, without)
            self._left_out = without
        self._target = decision.target
        self._counts = counts
        self._metadata_came()  # the metadata may have changed during the computation
        return decision.assignments

    async def lead_on(self, members: Sequence[JoinedMember]) -> None:
        counts = await self._lead(GroupMembers("", members).topics)
        if self._inheritance is not None:  # partitions that were added while this member restarted have no owner yet
            counts = {topic: min(count, self._inheritance.counts[topic]) for topic, count in counts.items()}
        self._counts = counts
        self._metadata_came()

    async def _lead(self, topics: frozenset[str]) -> dict[str, int]:
        """Follows the topics of the group as its leader. Returns their current partition counts."""
        self._led = topics
        self._follow()
        try:
            await self._client.refresh(topics, max_age_s=1.0)
        except AllocatorError as error:
            log.warning("%s: leading by metadata that may be old: %s", self._group_name, error)
        return {topic: len(self._sizes(topic)) for topic in topics}

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        identity = self.group.identity
        self.generation, self.member_id = generation, identity.member_id if identity is not None else ""
        if not self.leading:
            self._led = frozenset()
        mine = await self._received.existing(self._read(assignment))
        if self._received.is_clipped:
            self._doubt.set()
        self._before = StickyUserData(mine, generation)
        revoked, gained = self.held - mine, mine - self.held
        log.info(
            "%s: %s holds %d partitions in generation %d (%d new, %d to release)",
            self._group_name,
            self.member_id,
            len(mine),
            generation,
            len(gained),
            len(revoked),
        )
        if revoked:
            await self._give_up(self.tenures.drain(revoked))
            self.group.request_rejoin("released the partitions that move to other members")
        if gained:
            self.tenures.claim(dict.fromkeys(gained, generation))
            await self._listener.assigned(gained)

    async def lost(self, why: str) -> None:
        self._counts = None
        self._received.forget()
        self._before = StickyUserData(NO_PARTITIONS)  # the new owners should keep the lost partitions
        await super().lost(why)

    async def leaving(self) -> None:
        await self._give_up(self.tenures.drain(self.held))

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        session_s = self._settings.session_timeout_s
        self._lease.renew(started, session_s, self.group.rebalance_timeout_s, rebalancing=rebalancing)

    # -------------------------------------------------------------------------------------------------------------

    def _read(self, assignment: bytes) -> Partitions:
        assigned = self._received.decode(assignment)
        foreign = sorted({p.topic for p in assigned} - self._wanted)
        if foreign:
            log.error(
                "%s: the leader assigned topics that this member did not subscribe to: %s", self._group_name, foreign
            )
        return frozenset(p for p in assigned if p.topic in self._wanted)

    def _resolved(self) -> frozenset[str]:
        if self._selection.pattern is None:
            return self._selection.topics
        known = (topic for topic in self._client.topics() | self._wanted if not self._client.hides(topic))
        return self._selection.among(filter(self._sizes, known))

    def _follow(self) -> None:
        self._sizes.keep(self._selection.topics | self._wanted | self._led)
        self._selection.follow(self._client, self._led)

    def _metadata_came(self) -> None:
        topics = self._selection.topics if self._counts is None else self._counts
        sizes = {topic: len(self._sizes(topic)) for topic in topics}
        if self._selection.pattern is not None and self._resolved() != self._wanted:
            self.group.request_rejoin("other topics match the pattern")
        elif self._counts is not None and sizes != self._counts:
            self.group.request_rejoin("topics or partitions were added or removed")
        elif self._received.has_grown():
            self.group.request_rejoin("topics that the leader assigned have more partitions now")
        if self._sizes.doubtful:
            self._doubt.set()

    async def _poll_topics(self) -> None:
        while True:
            if await wait_for_event(self._doubt, self._settings.topic_poll_s):
                await asyncio.sleep(DOUBT_S)
                self._doubt.clear()
            if self.leading or self._received.is_clipped or self._selection.pattern is not None:
                try:
                    await self._client.refresh()
                except AllocatorError as error:
                    log.debug("%s: cannot read metadata: %s", self._group_name, error)
                else:
                    self._metadata_came()
