"""The observed history of one group: rebalances with their reasons, and figures over time. No I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from allocator.core.text import plain, some_of
from allocator.operate import GroupState, Logs
from allocator.types import TopicPartition

REBALANCES = 100  # rebalances kept. Higher: more memory, a few kB for each
POINTS = 720  # points kept: one hour if a point is added every 5 s
AT_REST = ("Stable", "Empty", "Dead")  # a coordinator's names for the states without a rebalance
MAX_NAMES_IN_REASON = 5
DEPARTED = 100  # names kept of members that left. Higher: larger responses if members change often

Owners = Mapping[TopicPartition, str]


@dataclass(frozen=True)
class News:
    """The changes that the watcher noticed since the last observation."""

    at: Optional[float]
    """When ZooKeeper reported the first change since then; None if the watcher missed earlier changes."""
    crashed: frozenset[str] = frozenset()
    """Members whose session ended while they held partitions."""


@dataclass
class Rebalance:
    """One change of the assignment. Times are epoch seconds."""

    generation: int
    began: float
    why: list[str]
    strategy: str = ""
    ended: Optional[float] = None
    superseded: bool = False
    """Whether the next generation began before all partitions of this one had their new owners."""
    timed: bool = True
    """Whether the watcher saw the whole rebalance. Otherwise its duration is unknown."""
    unnoticed_s: Optional[float] = 0.0
    """Longest session timeout of the crashed members: upper bound of the standstill before `began`. None: unknown."""
    moves: dict[TopicPartition, tuple[Optional[str], Optional[str]]] = field(default_factory=dict)
    """Moved partition -> former and new owner; None for no owner."""
    total: int = 0
    """Number of assigned partitions after the rebalance."""
    waited_for: dict[str, float] = field(default_factory=dict)
    """Name of a releasing member -> seconds until it had released its partitions."""
    names: dict[str, str] = field(default_factory=dict)
    """Names of the members in `moves`."""
    stood: dict[TopicPartition, float] = field(default_factory=dict)
    """Seconds from the release of each moved partition until its new owner claimed it."""
    unnoticed: dict[TopicPartition, float] = field(default_factory=dict)
    """Upper bound of the seconds before `stood`: from the former owner's crash until ZooKeeper noticed it."""

    @property
    def id(self) -> int:
        """Start in epoch milliseconds: unique in a group, and the same after a restart of the server."""
        return round(1000 * self.began)

    @property
    def longest_s(self) -> Optional[float]:
        """Longest standstill of a moved partition, from the fault to the next claim; None if no partition moved."""
        return max((s + self.unnoticed.get(p, 0.0) for p, s in self.stood.items()), default=None)

    @property
    def took_s(self) -> Optional[float]:
        """Seconds from the first event to the last claim; None during the rebalance, or if it was not fully seen."""
        return max(0.0, self.ended - self.began) if self.timed and self.ended is not None else None

    def to_json(self) -> dict[str, Any]:
        between = Counter(
            (self.names.get(a or "", a) or None, self.names.get(b or "", b) or None) for a, b in self.moves.values()
        )
        return {
            "id": self.id,
            "generation": self.generation or None,
            "began": rounded(self.began),
            "ended": rounded(self.ended),
            "took_s": rounded(self.took_s),
            "unnoticed_s": self.unnoticed_s,
            "longest_s": rounded(self.longest_s),
            "superseded": self.superseded,
            "why": self.why,
            "strategy": self.strategy,
            "moved": len(self.moves),
            "total": self.total,
            "waited_for": [
                {"member": member, "s": round(s, 3)}
                for member, s in sorted(self.waited_for.items(), key=lambda entry: -entry[1])[:MAX_NAMES_IN_REASON]
            ],
            "between": [
                {"from": a, "to": b, "partitions": n} for (a, b), n in between.most_common(2 * MAX_NAMES_IN_REASON)
            ],
        }

    def moves_to_json(self) -> dict[str, Any]:
        """Returns all moves as parallel lists for each topic. Members are indices into `members`."""
        called = {member: self.names.get(member, member) for pair in self.moves.values() for member in pair if member}
        index = {member: number for number, member in enumerate(sorted(called, key=lambda each: called[each]))}
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in sorted(self.moves):
            by_topic.setdefault(partition.topic, []).append(partition)

        def of(member: Optional[str]) -> int:
            return -1 if member is None else index[member]

        return {
            "members": [{"id": member, "name": called[member]} for member in index],
            "topics": [
                {
                    "topic": topic,
                    "partitions": [p.partition for p in parts],
                    "from": [of(self.moves[p][0]) for p in parts],
                    "to": [of(self.moves[p][1]) for p in parts],
                    "stood_s": [rounded(self.stood.get(p)) for p in parts],
                    "unnoticed_s": [rounded(self.unnoticed.get(p)) for p in parts],
                }
                for topic, parts in by_topic.items()
            ],
        }


def rounded(value: Optional[float], digits: int = 3) -> Optional[float]:
    return None if value is None else round(value, digits)


@dataclass(frozen=True)
class Remembered:
    """The last assignment that the previous server saw."""

    generation: int
    owners: Owners
    names: Mapping[str, str]
    """Member -> displayed name."""


class History:
    """Computes the rebalances of one group from its successive states.

    A rebalance starts when a member joins or leaves, or when a new generation appears. It ends when the claims of the
    members equal the assignment. ZooKeeper notices a crash only after the member's session timeout;
    `Rebalance.unnoticed_s` limits the time until then.
    """

    def __init__(self) -> None:
        self.rebalances: deque[Rebalance] = deque(maxlen=REBALANCES)
        self.count = 0
        """Number of all observed rebalances of known length. `moved`, `seconds` and `unnoticed_s` are totals too."""
        self.moved = 0
        self.seconds = 0.0
        self.unnoticed_s = 0.0
        """Sum of the known `Rebalance.unnoticed_s`."""
        self._settled: Optional[GroupState] = None
        self.open: Optional[Rebalance] = None
        """The rebalance in progress."""
        self._old: Owners = {}
        self._names: dict[str, str] = {}
        self._departed: dict[str, str] = {}
        """Id -> name of the members that left most recently, oldest first."""
        self._begun_with: GroupState
        self._waiting: dict[str, float] = {}
        self._crashed: set[str] = set()
        self._last: Optional[GroupState] = None
        """The state at the last observation."""
        self._released: dict[TopicPartition, float] = {}
        """Partition without an owner -> time of its release."""
        self._remembered: Optional[Remembered] = None

    def recall(self, remembered: Optional[Remembered]) -> None:
        """Continues from stored history. Called by the watcher before the first observation."""
        self._remembered = remembered
        if remembered is not None:
            self._forget(remembered.names, ())

    def to_remember(self) -> Optional[Remembered]:
        """Returns the present assignment; None during a rebalance, and before the first observation."""
        if self._settled is None or self.open is not None or self._last is None:
            return None
        state = self._last
        owners = targets(state) if state.members else {}
        return Remembered(state.generation, owners, {m: self.name_of(m, state) for m in set(owners.values())})

    @property
    def last(self) -> Optional[Rebalance]:
        return self.rebalances[-1] if self.rebalances else None

    def name_of(self, member: str, state: GroupState) -> str:
        """Returns the displayed name of a member, even if its znode no longer exists."""
        return state.name_of(member) if member in state.members else self._names.get(member, state.name_of(member))

    def departed(self, state: GroupState) -> dict[str, str]:
        """Returns id -> name of the members that left most recently."""
        known = {**self._departed, **self._names}
        left = [member for member in known if member not in state.members and member not in state.claims]
        return {member: known[member] for member in left[-DEPARTED:]}

    def _forget(self, names: Mapping[str, str], standing: Collection[str]) -> None:
        """Drops all names except those of `standing` and of the members that left most recently."""
        for member in names.keys() - standing:
            self._departed.pop(member, None)
            self._departed[member] = names[member]
        for member in list(self._departed)[:-DEPARTED]:
            del self._departed[member]
        self._names = {member: name for member, name in self._names.items() if member in standing}

    def observe(self, state: GroupState, now: float, news: Optional[News] = None) -> bool:
        """Compares a state with the previous one. Returns whether the history changed. Without `news`, the
        change happened at `now`."""
        news = news or News(now)
        self._crashed |= news.crashed
        self._names.update((member, state.name_of(member)) for member in state.members)
        if state.coordinated is not None:
            return self._observe_coordinated(state, now)
        before = self._settled
        last, self._last = self._last, state
        if before is None:
            self._settled = state
            if not settled(state):
                self._begin(state, now, ["it was in progress when the watch started"], _holders(state), timed=False)
            elif self._remembered is not None:
                self._compare(self._remembered, state, now)
            return True
        happened = False
        current = self.open
        if current is not None and news.at is None:
            current.timed = False
        newer = state.generation > (current.generation if current is not None else before.generation)
        if current is not None and newer and current.generation > before.generation:
            current.ended, current.superseded = now, True
            self._finish(current)
            before = self._settled = self._begun_with
            current = None
            happened = True
        if current is None and (newer or set(state.members) != set(before.members)):
            why = reasons(before, state, self._crashed)
            self._begin(state, now if news.at is None else news.at, why, targets(before), timed=news.at is not None)
            current = self.open
            happened = True
        if current is not None:
            if last is not None:
                self._time_claims(current, last, state, now if news.at is None else news.at)
            happened |= self._follow(current, before, state, now)
        return happened

    def _observe_coordinated(self, state: GroupState, now: float) -> bool:
        """Compares a group that uses Kafka's own protocols with its last stable state. The watcher polls such a group,
        so the duration of its rebalances is unknown."""
        if not settled(state):
            return False
        before, self._settled, self._last = self._settled, state, state
        if before is None:
            if self._remembered is not None:
                self._compare(self._remembered, state, now)
            return True
        if set(before.members) == set(state.members) and targets(before) == targets(state):
            return False
        self._add_untimed(targets(before), state, now, reasons(before, state), self._names)
        self.moved += len(self.rebalances[-1].moves)
        self._forget(self._names, state.members)
        return True

    def _compare(self, then: Remembered, state: GroupState, now: float) -> None:
        """Adds one rebalance for all changes since the previous server stopped."""
        names = {**then.names, **self._names}
        if then.owners != (targets(state) if state.members else {}):
            self._add_untimed(then.owners, state, now, ["changed while no server watched"], names)

    def _add_untimed(
        self, owners: Owners, state: GroupState, now: float, why: list[str], names: Mapping[str, str]
    ) -> None:
        """Adds a finished rebalance. Only its result is known, not its course."""
        new = targets(state) if state.members else {}
        self.rebalances.append(
            Rebalance(
                state.generation,
                now,
                why,
                strategy=state.strategy or "",
                ended=now,
                timed=False,
                unnoticed_s=None,
                moves={p: (owners.get(p), new.get(p)) for p in {*owners, *new} if owners.get(p) != new.get(p)},
                total=len(new),
                names=dict(names),
            )
        )

    def _time_claims(self, current: Rebalance, last: GroupState, state: GroupState, at: float) -> None:
        """Records when partitions lost or got their owner between two observations."""
        was, now = last.owners, state.owners
        if was == now:
            return
        for partition, member in was.items():
            if now.get(partition) != member:
                self._released.setdefault(partition, at)
                info = last.members.get(member)
                if member in self._crashed and info is not None and info.session_timeout_s is not None:
                    current.unnoticed[partition] = info.session_timeout_s
        for partition, member in now.items():
            if was.get(partition) != member and partition in self._released:
                stood = max(0.0, at - self._released.pop(partition))
                current.stood[partition] = current.stood.get(partition, 0.0) + stood

    def _begin(self, state: GroupState, at: float, why: list[str], old: Owners, timed: bool) -> None:
        self.open = Rebalance(state.generation, at, why, timed=timed)
        self._begun_with = state
        self._old = old
        self._waiting = {}
        self.rebalances.append(self.open)

    def _follow(self, current: Rebalance, before: GroupState, state: GroupState, now: float) -> bool:
        was = (current.generation, len(current.moves), current.total, tuple(current.why))
        document = state.document
        if state.generation > current.generation:
            current.generation, self._begun_with = state.generation, state
            current.why = reasons(before, state, self._crashed)
        current.unnoticed_s = _unnoticed(before, state, self._crashed)
        if document is not None:
            current.strategy = document.strategy
            for member in document.waiting if current.timed else ():
                self._waiting.setdefault(member, now)
        for member in [member for member in self._waiting if document is None or member not in document.waiting]:
            current.waited_for[self._names.get(member, member)] = now - self._waiting.pop(member)
        new = targets(state) if state.members else {}
        current.moves = {
            p: (self._old.get(p), new.get(p)) for p in {*self._old, *new} if self._old.get(p) != new.get(p)
        }
        current.names = dict(self._names)
        current.total = len(new)
        # False while the assignment does not reflect a member that joined or left: the next generation will
        dealt_with = state.generation > before.generation or not state.members
        back = set(state.members) == set(before.members) and state.generation == before.generation
        if settled(state) and (dealt_with or back):
            current.ended = now
            self._finish(current)
            self._settled, self.open = state, None
            self._crashed.intersection_update(state.members)
            standing = {*state.members, *self._old.values(), *new.values()}
            self._forget(self._names, standing)
            return True
        return was != (current.generation, len(current.moves), current.total, tuple(current.why))

    def _finish(self, rebalance: Rebalance) -> None:
        self.open = None
        for times in (rebalance.stood, rebalance.unnoticed):
            for partition in [partition for partition in times if partition not in rebalance.moves]:
                del times[partition]
        self.moved += len(rebalance.moves)
        self.unnoticed_s += rebalance.unnoticed_s or 0.0
        if rebalance.took_s is not None:
            self.count += 1
            self.seconds += rebalance.took_s


def targets(state: GroupState) -> dict[TopicPartition, str]:
    """Returns the owner of each partition after all moves. With Kafka's own protocols, returns the current owner."""
    if state.coordinated is not None:
        return state.owners
    if state.document is None:
        return {}
    found = {p: member for member, parts in state.document.owners.items() for p in parts}
    found.update((p, member) for member, parts in state.document.promised.items() for p in parts)
    return found


def _holders(state: GroupState) -> dict[TopicPartition, str]:
    """Returns the member that may hold each partition now."""
    if state.document is None:
        return {}
    found = {p: member for member, parts in state.document.owners.items() for p in parts}
    found.update((p, member) for member, entry in state.document.waiting.items() for p in entry.partitions)
    return found


def settled(state: GroupState) -> bool:
    """Whether each member claims exactly its assigned partitions, and no partition is moving."""
    document = state.document
    if state.coordinated is not None:
        return state.coordinated.state in AT_REST
    if not state.members:
        return True
    if document is None or document.waiting or any(document.promised.values()):
        return False
    return all(
        (claim.held if (claim := state.claims.get(member)) is not None else frozenset())
        == document.owners.get(member, frozenset())
        for member in {*state.members, *document.owners}
    )


def _unnoticed(before: GroupState, after: GroupState, crashed: Collection[str]) -> Optional[float]:
    """Returns `Rebalance.unnoticed_s` for a change from `before` to `after`."""
    timeouts = {m: info.session_timeout_s for m, info in before.members.items() if m not in after.members}
    if None in timeouts.values():
        return None  # members of this version report no timeout, so the member may have crashed
    return max((s for member, s in timeouts.items() if s is not None and member in crashed), default=0.0)


def reasons(before: GroupState, after: GroupState, crashed: Collection[str] = ()) -> list[str]:
    """Returns the reasons of a rebalance: the changed inputs of the assignment."""
    found = []
    joined = [member for member in after.members if member not in before.members]
    left = [member for member in before.members if member not in after.members]
    # a process that left and joined again has lost its session
    returned = []
    for member in left[:]:
        again = next((m for m in joined if _process(after, m) == _process(before, member)), None)
        if again is not None:
            returned.append(again)
            joined.remove(again)
            left.remove(member)
    found += _say("joined", map(after.name_of, joined))
    signs = {member for member, info in before.members.items() if info.session_timeout_s is not None}
    lost = [member for member in left if member in crashed and member in signs]
    found += _say("crashed or lost its session", map(before.name_of, lost))
    found += _say("left", (before.name_of(member) for member in left if member not in lost))
    found += _say("came back as a new member", map(after.name_of, returned))
    counts, counted = _counts(before), _counts(after)
    if after.members and before.members:
        for topic in sorted({*counts, *counted})[: 2 * MAX_NAMES_IN_REASON]:
            a, b = counts.get(topic, 0), counted.get(topic, 0)
            if a != b and b:
                found.append(f"{topic}: {a} to {b} partitions" if a else f"{topic}: {b} partitions, new to the group")
            elif a != b:
                found.append(f"{topic}: not assigned any more")
    old, new = before.document, after.document
    if old is not None and new is not None:
        if old.strategy and old.strategy != new.strategy:
            found.append(f"allocator function {new.strategy} instead of {old.strategy}")
        if old.refused != new.refused:
            found.append(f"{len(new.refused)} members refused")
        found += _commands(before, after, old.commands.keys(), new.commands.keys())
        if not found and new.generation > old.generation:
            found.append("computed again with the same members and topics")
    if before.members and not after.members:
        found.append("no member is left")
    return found


def _commands(before: GroupState, after: GroupState, old: Collection[str], new: Collection[str]) -> list[str]:
    """Returns the commands of operators that the leader has begun to follow, and those that are withdrawn."""
    known = {command.id: command for command in (*before.commands.entries, *after.commands.entries)}
    given = [known[each] for each in new if each not in old and each in known]
    gone = [each for each in old if each not in new]
    names = dict.fromkeys(f"the command {known[each]}" if each in known else "a command" for each in gone)
    return [f"command {command} of {plain(command.who)}" for command in given] + [
        f"{each} was withdrawn" for each in names
    ]


def _counts(state: GroupState) -> Counter[str]:
    return Counter(partition.topic for partition in targets(state))


def _process(state: GroupState, member: str) -> tuple[str, str, Optional[int]]:
    info = state.members[member]
    return info.name, info.host, info.pid


def _say(what: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    return [f"{what}: {some_of(names, MAX_NAMES_IN_REASON)}"] if names else []


@dataclass(frozen=True)
class Point:
    """The group's figures at one time. Rates are per second since the previous point. None: unknown."""

    at: float
    lag: Optional[int]
    produced: Optional[float] = None
    consumed: Optional[float] = None
    """Growth of the committed offsets per second."""
    commits: Optional[float] = None
    """Changed committed offsets per second: a lower bound of the commit rate."""
    lag_s: Optional[float] = None
    """Seconds that the oldest uncommitted record has waited."""


class Series:
    """Lag, throughput and commit rate over about the last hour."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._logs: Optional[Logs] = None

    def unknown(self, now: float) -> None:
        """Adds an unknown point, because Kafka does not respond."""
        self._logs = None
        if self.points and self.points[-1] != Point(self.points[-1].at, None):
            self.points.append(Point(now, None))

    def add(
        self,
        logs: Logs,
        lag: Optional[int],
        now: float,
        read: Collection[TopicPartition] = (),
        lag_s: Optional[float] = None,
    ) -> None:
        """Adds figures from Kafka. `lag` is the group's, None if unknown; `read` has the partitions of its topics."""
        if not logs.end and not logs.committed:
            self.unknown(now)
            return
        point = Point(now, lag, lag_s=lag_s)
        before = self._logs
        if before is not None and self.points and now > self.points[-1].at:
            s = now - self.points[-1].at
            # a recreated topic or an offset reset must not count as negative throughput
            produced = sum(max(0, end - before.end[p]) for p, end in logs.end.items() if p in before.end)
            whole = all(p in logs.end and p in before.end for p in read)
            both = [(o.offset, before.committed[p].offset) for p, o in logs.committed.items() if p in before.committed]
            point = Point(
                now,
                lag,
                produced / s if whole else None,
                sum(max(0, b - a) for b, a in both) / s,
                sum(b != a for b, a in both) / s,
                lag_s,
            )
        self.points.append(point)
        self._logs = logs


@dataclass(frozen=True)
class Past:
    """The history of a group from before the start of this server."""

    points: list[Point] = field(default_factory=list)
    rebalances: list[dict[str, Any]] = field(default_factory=list)
    """Results of `Rebalance.to_json`, newest first."""
    remembered: Optional[Remembered] = None
