"""Follows the state of all groups under one root, for the page, the API and the metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Optional

from allocator.core.aio import TaskGroup, wait_for_event
from allocator.core.client import KafkaClient, Metadata
from allocator.errors import AllocatorError, ConfigError
from allocator.operate import (
    NOT_READ,
    Clusters,
    GroupReader,
    GroupReport,
    GroupState,
    Logs,
    hidden_state,
    list_groups,
    look_around,
    measure,
    read_logs,
    unread_logs,
)
from allocator.operate.doctor import Finding, Observation, Severity, diagnose, observe
from allocator.protocols.zookeeper import NotAuthorized, NoZnode, Watched, ZooKeeperClient
from allocator.types import TopicPartition
from allocator.web.events import Event, EventLog
from allocator.web.fences import Fences
from allocator.web.history import History, News, Past, Point, Series
from allocator.web.kafka_watch import KafkaGroupWatch
from allocator.web.offset_history import Age, OffsetHistory, oldest

log = logging.getLogger(__name__)

NOT_LOOKED = ("members of other layouts and protocols have not been looked for yet",)
RETRY_S = 1.0  # pause after an error of ZooKeeper or Kafka
REFUSED_S = 10.0  # pause before a group is read again whose znodes this server may not read
PAUSE_FACTOR = 4  # least pause after a poll, relative to the poll's duration. Higher: less load on Kafka
DOCTOR_S = (
    30.0  # between two polls of the doctor. Higher: later findings; lower: more requests, O(members) for each poll
)
DOCTOR_PAUSE_S = 2.0
LOOK_S = 0.5  # between two looks for groups without known members. Higher: such a group is "unknown" for longer
SHOWN_PROBLEMS = 20
OUTAGE_S = 2.0  # a shorter outage adds no event
LOADS_S = (
    5.0  # between two reads of load reports. Higher: the page shows them later; lower: more reads of a large group
)
# duration after which growing lag or missing progress is a finding. Higher: later findings; lower: false alarms
TREND_S = 90.0
TRENDS = frozenset({"no-progress", "lag-grows", "open-transaction"})


class DoctorTrends:
    """Computes findings from repeated polls of one group. Keeps three polls. No I/O."""

    def __init__(self) -> None:
        self.last: Optional[Observation] = None
        self._old: Optional[Observation] = None
        self._next: Optional[Observation] = None

    def judge(self, now: Observation, root: str) -> list[Finding]:
        """Returns all findings, worst first."""
        before, self.last = self.last or now, now
        if self._old is None or self._next is None:
            self._old = self._next = now
        elif now.ended_ms - self._next.ended_ms >= 1000 * TREND_S:
            self._old, self._next = self._next, now
        found = [finding for finding in diagnose(before, now, root=root) if finding.id not in TRENDS]
        if now.ended_ms - self._old.ended_ms >= 1000 * TREND_S:
            found += [finding for finding in diagnose(self._old, now, root=root) if finding.id in TRENDS]
        return sorted(found, key=lambda finding: -finding.severity)


class WatchedGroup:
    """The latest known state of one group. Each change increments the counter of its part in `version`."""

    def __init__(self, name: str, brokers: Optional[str] = None) -> None:
        self.name = name
        self.report = GroupReport(GroupState(name, {}, {}, None), brokers=brokers, unseen=NOT_LOOKED)
        self.history = History()
        self.past: list[dict[str, Any]] = []
        """Rebalances before the start of this server, newest first."""
        self.series = Series()
        self.offsets = OffsetHistory()
        self.age = Age(None)
        """The age of the lag."""
        self.measured_at: Optional[float] = None
        """Time of Kafka's last response."""
        self.fences = Fences()
        self.measured = False
        """Whether `report` has the offsets of the last poll of Kafka, or the reason why it refuses them."""
        self.exists: Optional[bool] = None
        """Whether its znodes were there at the last read; None before the first read."""
        self.examined = -1
        """Version of the state that the doctor last examined."""
        self.trends = DoctorTrends()
        self.findings: list[Finding] = []
        """The latest findings of the doctor."""
        self.noted: list[Finding] = []
        """Findings of the process that shows the group, such as its lost records."""
        self._besides: Optional[GroupState] = None
        """The last state without load reports."""
        self.version = {"state": 0, "loads": 0, "lag": 0, "history": 0, "findings": 0}
        self.cache: dict[str, tuple[tuple[int, ...], str]] = {}
        """Part -> (versions, rendered text)."""

    @property
    def seen(self) -> bool:
        """Whether the group has been read."""
        return self.exists is True

    @property
    def looked(self) -> bool:
        """Whether the group has been read or is absent, and its members have been looked for."""
        return self.exists is False or (self.exists is True and self.report.unseen != NOT_LOOKED)

    @property
    def paused(self) -> bool:
        """Whether the group is paused."""
        return self.report.state.paused

    @property
    def problems(self) -> list[Finding]:
        """The doctor's findings, and the problems of the newest state if the doctor has not examined it yet."""
        if self.examined == self.version["state"]:
            return [*self.noted, *self.findings]
        now = [what for what in self.report.problems if what not in NOT_LOOKED]
        since = [Finding("seen", Severity.WARNING, what, (), "", "") for what in now]
        return [*self.noted, *self.findings, *since]

    @property
    def judged(self) -> bool:
        """Whether the doctor has examined the newest state, or the group changes too fast or is hidden from it."""
        if self.examined < 0:
            return not self.seen or bool(self.report.state.hidden)
        return self.examined == self.version["state"] or self.history.open is not None

    @property
    def wrong(self) -> int:
        """The number of `problems` above INFO."""
        return sum(finding.severity > Severity.INFO for finding in self.problems)

    def recall(self, past: Past, now: float) -> None:
        """Adds the stored history. Called before the first observation."""
        self.past = past.rebalances
        self.history.recall(past.remembered)
        if past.points:
            # the chart has a gap while no server watched
            self.series.points.extend([*past.points, Point(now, None)])

    def judge(self, findings: list[Finding], of_state: int) -> None:
        """Sets the findings. `of_state` is the version of the state that the doctor examined."""
        self.findings, self.examined = findings, of_state
        self.version["findings"] += 1

    def learn(self, state: GroupState, now: float, news: Optional[News] = None) -> None:
        """Sets the state. Called when a watch on ZooKeeper fires."""
        # a new load report alone must not cause an examination, or send the whole group to each page
        before, self._besides = self._besides, replace(state, loads={}, read_ms=0)
        self.exists = True
        if state.members:
            unseen: tuple[str, ...] = ()
        else:  # the last member may have left for another protocol
            former = self.report.state
            unseen = NOT_LOOKED if former.members or former.hidden else self.report.unseen
        self.report = replace(self.report, state=state, unseen=unseen)
        self.fences.learn(state.claims)
        self.version["loads" if before == self._besides else "state"] += 1
        if self.history.observe(state, now, news):
            self.version["history"] += 1

    def hide(self, error: AllocatorError) -> None:
        """Drops the state, because this server may not read the group's znodes."""
        state = hidden_state(self.name, error)
        if self.report.state != state:
            self.exists, self.findings, self._besides = True, [], None
            self.report = replace(self.report, state=state, unseen=state.hidden)
            self.version["state"] += 1

    def look(self, unseen: tuple[str, ...]) -> None:
        """Sets why a group without members may have some. Called after each look at the other layouts and protocols."""
        unseen = (*self.report.state.hidden, *unseen)
        if unseen != self.report.unseen and not self.report.state.members:
            self.report = replace(self.report, unseen=unseen)
            self.version["state"] += 1

    def measure(self, logs: Logs, existing: Collection[TopicPartition], now: float, *, counted: bool = True) -> None:
        """Sets the offsets. Called after each poll of Kafka.

        `existing`: the partitions of the members' topics. `counted`: whether these are all.
        """
        before = self.report
        self.report = replace(before, logs=logs, subscribed=existing, counted=counted)
        if (existing, counted, logs.partial) != (before.subscribed, before.counted, before.logs.partial):
            self.version["state"] += 1
        self.measured = True
        self.offsets.add(logs, now)
        self.age = oldest(self.offsets.age(partition, logs) for partition in self.report.current)
        self.series.add(logs, self.report.lag.total, now, self.report.current, self.age.s)
        self.measured_at = now
        self.version["lag"] += 1

    def unmeasured(self, now: float) -> None:
        """Removes the offsets after a failed poll of Kafka, so that the page does not show old ones as current."""
        self._drop_offsets(NOT_READ, now)
        self.measured = False

    def refuse(self, error: AllocatorError, now: float) -> None:
        """Removes the offsets, because Kafka refuses them to this server."""
        self._drop_offsets(unread_logs(error), now)
        self.measured = True

    def _drop_offsets(self, logs: Logs, now: float) -> None:
        if logs.problems != self.report.logs.problems:
            self.version["state"] += 1
        self.report = replace(self.report, logs=logs)
        self.age = Age(None)
        self.series.unknown(now)
        self.version["lag"] += 1


class GroupWatch:
    """Reads one group again whenever a watch fires."""

    def __init__(self, zk: ZooKeeperClient, root: str, group: WatchedGroup, changed: Callable[[], None]) -> None:
        self._reader = GroupReader(zk, group.name, root, self._poke, self._load_reported)
        self._group = group
        self._on_change = changed
        self._changed = asyncio.Event()
        self._changed_at: Optional[float] = None
        self._loads_due: Optional[asyncio.TimerHandle] = None

    def _poke(self) -> None:
        if self._changed_at is None:
            self._changed_at = time.time()
        self._changed.set()

    def _load_reported(self) -> None:
        """Schedules one read for all load reports of a moment, because a large group writes several per second."""
        if self._loads_due is None:
            self._loads_due = asyncio.get_running_loop().call_later(LOADS_S, self._read_loads_now)

    def _read_loads_now(self) -> None:
        self._loads_due = None
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        try:
            await self._run()
        finally:
            if self._loads_due is not None:
                self._loads_due.cancel()

    async def _run(self) -> None:
        first = True
        store, crashed = self._reader.store, self._reader.crashed
        while True:
            changed_at, self._changed_at = self._changed_at, None
            self._changed.clear()
            try:
                state = await self._reader.read()
            except NoZnode:
                if self._group.exists is None:
                    self._group.exists = False
                self._on_change()
                await asyncio.sleep(RETRY_S)
                # the group was deleted, and this task is cancelled soon; or a member may create it in a leftover znode
                if await store.zk.exists(store.paths.members, self._poke) is None:
                    await self._changed.wait()
                continue
            except NotAuthorized as error:  # a group with other credentials hides no other group
                self._group.hide(error)
                self._on_change()
                await asyncio.sleep(REFUSED_S)  # ZooKeeper does not notify of a changed ACL
                continue
            # changes before the first read are unknown
            news = News(None if first else changed_at, frozenset(crashed))
            self._group.learn(replace(state, problems=state.problems[:SHOWN_PROBLEMS]), time.time(), news)
            first = False
            crashed.clear()
            self._on_change()
            await self._changed.wait()


class Watcher:
    """Watches all groups under a root, or only the group `only`, and the `kafka_groups` of Kafka's own protocols.

    If a group has members both in ZooKeeper and in Kafka, only those in ZooKeeper are shown. `run` continues after
    every failure except a ConfigError; `problems` has the current failures. Each change sets the events of
    `subscribe`.
    """

    def __init__(
        self,
        access: Clusters,
        *,
        only: str | None = None,
        interval_s: float = 5.0,
        past: Callable[[str], Awaitable[Past]] | None = None,
        kafka_groups: Collection[str] = (),
    ) -> None:
        self.groups: dict[str, WatchedGroup] = {}
        self.problems: dict[str, str] = {}
        """Current failures: "zookeeper", "kafka", "doctor", "history" or "watcher" -> reason."""
        self.away_since: dict[str, float] = {}
        """Start of each of `problems`, in epoch seconds."""
        self.responded_at: dict[str, float] = {}
        """Cluster -> time of its last response."""
        self.ready = False
        """Whether the groups have been read and ZooKeeper responds (without ZooKeeper: Kafka)."""
        self._access = access
        self._only = only
        self._interval_s = interval_s
        self._waiters: set[asyncio.Event] = set()
        self._past = past
        self.log = EventLog()
        """Outages, and events that the server adds."""
        self.zk: Optional[ZooKeeperClient] = None
        self.polls = 0
        """Completed polls of Kafka."""
        self._kafka_groups = kafka_groups
        self._in_zookeeper: Optional[frozenset[str]] = None
        """The groups in ZooKeeper; None before the first read."""
        self.client: Optional[KafkaClient] = None
        self.metadata: Optional[Metadata] = None
        """The latest metadata of the Kafka cluster."""

    @property
    def source(self) -> str:
        """The cluster that lists the groups."""
        return "zookeeper" if self._access.zookeeper is not None or not self._kafka_groups else "kafka"

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that the watcher polls."""
        return tuple(sorted({self.source, *(() if self._access.brokers is None else ("kafka",))}))

    @property
    def absent(self) -> list[str]:
        """The names among `kafka_groups` of which neither cluster has members or offsets."""
        if not self.ready or not self.polls or "kafka" in self.problems:
            return []
        return sorted(set(self._kafka_groups) - self.groups.keys())

    def subscribe(self) -> asyncio.Event:
        """Returns an event that each change sets. Call `unsubscribe` at the end."""
        event = asyncio.Event()
        event.set()
        self._waiters.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._waiters.discard(event)

    def changed(self) -> None:
        """Sets the events of `subscribe`."""
        for event in self._waiters:
            event.set()

    def complain(self, what: str, why: str) -> None:
        """Sets the problem of a part."""
        if self.problems.get(what) != why:
            self.problems[what] = why
            self.changed()
        self.away_since.setdefault(what, time.time())

    def mend(self, what: str) -> None:
        """Removes the problem of a part, and adds an event if it lasted long."""
        since = self.away_since.pop(what, None)
        if self.problems.pop(what, None) is None or since is None:
            return
        away_s = time.time() - since
        if away_s >= OUTAGE_S:
            self.log.add(Event(since, "outage", f"{what} did not respond for {away_s:.0f} s"))
        self.changed()

    def _responded(self, what: str) -> None:
        self.mend(what)
        self.responded_at[what] = time.time()

    def _outdated(self) -> None:
        if self.ready:
            self.responded_at[self.source] = time.time()
        self.ready = False

    def note(self, name: str, findings: list[Finding]) -> None:
        """Replaces the findings of this process about a group."""
        group = self.groups.get(name)
        if group is not None and group.noted != findings:
            group.noted = findings
            group.version["findings"] += 1
            self.changed()

    def forget(self) -> None:
        """Drops the state, because an old state would give later rebalances wrong times."""
        self.groups.clear()
        self.problems.clear()
        self.away_since.clear()
        self.responded_at.clear()
        self.metadata = None
        self.ready = False

    async def until_ready(self, timeout_s: float) -> None:
        """Returns when all groups have been read or are absent, or after the timeout."""
        groups = self.groups
        await self.until(lambda: self.ready and all(each.looked for each in groups.values()), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Returns when the condition holds, or after the timeout. Evaluates it after each change."""
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
        """Sets the error that ended `run` as the problem."""
        self.problems = {"watcher": f"{error}" if isinstance(error, AllocatorError) else repr(error)}
        self.away_since = {"watcher": time.time()}
        self._outdated()
        self.changed()

    async def run(self) -> None:
        """Runs until cancelled. Raises ConfigError if the settings are wrong."""
        work = {"kafka": self._watch_kafka, "zookeeper": self._watch_zookeeper}
        kept = {cluster: self._keep(cluster, work[cluster]) for cluster in self.clusters}
        kept["members"] = self._keep("members", self._look_for_members)
        kept["doctor"] = self._keep("doctor", self._examine)
        await TaskGroup().run(kept.pop(self.source), **kept)

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
                self.complain(what, why)
                if what == self.source:
                    self._outdated()
                if what == "kafka":
                    for group in self.groups.values():
                        group.unmeasured(time.time())
                self.changed()
            await asyncio.sleep(RETRY_S)

    # -- ZooKeeper -----------------------------------------------------------------------------------------------

    async def _watch_zookeeper(self) -> None:
        async with self._access.ensemble() as zk:
            self.zk = zk
            try:
                tasks = TaskGroup()
                await tasks.run(self._follow_groups(zk, tasks))
            finally:
                self.zk = None

    async def _follow_groups(self, zk: ZooKeeperClient, tasks: TaskGroup) -> None:
        poked = asyncio.Event()
        listed = Watched(partial(list_groups, zk, self._access.root), poked.set)
        watched: dict[str, asyncio.Task[None]] = {}
        while True:
            poked.clear()
            names = [name for name in await listed.get() if self._only in (None, name)]
            self._in_zookeeper = frozenset(names)
            self._responded("zookeeper")
            for name in names:
                if name not in watched or watched[name].done():
                    group = await self._group(name)
                    watched[name] = tasks.start(GroupWatch(zk, self._access.root, group, self.changed).run(), name)
            for name in set(watched) - {*names}:
                watched.pop(name).cancel()
            for name in set(self.groups) - {*names}:
                if self.groups[name].report.state.coordinated is None:
                    del self.groups[name]
            self.ready = True
            self.changed()
            await poked.wait()

    async def _group(self, name: str) -> WatchedGroup:
        if name not in self.groups:
            group = WatchedGroup(name, self._access.brokers)
            if self._past is not None:
                group.recall(await self._past(name), time.time())
            self.groups.setdefault(name, group)  # another task may have created it meanwhile
        return self.groups[name]

    # -- Kafka ---------------------------------------------------------------------------------------------------

    async def _watch_kafka(self) -> None:
        access = self._access
        assert access.brokers is not None
        async with access.cluster() as client:
            known = {name: group.report.state for name, group in self.groups.items() if self.in_kafka(name)}
            coordinated = [
                KafkaGroupWatch(name, client, access.brokers, access.security, known.get(name), self._learn)
                for name in self._kafka_groups
            ]
            self.client = client
            try:
                tasks = TaskGroup()
                await tasks.run(self._poll_kafka(client, coordinated, tasks))
            finally:
                self.client = None

    async def _poll_kafka(
        self, client: KafkaClient, coordinated: Collection[KafkaGroupWatch], tasks: TaskGroup
    ) -> None:
        for watch in coordinated:
            tasks.start(watch.follow_commands(), watch.name)
        while True:
            began = time.monotonic()
            await client.refresh()
            self.metadata = client.metadata
            await asyncio.gather(*map(self._poll_group, coordinated))
            for group in list(self.groups.values()):
                if group.seen:
                    await self._measure(client, group)
            self.polls += 1
            self._responded("kafka")
            self.ready |= self.source == "kafka"
            self.changed()
            took = time.monotonic() - began
            await asyncio.sleep(max(self._interval_s - took, PAUSE_FACTOR * took, 0.05))

    async def _poll_group(self, watch: KafkaGroupWatch) -> None:
        state = await watch.poll()
        if state is None:
            if self.in_kafka(watch.name):
                del self.groups[watch.name]
        elif self.source == "kafka" or self._in_zookeeper is not None:
            await self._group(watch.name)
            self._learn(state)

    def in_kafka(self, name: str) -> bool:
        """Whether the state of the group comes from Kafka's coordinator."""
        return name in self.groups and self.groups[name].report.state.coordinated is not None

    def _learn(self, state: GroupState) -> None:
        """Sets a state from Kafka, unless the group has members in ZooKeeper."""
        group = self.groups.get(state.group)
        if group is None:
            return
        # Kafka stores the offsets of a group in ZooKeeper too, and reports it as a group without members
        goes_on = group.seen and not group.report.state.members and state.members
        if self.in_kafka(state.group) or goes_on or state.group not in (self._in_zookeeper or ()):
            group.learn(state, time.time())
            self.changed()

    async def _measure(self, client: KafkaClient, group: WatchedGroup) -> None:
        try:
            found = await measure(client, group.report.state)
        except AllocatorError as error:
            if error.retriable or isinstance(error, ConfigError):
                raise
            group.refuse(error, time.time())  # a group with other rights hides no other group
        else:
            group.measure(found.logs, found.subscribed, time.time(), counted=found.counted)
        self.changed()

    # -- members that are not shown ------------------------------------------------------------------------------

    async def _look_for_members(self) -> None:
        """Looks for members of other layouts and protocols in each group without members.

        The doctor looks for them in the other groups.
        """
        looked_at: dict[str, float] = {}
        while True:
            began = time.monotonic()
            for name, group in list(self.groups.items()):
                is_due = group.report.unseen == NOT_LOOKED or began - looked_at.get(name, 0.0) >= self._interval_s
                state = group.report.state
                if group.seen and not state.members and is_due:
                    client = None if "kafka" in self.problems else self.client
                    found = await look_around(self._access, state, self.zk, client)
                    group.look(found.unseen(state))
                    looked_at[name] = began
                    self.changed()
            self.mend("members")
            await asyncio.sleep(max(LOOK_S, PAUSE_FACTOR * (time.monotonic() - began)))

    # -- the doctor ----------------------------------------------------------------------------------------------

    async def _examine(self) -> None:
        """Examines each group regularly, and a changed group as soon as its rebalance has ended."""
        while True:
            began = time.monotonic()
            for group in list(self.groups.values()):
                if not group.seen or group.report.state.hidden or not self._is_due(group):
                    continue
                if self.zk is None and self.source == "zookeeper":
                    continue
                if self._access.brokers is not None and (self.client is None or not group.measured):
                    continue  # not read yet, or `problems` already has the failure of Kafka
                version = group.version["state"]
                zookeepers = [] if self.zk is None else [self.zk]
                now = await observe(
                    group.name,
                    client=self.client,
                    zookeepers=zookeepers,
                    root=self._access.root,
                    report=group.report,
                    unseen=("ZooKeeper",) if self.zk is None and self._access.zookeeper is not None else (),
                    of_kafka=group.name in self._kafka_groups,
                )
                group.judge(group.trends.judge(now, self._access.root), version)
                self.changed()
            if "doctor" in self.problems:
                self._responded("doctor")
                self.changed()
            await asyncio.sleep(max(DOCTOR_PAUSE_S, PAUSE_FACTOR * (time.monotonic() - began)))

    def _is_due(self, group: WatchedGroup) -> bool:
        last = group.trends.last
        if last is None or 1000 * time.time() - last.ended_ms >= 1000 * DOCTOR_S:
            return True
        return group.examined != group.version["state"] and group.history.open is None


async def log_ends(watcher: Watcher) -> Logs:
    """Returns the ends of the logs of all topics; nothing while Kafka does not respond."""
    if watcher.client is None or watcher.metadata is None:
        return Logs()
    topics = watcher.metadata.topics.items()
    partitions = (TopicPartition(name, n) for name, each in topics if not each.internal for n in each.partitions)
    try:
        return await read_logs(watcher.client, partitions, {})
    except AllocatorError as error:
        log.debug("the ends of the topics are unknown: %s", error)
        return Logs()
