"""Keeps in view what the groups of one root do, for as long as somebody wants to see it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Optional, Protocol

from allocator.client.client import KafkaClient
from allocator.consumer.switching import elsewhere, path_of, read_choice
from allocator.doctor.doctor import Finding, Look, Severity, judge, look
from allocator.errors import AllocatorError, ConfigError
from allocator.foreign import plain
from allocator.groups.describe import GroupReport, GroupState, Logs, read_logs, subscribed
from allocator.groups.names import member_name
from allocator.groups.zookeeper.store import Store
from allocator.groups.zookeeper.znodes import (
    AssignmentDocument,
    Claim,
    InflateBudget,
    InvalidZnode,
    MemberInfo,
    Paths,
    in_join_order,
)
from allocator.names import GROUP_NAME
from allocator.offsets.group_offsets import GroupOffsets
from allocator.tasks import TaskGroup, wait_for_event
from allocator.web.history import History, News, Series
from allocator.zookeeper.client import NoZnode, Watched, ZooKeeper

__all__ = ["ClusterAccess", "Rounds", "WatchedGroup", "Watcher"]

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after an error of ZooKeeper or Kafka


REST = 4  # asking Kafka takes at most one part in so many and one of the time, however many partitions there are


DOCTOR_S = 30.0  # between two looks of the doctor; more: later findings; less: more requests, O(members) for a look


DOCTOR_PAUSE_S = 2.0


RUBBISH = 20  # problems named


EVENT_S = 2.0  # how long the event of a deletion may come after an answer that lacks the znode


class ClusterAccess(Protocol):
    """Where the clusters are; `allocator.cli.read.Access` is one."""

    @property
    def root(self) -> str: ...

    @property
    def brokers(self) -> Optional[str]: ...

    @property
    def timeout_s(self) -> float: ...

    def ensemble(self) -> contextlib.AbstractAsyncContextManager[ZooKeeper]: ...

    def cluster(self) -> contextlib.AbstractAsyncContextManager[KafkaClient]: ...


class WatchedGroup:
    """One group as it is known now. `version` grows with each change of a part: "state", "lag", "history"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.report = GroupReport(GroupState(name, {}, {}, None))
        self.history = History()
        self.series = Series()
        self.paused = False
        """Whether its members are told to leave (`ClusterChoice.frozen`)."""
        self.seen = False
        """Whether it was read at all."""
        self.examined = -1
        """Version of the state that the doctor saw last."""
        self.findings: list[Finding] = []
        """What the doctor said when it looked last."""
        self.noted: list[Finding] = []
        """What the process that shows it knows by itself."""
        self.version = {"state": 0, "lag": 0, "history": 0, "findings": 0}
        self.cache: dict[str, tuple[tuple[int, ...], str]] = {}
        """What was made of it last, by those who show it: part -> (versions, text)."""

    @property
    def problems(self) -> list[Finding]:
        """What is wrong, the worst first: the doctor's findings, and what has changed since it looked."""
        if self.examined == self.version["state"]:
            return [*self.noted, *self.findings]
        since = [Finding("seen", Severity.WARNING, what, (), "", "") for what in self.report.problems]
        return [*self.noted, *self.findings, *since]

    @property
    def wrong(self) -> int:
        """How many of `problems` are more than worth knowing."""
        return sum(finding.severity > Severity.INFO for finding in self.problems)

    def judge(self, findings: list[Finding], of_state: int) -> None:
        """Caller: the doctor, with the version of the state that it looked at."""
        self.findings, self.examined = findings, of_state
        self.version["findings"] += 1

    def learn(self, state: GroupState, now: float, news: Optional[News] = None) -> None:
        """Caller: the watch on ZooKeeper."""
        self.seen = True
        self.report = GroupReport(state, self.report.logs, self.report.subscribed)
        self.version["state"] += 1
        if self.history.observe(state, now, news):
            self.version["history"] += 1

    def measure(self, logs: Logs, existing: Any, now: float) -> None:
        """Caller: what asks Kafka."""
        if existing != self.report.subscribed:
            self.version["state"] += 1
        self.report = GroupReport(self.report.state, logs, existing)
        self.series.add(logs, self.report.lag.total, now, self.report.current)
        self.version["lag"] += 1

    def unmeasured(self, now: float) -> None:
        """Caller: what asks Kafka, when it does not answer: offsets of a moment ago are not those of now."""
        self.report = GroupReport(self.report.state, Logs(), self.report.subscribed)
        self.series.unknown(now)
        self.version["lag"] += 1


class GroupWatch:
    """Reads one group again whenever a watch fires.

    At rest it costs ZooKeeper four watches and nothing else; in a rebalance one read for each document and each
    claim that changes.
    """

    def __init__(self, zk: ZooKeeper, access: ClusterAccess, group: WatchedGroup, changed: Callable[[], None]) -> None:
        root = access.root
        self._brokers = access.brokers
        self._store = Store(zk, Paths(root, group.name))
        self._group = group
        self._tell = changed
        self._changed = asyncio.Event()
        self._told_at: Optional[float] = None
        poke = self._poke
        self._names = Watched(self._store.member_names, poke)
        self._claim_names = Watched(self._store.claim_names, poke)
        path = path_of(root, group.name)
        self._choice = Watched(partial(read_choice, zk, path), poke)
        self._document: Watched[tuple[AssignmentDocument | None, int]] = Watched(self._store.document, poke)
        self._infos: dict[str, MemberInfo] = {}
        self._claims: dict[str, Claim] = {}
        self._budget = InflateBudget.of_claims()
        self._watched: dict[str, _WatchedClaim] = {}
        self._crashed: set[str] = set()

    def _poke(self) -> None:
        if self._told_at is None:
            self._told_at = time.time()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled, or until the group is gone."""
        first = True
        while True:
            told_at, self._told_at = self._told_at, None
            self._changed.clear()
            try:
                state = await self._read()
            except NoZnode:
                await asyncio.sleep(RETRY_S)
                if await self._store.zk.exists(self._store.paths.members) is None:
                    return
                continue
            # before the first look, changes went unseen
            self._group.learn(state, time.time(), News(None if first else told_at, frozenset(self._crashed)))
            first = False
            self._crashed.clear()
            self._tell()
            await self._changed.wait()

    async def _read(self) -> GroupState:
        problems: list[str] = []
        document = None
        try:
            document, _ = await self._document.get()
        except InvalidZnode as error:
            problems.append(str(error))
        # after the document, which answers to them: else who has left seems to be there still, and his partitions
        # to move for no reason
        names = await self._names.get()
        ours = in_join_order(names)
        problems += [f"znode {self._store.paths.member(name)} is not a member of ours" for name in set(names) - {*ours}]
        # a member whose znode was deleted by hand still holds what its claim says
        claiming = in_join_order({*ours, *await self._claim_names.get()})
        await asyncio.gather(*(self._read_info(name, problems) for name in ours if name not in self._infos))
        await asyncio.gather(*(self._read_claim(name, problems) for name in claiming))
        for name in set(self._claims).difference(claiming):
            await self._notice_end(name)
        self._infos = {name: self._infos[name] for name in ours if name in self._infos}
        self._claims = {name: self._claims[name] for name in claiming if name in self._claims}
        self._budget.keep(map(self._store.paths.claim, claiming))
        self._watched = {name: self._watched[name] for name in claiming if name in self._watched}
        if document is not None:
            if document.problem:
                problems.append(f"the leader keeps the old assignment: {plain(document.problem)}")
            for member, why in document.refused.items():
                called = member_name(member, self._infos.get(member))
                problems.append(f"member {plain(called)} gets no partitions: {plain(why)}")
        try:
            choice = await self._choice.get()
            self._group.paused = choice.frozen
            problems += filter(None, [elsewhere(choice, self._brokers)])
        except ConfigError as error:
            problems.append(str(error))
        # copies: what was said of an earlier moment must not change
        infos, claims = dict(self._infos), dict(self._claims)
        return GroupState(self._group.name, infos, claims, document, tuple(problems[:RUBBISH]))

    async def _read_info(self, name: str, problems: list[str]) -> None:
        try:
            info = await self._store.member(name)
        except InvalidZnode as error:
            problems.append(str(error))
            return
        if info is not None:
            self._infos[name] = info

    async def _read_claim(self, name: str, problems: list[str]) -> None:
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = _WatchedClaim(self._store, name, self._budget, self._poke)
        try:
            claim = await watched.get()
        except InvalidZnode as error:
            problems.append(str(error))
            return
        if claim is not None:
            self._claims[name] = claim
            return
        if name in self._claims:
            await self._notice_end(name)

    async def _notice_end(self, name: str) -> None:
        """A claim that was read is gone."""
        watched, claim = self._watched[name], self._claims.pop(name)
        # kazoo tells answers and events in two threads: the list without it may come before the event
        if claim.held and await wait_for_event(watched.fired, EVENT_S) and watched.deleted:
            self._crashed.add(name)


class _WatchedClaim(Watched["Claim | None"]):
    """A member's claim. One that leaves in good order empties it before it deletes it."""

    def __init__(self, store: Store, member: str, budget: InflateBudget, changed: Callable[[], None]) -> None:
        self.deleted = False
        """Whether it was deleted as it was read last."""
        self.fired = asyncio.Event()
        self._poke = changed
        super().__init__(partial(store.claim, member, budget=budget, deleted=self._gone), self._told)

    def _told(self) -> None:
        self.fired.set()
        self._poke()

    def _gone(self) -> None:
        self.deleted = True


class Watcher:
    """All groups under a root, or only those named by `only`.

    `run` goes on through any failure but settings that cannot be used; `problems` says what is wrong at present. The
    event that `subscribe` returns is set at each change.
    """

    def __init__(
        self, access: ClusterAccess, *, only: str | None = None, interval_s: float = 5.0, examine: bool = True
    ) -> None:
        self.groups: dict[str, WatchedGroup] = {}
        self.problems: dict[str, str] = {}
        """What does not answer at present: "zookeeper", "kafka", "doctor" or "watcher", and why."""
        self.ready = False
        """Whether the groups have been read, and ZooKeeper answers."""
        self._access = access
        self._only = only
        self._interval_s = interval_s
        self._doctor = examine
        self._waiters: set[asyncio.Event] = set()
        self.zk: Optional[ZooKeeper] = None
        self.clusters = ("zookeeper",) if access.brokers is None else ("kafka", "zookeeper")
        """Those it asks."""
        self._client: Optional[KafkaClient] = None
        self._rounds: dict[str, Rounds] = {}

    def subscribe(self) -> asyncio.Event:
        """Set at each change; `unsubscribe` it."""
        event = asyncio.Event()
        event.set()
        self._waiters.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._waiters.discard(event)

    def _changed(self) -> None:
        for event in self._waiters:
            event.set()

    def note(self, name: str, findings: list[Finding]) -> None:
        """What is known of a group without asking its clusters, instead of what was noted before."""
        group = self.groups.get(name)
        if group is not None and group.noted != findings:
            group.noted = findings
            group.version["findings"] += 1
            self._changed()

    def forget(self) -> None:
        """What was seen so long ago that a rebalance since would look as one of now."""
        self.groups.clear()
        self.problems.clear()
        self.ready = False

    async def until_ready(self, timeout_s: float) -> None:
        """Returns once the groups have been read, or when the time is over."""
        await self.until(lambda: self.ready and all(group.seen for group in self.groups.values()), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Returns once the condition holds, which is asked at each change, or when the time is over."""
        ends = time.monotonic() + timeout_s
        news = self.subscribe()
        try:
            while not condition():
                news.clear()
                if not await wait_for_event(news, max(0.0, ends - time.monotonic())):
                    return
        finally:
            self.unsubscribe(news)

    def fail(self, error: BaseException) -> None:
        """Says why nothing is watched any more. Caller: the owner of `run`."""
        self.problems = {"watcher": f"{error}" if isinstance(error, AllocatorError) else repr(error)}
        self.ready = False
        self._changed()

    async def run(self) -> None:
        """Until cancelled. Raises ConfigError for settings with which nothing can be read."""
        beside = {}
        if self._access.brokers is not None:
            beside["kafka"] = self._keep("kafka", self._ask_kafka)
        if self._doctor:
            beside["doctor"] = self._keep("doctor", self._examine)
        await TaskGroup().run(self._keep("zookeeper", self._watch_zookeeper), **beside)

    async def _keep(self, what: str, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except ConfigError:
                raise
            except Exception as error:
                known = isinstance(error, AllocatorError)
                why = str(error) if known else f"a fault in allocator: {error!r:.200}"
                if self.problems.get(what) != why:
                    log.warning("%s", why, exc_info=None if known else error)
                self.problems[what] = why
                if what == "zookeeper":
                    self.ready = False
                elif what == "kafka":
                    for group in self.groups.values():
                        group.unmeasured(time.time())
                self._changed()
            await asyncio.sleep(RETRY_S)

    # -- ZooKeeper -----------------------------------------------------------------------------------------------

    async def _watch_zookeeper(self) -> None:
        async with self._access.ensemble() as zk:
            self.zk = zk
            try:
                scope = TaskGroup()
                await scope.run(self._follow_groups(zk, scope))
            finally:
                self.zk = None

    async def _follow_groups(self, zk: ZooKeeper, scope: TaskGroup) -> None:
        poked = asyncio.Event()
        listed = Watched(partial(_children, zk, self._access.root), poked.set)
        watched: dict[str, asyncio.Task[None]] = {}
        while True:
            poked.clear()
            names = [name for name in await listed.get() if self._only in (None, name)]
            self.problems.pop("zookeeper", None)
            for name in names:
                if name not in watched or watched[name].done():
                    group = self.groups.setdefault(name, WatchedGroup(name))
                    watched[name] = scope.start(GroupWatch(zk, self._access, group, self._changed).run(), name)
            for name in set(watched) - {*names}:
                watched.pop(name).cancel()
            for name in set(self.groups) - {*names}:
                del self.groups[name]
            self.ready = True
            self._changed()
            await poked.wait()

    # -- Kafka ---------------------------------------------------------------------------------------------------

    async def _ask_kafka(self) -> None:
        async with self._access.cluster() as client:
            self._client = client
            try:
                while True:
                    began = time.monotonic()
                    await client.refresh()
                    for group in list(self.groups.values()):
                        if group.seen:
                            await self._measure(client, group)
                    self.problems.pop("kafka", None)
                    self._changed()
                    took = time.monotonic() - began
                    await asyncio.sleep(max(self._interval_s - took, REST * took, 0.05))
            finally:
                self._client = None

    async def _measure(self, client: KafkaClient, group: WatchedGroup) -> None:
        timeout_s = self._access.timeout_s
        state = group.report.state
        existing = subscribed(state, client)
        offsets = GroupOffsets(client, group.name, timeout_s=timeout_s)
        committed = await offsets.fetch(None)
        wanted = {*existing, *committed, *state.assigned}
        group.measure(await read_logs(client, wanted, committed, timeout_s), existing, time.time())
        self._changed()

    # -- the doctor ----------------------------------------------------------------------------------------------

    async def _examine(self) -> None:
        """Looks at each group again and again, and sooner at one that has changed and come to rest."""
        while True:
            began = time.monotonic()
            for group in list(self.groups.values()):
                if self.zk is None or not group.seen or not self._is_due(group):
                    continue
                if self._client is None and self._access.brokers is not None:
                    continue  # Kafka's silence is said elsewhere
                version = group.version["state"]
                now = await look(group.name, client=self._client, zookeepers=[self.zk], root=self._access.root)
                rounds = self._rounds.setdefault(group.name, Rounds(self._access.root))
                group.judge(rounds.judge(now), version)
                self._changed()
            self._rounds = {name: rounds for name, rounds in self._rounds.items() if name in self.groups}
            if self.problems.pop("doctor", None) is not None:
                self._changed()
            await asyncio.sleep(max(DOCTOR_PAUSE_S, REST * (time.monotonic() - began)))

    def _is_due(self, group: WatchedGroup) -> bool:
        last = self._rounds[group.name].last if group.name in self._rounds else None
        if last is None or 1000 * time.time() - last.ended_ms >= 1000 * DOCTOR_S:
            return True
        return group.examined != group.version["state"] and group.history.open is None


async def _children(zk: ZooKeeper, root: str, watch: Callable[[], None]) -> list[str]:
    while True:
        try:
            # any znode may stand there; one with another name is no group
            return sorted(filter(GROUP_NAME.match, await zk.get_children(root, watch)))
        except NoZnode:
            if await zk.exists(root, watch) is None:
                return []


# -- rounds ----------
# What the doctor says of a group at which somebody looks again and again. No I/O.


# Within seconds, lag grows and nothing is committed in any group: what only time shows is judged over at least so
# long. More: told later; less: false alarms
TREND_S = 90.0


TRENDS = frozenset({"no-progress", "lag-grows"})


class Rounds:
    """The looks at one group. Keeps three of them, however many there were."""

    def __init__(self, root: str) -> None:
        self.last: Optional[Look] = None
        self._root = root
        self._old: Optional[Look] = None
        self._next: Optional[Look] = None

    def judge(self, now: Look) -> list[Finding]:
        """What is wrong, the worst first."""
        before, self.last = self.last or now, now
        if self._old is None or self._next is None:
            self._old = self._next = now
        elif now.ended_ms - self._next.ended_ms >= 1000 * TREND_S:
            self._old, self._next = self._next, now
        found = [finding for finding in judge(before, now, root=self._root) if finding.id not in TRENDS]
        if now.ended_ms - self._old.ended_ms >= 1000 * TREND_S:
            found += [finding for finding in judge(self._old, now, root=self._root) if finding.id in TRENDS]
        return sorted(found, key=lambda finding: -finding.severity)
