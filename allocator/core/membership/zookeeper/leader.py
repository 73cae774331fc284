"""The leader (the oldest member) computes assignments and moves partitions safely from owner to owner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from allocator.core.aio.clock import boot_clock, wall_ms
from allocator.core.aio.tasks import TaskGroup, wait_for_event
from allocator.core.assignors import Assignor
from allocator.core.assignors.load import LoadAssignor
from allocator.core.commands.order_store import OrderStore
from allocator.core.commands.orders import Order, Orders
from allocator.core.commands.steering import LEADERS_KINDS, Budget, counting, states_of
from allocator.core.errors import AllocatorError
from allocator.core.membership.view import GroupViewBuilder, Load
from allocator.core.membership.zookeeper.decision import GroupDecision, GroupLoad, counts_of, decide
from allocator.core.membership.zookeeper.plan import adopt, advance, portion
from allocator.core.membership.zookeeper.seats import (
    GraceTimer,
    absent,
    away,
    lasting,
    successors,
    take_seats,
    unaware,
    view_ids,
)
from allocator.core.subscription.patterns import PartitionCountSource, topic_pattern
from allocator.core.text.quoting import plain, shown
from allocator.core.types import Partitions
from allocator.core.znodes.documents import (
    MINUTE_MS,
    AssignmentDocument,
    Claim,
    InflateBudget,
    InvalidZnode,
    MemberInfo,
    OrderState,
    in_join_order,
)
from allocator.core.znodes.following import LASTING_S, LOOK_S, ImbalanceTimer
from allocator.core.znodes.load_reader import LoadReader
from allocator.core.znodes.member_names import member_name
from allocator.core.znodes.store import Store
from allocator.core.zookeeper.client import BadVersion, ConnectionLost, NoZnode, Watched, ZnodeExists

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaderSettings:
    """The waiting times of the leader, in seconds."""

    # from a change until the new document. more: fewer rebalances when many members join at once; less: a rebalance
    # starts sooner
    debounce_s: float = 0.005
    debounce_max_s: float = 0.5  # longest delay of a rebalance while changes keep coming
    # from the first release until the next document, while other members still release. more: fewer documents; less: a
    # late release delays the partitions of the others less
    releases_s: float = 0.01
    topic_poll_s: float = 10.0  # between two metadata requests that look for new partitions and topics
    load_look_s: float = LOOK_S
    load_lasting_s: float = LASTING_S


class Leader:
    """Leads the group while this member is the oldest.

    Guarantee: the leader keeps no state that its successor needs. It replaces the document by compare-and-set on the
    version from which it decided, so a leader that was paused and replaced cannot undo the work of its successor.
    """

    def __init__(
        self,
        store: Store,
        me: str,
        topics: PartitionCountSource,
        assignors: Mapping[str, Assignor],
        settings: LeaderSettings,
        load: Load | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._store = store
        self._me = me
        self._topics = topics
        self._certain: bool = getattr(topics, "certain", False)
        """Whether a topic that the source does not list is deleted. Kafka's first response may omit existing topics."""
        self._assignors = assignors
        self._settings = settings
        self._clock = clock
        self._loads = LoadReader(store)
        self._imbalance = ImbalanceTimer(settings.load_lasting_s)
        self._turns = 0  # the number of times that a lasting imbalance caused a decision
        self._uneven = False
        self._surroundings = GroupViewBuilder(store.paths.group, topics, load)
        self._changed = asyncio.Event()
        self._group_changed = asyncio.Event()
        self._group_changed.set()
        self._released = False  # whether a claim has changed for which the leader waits
        self._names = Watched(store.member_names, self._poke_group)
        self._claim_names = Watched(store.claim_names, self._changed.set)
        self._left_names = Watched(store.left_names, self._poke_group)
        self._graces = GraceTimer(clock)
        self._decided_without: frozenset[str] = frozenset()
        self._unaware: list[str] = []
        self._infos: dict[str, MemberInfo] = {}
        self._orders = Watched(OrderStore(store.zk, store.paths).read, self._poke_group)
        self._known_orders = Orders()
        self._counting: list[Order] = []
        self._pending: dict[str, OrderState] = {}
        self._decision: GroupDecision | None = None
        self._later = 0  # moves of the decision that wait for the budget
        self._budget_of_moves = Budget()
        self._alarm: asyncio.TimerHandle | None = None
        self._claims: dict[str, Watched[Claim | None]] = {}
        self._budget = InflateBudget.of_claims()
        self._document: tuple[AssignmentDocument | None, int] | None = None
        self._miscounted = False  # another client wrote the znode that counts the writes: no claim can succeed
        self._last: AssignmentDocument | None = None
        self._restarts = 0
        self._computed_from: object = None
        self._counts: dict[str, int] = {}
        self._missing: set[str] = set()
        self._patterns: set[str] = set()

    async def run(self) -> None:
        """Leads until it is cancelled."""
        log.info("%s: %s leads", self._store.paths.group, self._me)
        remove = self._topics.on_metadata(self._metadata_came)
        try:
            await TaskGroup().run(self._lead(), topics=self._poll_topics(), load=self._look_at_load())
        finally:
            remove()
            if self._alarm is not None:
                self._alarm.cancel()

    def start_over(self) -> None:
        """Reads everything again, because ZooKeeper does not hold the document that this leader wrote last."""
        self._document = None
        # kazoo delivers responses and events in two threads, so the leader may read a document before the event about a
        # new member that it contains. Without a fresh list of names that member would count as dead, and the leader
        # would use an old version of a claim
        self._names.forget()
        self._claim_names.forget()
        self._left_names.forget()
        self._claims.clear()
        self._computed_from = None
        self._decision, self._later = None, 0
        self._restarts += 1
        self._poke_group()

    async def _lead(self) -> None:
        write_at: float | None = None
        while True:
            self._changed.clear()
            try:
                settled = await self._step(write_at)
            except (BadVersion, ZnodeExists):
                log.info("%s: somebody else wrote the assignment; reading it again", self._store.paths.group)
                self.start_over()
                continue
            except NoZnode as error:
                # the group's own znodes were deleted, and only the leader creates them again. A member whose znodes
                # were deleted too notices when it writes them next
                log.warning("%s: %s; making the group's znodes again", self._store.paths.group, error)
                self.start_over()
                with contextlib.suppress(ConnectionLost, NoZnode):
                    await self._store.prepare()
                await asyncio.sleep(0.05)
                continue
            except ConnectionLost:
                # the write may have succeeded although its response was lost; reading the znode tells
                self.start_over()
                await asyncio.sleep(0.05)
                continue
            if not settled:
                await self._debounce()
                write_at = None
                continue
            await self._changed.wait()
            if self._released:
                await self._wait_for_releases()
            self._released = False
            # the leader reads and decides while it waits for further changes
            debounces = self._group_changed.is_set()
            write_at = asyncio.get_running_loop().time() + self._settings.debounce_s if debounces else None

    async def _debounce(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.debounce_max_s
        self._group_changed.clear()
        while loop.time() < end:
            await asyncio.sleep(min(self._settings.debounce_s, max(0.0, end - loop.time())))
            if not self._group_changed.is_set():
                break
            self._group_changed.clear()
        self._group_changed.set()

    async def _wait_for_releases(self) -> None:
        """Waits a moment for the other members that release partitions, because each document costs every member a
        read."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.releases_s
        while any(claim.fresh for claim in self._claims.values()) and not self._group_changed.is_set():
            self._changed.clear()
            if not await wait_for_event(self._changed, end - loop.time()):
                break

    def _poke_released(self) -> None:
        self._released = True
        self._changed.set()

    def _poke_group(self) -> None:
        self._group_changed.set()
        self._changed.set()

    def _metadata_came(self) -> None:
        # a step may read metadata itself, so only a changed count starts the next step
        if any(map(self._grew_or_ended, self._counts)) or (
            self._patterns and self._matching(self._topics.topics()) - set(self._counts)
        ):
            self._poke_group()

    def _grew_or_ended(self, topic: str) -> bool:
        found = self._topics.partitions(topic)
        return self._certain if found is None else len(found) > self._counts[topic]

    async def _poll_topics(self) -> None:
        while True:
            await asyncio.sleep(self._settings.topic_poll_s)
            try:
                await self._topics.refresh()
            except AllocatorError as error:
                log.warning("%s: no metadata from Kafka: %s", self._store.paths.group, error)
            self._poke_group()

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, write_at: float | None = None) -> bool:
        """Reads what has changed, decides, and writes the next document.

        Writes a new decision no sooner than `write_at`, in the time of the event loop. Returns False, and has written
        nothing, if the group has changed again by then.
        """
        # reset before anything is read, so that a later change starts another step
        recompute = self._group_changed.is_set()
        self._group_changed.clear()
        stored, version = await self._read_document()
        found, claimed = await asyncio.gather(self._names.get(), self._claim_names.get())
        names = in_join_order(found)
        # a member whose member znode was deleted by hand keeps working until it notices. Its claim exists, so it is
        # alive
        alive = {*names, *in_join_order(claimed)}
        now_ms = wall_ms()
        members = await self._members(names)
        document = await self._seated(stored, members, alive, now_ms)
        await self._note_orders(members, document, now_ms)
        fresh = False
        if recompute or self._computed_from is None or document.seats.keys() != stored.seats.keys():
            fresh, document, version = await self._recompute(members, document, version)
        claims = await self._claims_of([member for member in document.waiting if member in alive])
        gone = absent(document)
        # no member without a session holds anything
        claims.update({member: Claim(document.revision) for member in gone})
        successor = self._successor(document, alive | gone, claims, fresh, now_ms)
        changed = document is not stored and document.revision == stored.revision
        if successor is None and (changed or self._miscounted):
            successor = document.but(leader=self._me, revision=document.revision + 1)
        if fresh and write_at is not None and not await self._calm_until(write_at):
            self._computed_from = None
            return False
        if fresh:
            self._uneven = False
        self._wake_up(successor or document, now_ms)
        if successor is not None:
            self._log_orders(document, successor)
            await self._write(successor, version)
            # the other members have released, so the leader must not wait until they write their claims
            self._claims = {member: watched for member, watched in self._claims.items() if member in successor.waiting}
            if successor.waiting:
                self._changed.set()  # read again to set the watches on the claims that the document waits for
        if document.seats or stored.seats:
            await self._forget_left(document)
        return True

    async def _calm_until(self, moment: float) -> bool:
        """Waits until `moment` in the time of the event loop; returns False as soon as the group changes."""
        return not await wait_for_event(self._group_changed, moment - asyncio.get_running_loop().time())

    def _successor(
        self, document: AssignmentDocument, alive: set[str], claims: Mapping[str, Claim], fresh: bool, now_ms: int
    ) -> AssignmentDocument | None:
        """Returns the document to write now, or None if the present one needs no change. `fresh`: the
        decision is new."""
        successor = advance(document, self._me, alive, claims)
        decision = self._decision
        # a member has left since the decision. The next step decides again; until then the dead member must get no
        # partitions
        if decision is not None and (fresh or self._later) and decision.target.keys() <= alive:
            settled = successor or document
            allowance = self._allowance(settled, alive, now_ms)
            part, begun, self._later = portion(settled, decision.target, alive, allowance)
            if not _stands(part, decision, settled):
                successor = advance(
                    document,
                    self._me,
                    alive,
                    claims,
                    part,
                    strategy=decision.strategy,
                    refused=decision.refused,
                    left_out=decision.left_out,
                )
                if successor is not None and decision.load_history is not None:
                    successor = successor.but(load_history=decision.load_history)
                if successor is not None and begun and self._budget_of_moves.per_minute is not None:
                    successor = successor.but(moved=_with_moves(document, now_ms, begun))
        after = successor or document
        states = self._states(after, alive)
        if states is not None and states != after.orders:
            after = after.but(orders=states)
            successor = after if successor is not None else after.but(leader=self._me, revision=document.revision + 1)
        return successor

    # -- restarts ------------------------------------------------------------------------------------------------

    async def _seated(
        self, document: AssignmentDocument, members: Mapping[str, MemberInfo], alive: Collection[str], now_ms: int
    ) -> AssignmentDocument:
        """Returns the document with a seat for each present member, and for each absent member that may come back."""
        if not document.seats and all(info.instance_id is None for info in members.values()):
            return document
        older = unaware(members)
        if older and older != self._unaware:
            log.warning(
                "%s: no partitions are reserved for restarts while members of older versions are in the group: %s",
                self._store.paths.group,
                plain(", ".join(older)),
            )
        self._unaware = older
        self._graces.see(document.seats, now_ms)
        over = {*await self._left_names.get(), *self._graces.over()}
        seated = take_seats(document, members, alive, over, now_ms)
        begun = absent(seated) - absent(document)
        self._graces.see(seated.seats, now_ms, begun)
        for member in begun:
            info = seated.seats[member].info
            log.info(
                "%s: %d partitions wait up to %g s for the next process of instance %s",
                self._store.paths.group,
                len(seated.owners.get(member, ())),
                info.restart_grace_s,
                shown(info.instance_id),
            )
        if self._decision is not None:
            renamed = successors(document, seated)
            target = {renamed.get(member, member): parts for member, parts in self._decision.target.items()}
            self._decision = replace(self._decision, target=target)
        return seated

    async def _forget_left(self, document: AssignmentDocument) -> None:
        """Deletes the `left` marks of members that have no seat any more."""
        for name in await self._left_names.get():
            if name not in document.seats:
                with contextlib.suppress(NoZnode):
                    await self._store.zk.delete(self._store.paths.left_mark(name))

    # -- orders --------------------------------------------------------------------------------------------------

    async def _note_orders(self, members: Mapping[str, MemberInfo], document: AssignmentDocument, now_ms: int) -> None:
        """Updates `_counting`, the orders that are in effect at `now_ms`."""
        try:
            self._known_orders = await self._orders.get()
        except InvalidZnode as error:
            log.error("%s: the orders stay as they were: %s", self._store.paths.group, error)
        in_force = self._known_orders.in_force(now_ms, LEADERS_KINDS)
        self._counting, self._pending = counting(in_force, members, document.orders)
        self._budget_of_moves = Budget.of(self._counting)

    def _allowance(self, document: AssignmentDocument, alive: set[str], now_ms: int) -> int | None:
        """Returns how many more partitions may leave their live owners now; None: any number."""
        budget = self._budget_of_moves
        allowed = []
        if budget.at_once is not None:
            allowed.append(budget.at_once - document.in_flight(alive))
        if budget.per_minute is not None:
            allowed.append(budget.per_minute - sum(number for _, number in document.recent_moves(now_ms)))
        return max(0, min(allowed)) if allowed else None

    def _states(self, document: AssignmentDocument, alive: set[str]) -> dict[str, OrderState] | None:
        """Returns the state of each order; None before the first decision."""
        decision = self._decision
        if decision is None:
            return None
        told = {}
        for order in self._counting:
            if order.kind == "budget":
                moving = f"{document.in_flight(alive)} partitions are on the move, {self._later} wait for their turn"
                told[order.id] = OrderState("kept", moving)
        return {**states_of(self._counting, self._infos, document, decision.target, told), **self._pending}

    def _wake_up(self, document: AssignmentDocument, now_ms: int) -> None:
        """Sets a timer for the next time at which an order expires, a budget allows more moves, or a
        reservation ends."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        moments = [self._known_orders.next_expiry(now_ms)]
        if self._later and self._budget_of_moves.per_minute is not None:
            moments += [when + MINUTE_MS for when, _ in document.recent_moves(now_ms)[:1]]
        # limits the delay, so that a clock that is set back does not delay the leader for hours
        delays_s = [min(max(moment - now_ms, 0) / 1000, MINUTE_MS / 1000) for moment in moments if moment is not None]
        grace_s = self._graces.remaining_s()
        if grace_s is not None:
            delays_s.append(grace_s)
        if delays_s:
            # a timer may fire slightly early, and the leader would then set it again and again
            self._alarm = asyncio.get_running_loop().call_later(min(delays_s) + 0.001, self._poke_group)

    def _log_orders(self, before: AssignmentDocument, after: AssignmentDocument) -> None:
        for order_id, found in after.orders.items():
            if before.orders.get(order_id) != found:
                order = self._known_orders.find(order_id)
                called = order_id if order is None else f"{order_id} ({order.kind}, by {order.who})"
                why = f": {found.why}" if found.why else ""
                level = logging.WARNING if found.state in ("not kept", "pending") else logging.INFO
                log.log(level, "%s: order %s is %s%s", self._store.paths.group, plain(called), found.state, plain(why))
        for order_id in before.orders.keys() - after.orders.keys():
            log.info("%s: order %s does not count any more", self._store.paths.group, plain(order_id))

    # -- deciding ------------------------------------------------------------------------------------------------

    async def _recompute(
        self, members: Mapping[str, MemberInfo], document: AssignmentDocument, version: int
    ) -> tuple[bool, AssignmentDocument, int]:
        """Computes a new decision if an input changed. Returns (whether it computed one, the document, its version)."""
        missing = away(document, members)
        await self._count_partitions({**members, **missing}, document)
        orders = [order for order in self._counting if order.kind != "budget"]
        inputs = self._inputs(members, document, orders)
        if inputs == self._computed_from:
            return False, document, version
        try:
            decision = await self._decide(members, document, orders)
        except AllocatorError as error:
            problem = str(error)
            log.error("%s: the assignment stays as it is: %s", self._store.paths.group, problem)
            if document.problem != problem:
                document = document.but(problem=problem, leader=self._me, revision=document.revision + 1)
                document, version = await self._write(document, version)
            self._computed_from = inputs
            self._decision, self._later = None, 0
            self._uneven = False
            return False, document, version
        self._decided_without = frozenset(missing)
        self._computed_from = self._inputs(members, document, orders)
        self._decision = decision
        return decision is not None, document, version

    def _inputs(
        self, members: Mapping[str, MemberInfo], document: AssignmentDocument, orders: list[Order]
    ) -> tuple[object, ...]:
        """Returns the inputs of a decision. They stay equal when a member with a seat restarts."""
        missing = away(document, members)
        everybody = {**members, **missing}
        ids = view_ids(document, everybody)
        # absent members that the decision gave no new partitions, or that the document promises partitions
        short = [member for member in missing if member in self._decided_without or document.promised.get(member)]
        return (
            tuple((seen, lasting(everybody[member])) for member, seen in ids.items()),
            tuple(sorted(self._counts.items())),
            orders,
            frozenset(map(ids.__getitem__, short)),
            self._turns,
        )

    async def _decide(
        self, members: Mapping[str, MemberInfo], document: AssignmentDocument, orders: list[Order]
    ) -> GroupDecision | None:
        if not members:
            return None
        group = self._store.paths.group
        load = await self._group_load(members, self._uneven)
        decision = await decide(members, self._counts, document, orders, self._assignors, self._surroundings.view, load)
        for member, reason in decision.refused.items():
            if member not in document.refused:
                called = plain(member_name(member, members[member]))
                log.error("%s: member %s gets no partitions: %s", group, called, plain(reason))
        if decision.left_out != document.left_out:
            self._surroundings.log_left_out(decision.strategy, decision.left_out)
        return decision

    # -- load ----------------------------------------------------------------------------------------------------

    async def _look_at_load(self) -> None:
        """Triggers a decision by load whenever an imbalance has lasted long enough."""
        while True:
            await asyncio.sleep(self._settings.load_look_s)
            with contextlib.suppress(ConnectionLost):
                if self._imbalance.lasting(await self._is_uneven(), self._clock()):
                    self._turns += 1
                    self._uneven = True
                    self._poke_group()

    async def _is_uneven(self) -> bool:
        """Returns whether a decision by load would move a partition now."""
        decision, (document, _) = self._decision, self._document or (None, -1)
        if decision is None or document is None or not isinstance(self._assignors.get(decision.strategy), LoadAssignor):
            return False
        if document.waiting or document.promised or self._later:
            return False  # a moving partition changes the loads; wait for the end of the move
        members = dict(self._infos)
        orders = [order for order in self._counting if order.kind != "budget"]
        load = await self._group_load(members, True)
        try:
            found = await decide(
                members, dict(self._counts), document, orders, self._assignors, self._surroundings.view, load
            )
        except AllocatorError:
            return False  # the next step reports it
        return found.load_history is not None

    async def _group_load(self, members: Mapping[str, MemberInfo], uneven: bool) -> GroupLoad | None:
        function = next((each for each in self._assignors.values() if isinstance(each, LoadAssignor)), None)
        if function is None:
            return None
        found = await self._loads.read(members, function.source, self._counts)
        return GroupLoad(found, uneven, wall_ms())

    # -- reads ---------------------------------------------------------------------------------------------------

    async def _read_document(self) -> tuple[AssignmentDocument, int]:
        if self._document is None:
            try:
                # before the document: if another leader writes in between, this count makes the next write fail
                writes = await self._store.writes()
                document, version = await self._store.document(counts=self._partitions_of)
                if document is not None:
                    self._miscounted = 0 < document.writes != writes
                    document = document.but(writes=writes)
                self._document = document, version
            except InvalidZnode as error:
                log.error("%s: %s; going on from what the members claim", self._store.paths.group, error)
                self._document = None, error.version
        document, version = self._document
        if document is None:
            # before the claims: none that comes later can rest on the lost document
            writes = await self._store.writes()
            claims = await self._claims_of(in_join_order(await self._claim_names.get()))
            document = adopt(claims, self._last, writes or version + 1).but(writes=writes)
            self._computed_from = None
        return document, version

    def _partitions_of(self, topic: str) -> int | None:
        known = self._topics.partitions(topic)
        return None if known is None else len(known)

    async def _write(self, document: AssignmentDocument, version: int) -> tuple[AssignmentDocument, int]:
        """Returns the document as written, and the version of its znode."""
        document = document.but(writes=document.writes + 1)
        self._document, self._miscounted = None, False
        restarts = self._restarts
        new_version = await self._store.write_document(document, version)
        if restarts == self._restarts:  # otherwise another leader replaced the document before this response came
            self._document = document, new_version
        self._last = document
        log.info(
            "%s: generation %d revision %d (%s): %d members own %d partitions, %d on the move%s",
            self._store.paths.group,
            document.generation,
            document.revision,
            document.strategy,
            len(document.owners),
            sum(map(len, document.owners.values())),
            sum(len(entry.partitions) for entry in document.waiting.values()),
            f"; problem: {document.problem}" if document.problem else "",
        )
        return document, new_version

    async def _claims_of(self, wanted: list[str]) -> dict[str, Claim]:
        self._claims = {member: watched for member, watched in self._claims.items() if member in wanted}
        self._budget.keep(map(self._store.paths.claim, wanted))
        for member in wanted:
            if member not in self._claims:
                self._claims[member] = Watched(partial(self._read_claim, member), self._poke_released)
        found = await asyncio.gather(*(self._claims[member].get() for member in wanted))
        return {member: claim for member, claim in zip(wanted, found) if claim is not None}

    async def _read_claim(self, member: str, watch: Callable[[], None]) -> Claim | None:
        try:
            return await self._store.claim(member, watch, budget=self._budget)
        except InvalidZnode as error:
            # an unreadable claim releases nothing: its partitions wait until the member writes it again or leaves
            log.error("%s: %s", self._store.paths.group, error)
            return None

    async def _members(self, names: list[str]) -> dict[str, MemberInfo]:
        fresh = [name for name in names if name not in self._infos]
        self._infos = {name: info for name, info in self._infos.items() if name in names}
        for name, info in zip(fresh, await asyncio.gather(*(self._read_member(name) for name in fresh))):
            if info is not None:
                self._infos[name] = info
        return {name: self._infos[name] for name in names if name in self._infos}

    async def _read_member(self, member: str) -> MemberInfo | None:
        try:
            return await self._store.member(member)
        except InvalidZnode as error:
            log.error("%s: this member gets no partitions: %s", self._store.paths.group, error)
            return None

    async def _count_partitions(self, members: Mapping[str, MemberInfo], document: AssignmentDocument) -> None:
        """Updates `_counts` with the partition count of every topic that a member subscribes to."""
        if not self._counts:
            self._counts = counts_of(document)
        topics = set().union(*(info.topics for info in members.values()))
        self._patterns = {info.pattern for info in members.values() if info.pattern is not None}
        self._topics.follow(topics)
        if self._patterns:
            self._topics.follow_all()
        answered = True
        if self._patterns or any(self._topics.partitions(topic) is None for topic in topics):
            try:
                await self._topics.refresh()
            except AllocatorError as error:
                log.warning("%s: no metadata from Kafka: %s", self._store.paths.group, error)
                answered = False
        topics |= self._matching(self._topics.topics())
        counts = {}
        for topic in topics | set(self._counts):
            found = self._topics.partitions(topic)
            before = self._counts.get(topic)
            if found:
                counts[topic] = max(found) + 1
                self._missing.discard(topic)
            elif before is not None and (not answered or not (self._certain or topic in self._missing)):
                # a starting broker may report existing topics as missing: believe the second response
                counts[topic] = before
                if answered:
                    self._missing.add(topic)
        subscribed = topics | self._matching(counts)
        self._counts = {topic: count for topic, count in counts.items() if topic in subscribed}

    def _matching(self, names: Iterable[str]) -> set[str]:
        patterns = list(map(topic_pattern, self._patterns))
        return {topic for topic in names if any(pattern.matches(topic) for pattern in patterns)}


def _stands(target: Mapping[str, Partitions], decision: GroupDecision, document: AssignmentDocument) -> bool:
    """Returns whether the document already leads to that assignment, because the previous leader decided the same."""
    present = dict(document.owners)
    for member, parts in document.promised.items():
        present[member] = present.get(member, frozenset()) | parts
    return (
        document.generation > 0
        and document.problem is None
        and present == {member: parts for member, parts in target.items() if parts}
        and document.strategy == decision.strategy
        and document.refused == decision.refused
        and document.left_out == decision.left_out
    )


def _with_moves(document: AssignmentDocument, now_ms: int, number: int) -> tuple[tuple[int, int], ...]:
    """Adds moves to the recent ones. Moves within one second become one entry, with the time of the last move."""
    recent = document.recent_moves(now_ms)
    if recent and now_ms - recent[-1][0] < 1000:
        return (*recent[:-1], (now_ms, recent[-1][1] + number))
    return (*recent, (now_ms, number))
