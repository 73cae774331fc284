"""Moves groups from an old cluster to a new one, step by step, while producers and services run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Optional, TypeVar

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.core.text import partition_names, some_of
from allocator.documents import read_json
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate.cutover_plan import Plan, load_plan
from allocator.migrate.cutover_state import CutoverFailed, CutoverState
from allocator.migrate.offset_map import OffsetMap, Switch, map_topic
from allocator.migrate.offsets import copy_offsets, restore_offsets
from allocator.migrate.positions import Target
from allocator.migrate.storage import OffsetStore, connected
from allocator.migrate.topics import TopicIds
from allocator.migrate.translate import ends_of
from allocator.operate import describe, kafka_group, subscribed
from allocator.protocols.zookeeper import (
    ClusterChoice,
    ZooKeeperClient,
    choice_path,
    choose_cluster,
    read_choice,
    same_cluster,
)
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

STEPS: Final = ("check", "freeze", "drain", "offsets", "start", "verify", "producers", "finish")
NO_RETURN: Final = "producers"
"""The step in which producers switch to the new cluster. From then on only it has their records."""
HIDDEN: Final = ("ends", "empty", "choices", "left_at", "had_members", "read")
"""Details for later steps, which are too long to show."""
POLL_S: Final = 0.2
# seconds that a rollback waits for the mirror's commit of what it has copied. Higher: fewer records are read twice if
# it is slow; lower: a rollback is faster if it has stopped
COPIED_S: Final = 10.0

T = TypeVar("T")


class CutoverClusters(NamedTuple):
    """The connections of a cutover: both clusters, the ensemble of the groups, and the offset map of the mirror."""

    plan: Plan
    old: KafkaClient
    new: KafkaClient
    ensemble: ZooKeeperClient
    map: OffsetMap

    def partitions(self, client: KafkaClient) -> list[TopicPartition]:
        """Returns the partitions of the plan's topics on one of the clusters."""
        return [TopicPartition(topic, n) for topic in self.plan.topics for n in client.partitions(topic) or ()]

    async def subscribed(self, group: str) -> frozenset[TopicPartition]:
        """Returns the partitions of the topics that members of the group subscribe to on the old cluster."""
        states = await describe(self.ensemble, group, self.plan.root), await kafka_group(self.old, group)
        return frozenset().union(*(subscribed(state, self.old) for state in states))

    async def committed(self, store: OffsetStore) -> dict[TopicPartition, int]:
        """Returns the committed offsets of a group in these topics."""
        async with store.opened() as there:
            return await there.committed(self.partitions(there.client))

    async def mirrored(self) -> dict[TopicPartition, int]:
        """Returns the old offsets up to which the mirror has copied.

        Raises CutoverFailed for a topic that was deleted and created again since it was mirrored.
        """
        ids = await TopicIds(self.old).of(self.plan.topics)
        found = await self._copied()
        await self.map.refresh()
        for each in self.partitions(self.old):
            reason = self.map.recreated(each, ids[each.topic])
            if reason is not None:
                raise CutoverFailed(
                    f"topic {each.topic!r} of the old cluster was deleted and created again: {reason}; offsets of the "
                    "groups may be of the former topic. Set --recreated of the mirror, and check these offsets"
                )
        return found

    async def _copied(self) -> dict[TopicPartition, int]:
        return {each: offset.offset for each, offset in (await self._commits()).items()}

    async def _commits(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return await GroupOffsets(self.old, self.plan.mirror).fetch(self.partitions(self.old))

    async def copied(self) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the old and new offsets up to which the mirror has copied, where its commits have both.

        The map is read after them: the mirror writes it first.
        """
        found = await self._commits()
        await self.map.refresh()
        targets = {each: Target.of(offset) for each, offset in found.items()}
        return {each: (found[each].offset, kept.offset) for each, kept in targets.items() if kept is not None}

    async def mirror_lag(self) -> int:
        """Returns the number of records that the mirror has not copied yet."""
        ends, mirrored = await ends_of(self.old, self.partitions(self.old)), await self.mirrored()
        return sum(max(0, end.end - mirrored.get(each, 0)) for each, end in ends.items())

    async def others(self, copied: Mapping[TopicPartition, tuple[int, int]]) -> tuple[Counter[str], Counter[str]]:
        """Returns the topics with records on the new cluster that the mirror did not write, or wrote twice -> at least
        how many there are: those that groups may skip, because they are before a copy, and the other ones.

        `copied` is the result of `copied`, called just before. Groups skip none once a cutover has moved the producers,
        see `OffsetMap.start`. Then the new cluster gets records of others all the time, and this counts none.
        """
        partitions = self.partitions(self.old)
        new = await ends_of(self.new, partitions)
        old = await ends_of(self.old, partitions)  # after the new ones, which may grow up to here
        between: Counter[str] = Counter()
        behind: Counter[str] = Counter()
        for each in partitions:
            switch, known = self.map.switch(each), self.map.positions(each)
            if switch is not None and switch.has_moved:
                continue
            mirrored = [copied[each]] if each in copied else []
            # in a mirror back, runs before the switch are of the other direction
            begin = 0 if switch is None else switch.source
            count = total = known.others(begin, mirrored)
            if mirrored and each in new:
                total = known.others(begin, [*mirrored, (old[each].end, new[each].end)])
            skipped = 0 if switch is not None else count
            behind[each.topic] += total - skipped
            if switch is None and self.map.other(each) is not None:
                skipped = max(1, count)  # gaps may hide them from the count
            between[each.topic] += skipped
        return +between, +behind

    async def refuse_others(self, advice: str = "") -> None:
        """Raises CutoverFailed if the groups may skip records of others on the new cluster."""
        faults = self.faults_of((await self.others(await self.copied()))[0])
        if faults:
            raise CutoverFailed("; ".join(faults) + advice)

    def faults_of(self, others: Mapping[str, int]) -> list[str]:
        """Returns the faults of the topics with records that the groups may skip."""
        return [
            f"topic {topic!r} of the new cluster has at least {count} records that the mirror did not write, or wrote "
            "twice, before copies of the mirror: the groups would never read those before their new offsets, or read "
            "some again. Stop the producers that write there, and write their records to the old cluster. Then, while "
            "no group reads the topic on the new cluster, stop the mirror, delete the topic there, and start the "
            f"mirror with --restart {topic}"
            for topic, count in others.items()
        ]

    async def ends_of_copies(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the old and the new ends of what is mirrored. `ends` are the old ends, up to which all is mirrored.

        The commits of the mirror have them, because producers that were moved by hand may already write to the new
        cluster. Where an earlier cutover has moved the producers, the place stays: only the new cluster has their
        records since.
        """
        new, copied = await ends_of(self.new, ends), await self.copied()
        pairs = {each: copied.get(each, (end, new[each].end)) for each, end in ends.items()}
        switches = {each: self.map.switch(each) for each in ends}
        return pairs | {each: (one.source, one.target) for each, one in switches.items() if one and one.has_moved}

    async def switch(self, pairs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Writes into the map where the producers move, unless it is there, so that a mirror back can begin there."""
        await self.map.refresh()
        for each, pair in pairs.items():
            before = self.map.switch(each)
            if before is None or not before.has_moved:
                self.map.note_switch(each, Switch(1 + (0 if before is None else before.number), *pair))
        await self.map.flush()

    async def back(self, group: str) -> None:
        """Commits the group's progress on the new cluster to the old one, where it goes back in no partition."""
        await self.map.refresh()
        done = await self.committed(self.plan.new(group))
        async with self.plan.old(group).opened() as old:
            before = await old.committed(self.partitions(self.old))
            sources = {each: self.map.positions(each).source(target) for each, target in done.items()}
            offsets = {each: at for each, at in sources.items() if at is not None and at > before.get(each, -1)}
            await old.refuse_members()

            async def beyond() -> dict[TopicPartition, int]:
                copied = await self._copied()
                return {each: copied[each] for each, at in offsets.items() if copied.get(each, at) < at}

            # a record on the new cluster that the mirror did not write moves the group on, beyond what the mirror has
            # copied. What comes after that on the old cluster was never read
            for each, at in (await until_empty(beyond, COPIED_S, lambda _: None)).items():
                log.warning("%s:%d: the group has read other records than the mirror's; it goes back to %d", *each, at)
                offsets[each] = max(at, before.get(each, 0))
            await old.commit(offsets, "rolled back")


@contextlib.asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[CutoverClusters]:
    """Connects, and closes at the end of the block. Raises CutoverFailed if there is no mirror."""
    async with contextlib.AsyncExitStack() as stack:
        old = await connected(stack, plan.old_brokers, plan.old_security)
        new = await connected(stack, plan.new_brokers, plan.new_security)
        ensemble = ZooKeeperClient(plan.zookeeper)
        stack.push_async_callback(ensemble.close)
        await ensemble.connect(make_chroot=False)
        offset_map = OffsetMap(old, new, map_topic(plan.mirror))
        if not await offset_map.exists():
            raise CutoverFailed(f"the new cluster has no {offset_map.topic!r}: start the mirror, `allocator mirror`")
        await offset_map.open()
        yield CutoverClusters(plan, old, new, ensemble, offset_map)


async def until_empty(poll: Callable[[], Awaitable[T]], timeout_s: float, on_result: Callable[[T], None]) -> T:
    """Polls until the result is empty or time is over. Passes each result to `on_result`. Returns the last one."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = await poll()
        except AllocatorError as error:
            # retries: coordinators may be starting, and leaders moving
            if not error.retriable or time.monotonic() > deadline:
                raise
            log.info("polling again: %s", error)
        else:
            on_result(found)
            if not found or time.monotonic() > deadline:
                return found
        await asyncio.sleep(POLL_S)


Audit = Callable[[str, "list[tuple[str, dict[str, str]]]"], "tuple[str, int]"]
"""Compares a topic on both clusters. Each cluster is a pair (brokers, options of `allocator.spark.Topic`). Returns a
text to show, and the number of records that are missing or altered on the new cluster. Runs in a thread."""


class Cutover:
    """Runs the plan in a file. Calls `on_step(step, result)` after each step. While it waits, calls `on_wait(step,
    left, unit)` with the number of remaining members, records or partitions.

    Guarantee: a finished step is in the state file before the next one begins. So the process may be killed at any time
    and run again with the same plan; a repeated step does no harm. One run at a time acts, see `CutoverState`. Until
    step `NO_RETURN`, `rollback` moves the groups back without losing records: it translates their progress on the new
    cluster into old offsets. Step `check` is repeated until `freeze` begins, because it changes nothing and the groups
    may change meanwhile.

    `fail_back`: moves the groups and the producers back after step `NO_RETURN`, by the same steps in the other
    direction. There the old cluster is the one that they leave. After its last step the plan can be run again.
    """

    STEPS: ClassVar = STEPS

    def __init__(
        self,
        plan: str | Path,
        on_step: Callable[[str, str], None] | None = None,
        on_wait: Callable[[str, int, str], None] = lambda *_: None,
        audit: Audit | None = None,
        *,
        fail_back: bool = False,
    ) -> None:
        self.plan = load_plan(Path(plan))
        self._forward: Cutover | None = None
        if fail_back:
            self._forward, self.plan = Cutover(plan), self.plan.back()
        self._on_step = on_step or (lambda step, text: log.info("%s: %s", step, text))
        self._on_wait = on_wait
        self._audit = audit
        self._state = CutoverState(self.plan)

    # -- state ----------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """Returns the completed steps. Raises ConfigError if the plan has changed since."""
        return self._state.load()

    def may_roll_back(self) -> bool:
        """Returns whether the groups can still roll back: by the last `load`, producers write only to the old
        cluster."""
        return not self._state.steps.keys() & {NO_RETURN, "opened"}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[dict[str, Any]]:
        """Loads the completed steps, and keeps other runs out during the block."""
        with contextlib.ExitStack() as stack:
            if self._forward is not None:
                stack.enter_context(self._forward._alone())
            stack.enter_context(self._state.locked())
            yield self.load()

    # -- running --------------------------------------------------------------------------------------------------

    async def run(self, until: str = STEPS[-1]) -> None:
        """Runs the remaining steps, up to `until`. After an error, run it again or roll back."""
        if until not in STEPS:
            raise ConfigError(f"there is no step {until!r}; steps are {', '.join(STEPS)}")
        with self._alone() as done:
            if self._forward is not None and NO_RETURN not in self._forward.load():
                raise CutoverFailed(
                    f"nothing to move back: the cutover of {self.plan.path} has not done step {NO_RETURN!r}; roll it "
                    "back instead (--rollback)"
                )
            async with opened(self.plan) as clusters:
                if self._state.has_begun:
                    self._state.begin()
                for step in STEPS[: STEPS.index(until) + 1]:
                    # what was checked before may have changed meanwhile
                    if step in done and (step != "check" or self._state.has_begun):
                        continue
                    self._state.check_unchanged()
                    details: dict[str, Any] = await getattr(self, f"_{step}")(clusters)
                    self._state.note(step, **details)
                    shown = ", ".join(f"{key} {value}" for key, value in details.items() if key not in HIDDEN)
                    self._on_step(step, shown or "done")
            if self._forward is not None and until == STEPS[-1]:
                for each in self, self._forward:
                    each._archive("failed-back")

    async def rollback(self) -> None:
        """Moves the groups back to the old cluster. Raises CutoverFailed after step `NO_RETURN`."""
        with self._alone() as done:
            last = None if done else self._state.archived("rolled-back")
            if last is not None:  # this run follows one that was killed at its end
                self._remove_restore_files()
                self._on_step("rollback", f"it was done before, by a run that left {last}")
                return
            if not done:
                raise CutoverFailed(f"nothing to undo: {self.plan.path} has not begun, there is no {self.plan.state}")
            if not self.may_roll_back():
                raise CutoverFailed(
                    f"step {NO_RETURN!r} was reached: the new cluster gets records that the old one does not have. Run "
                    "the remaining steps, or start a mirror back (`allocator mirror --back-of`) and move back with "
                    "--fail-back"
                )
            if self._state.has_begun:
                async with opened(self.plan) as clusters:
                    self._state.begin()
                    await self._move_back(clusters)
            else:
                self._on_step("rollback", "no group was touched")
            self._archive("rolled-back")

    async def _move_back(self, on: CutoverClusters) -> None:
        before = self._state.steps["check"]["choices"]
        if "offsets" in self._state.steps:  # a run that was killed in step "start" may have switched some groups
            await self._refuse_moved(on, "the producers")
            await self._let_leave(on)
            for group in self.plan.groups:
                self._state.check_unchanged()
                await on.back(group)
        else:
            await self._refuse_moved(on, *self._choices())
            for group in self.plan.groups:
                file = self._restore_file(group)
                if file.exists():
                    self._state.check_unchanged()
                    await restore_offsets(file, self.plan.new_security)
        for name, path in self._choices().items():
            # named also if there was no choice before: a member may have the new brokers in its own settings
            await self._choose(on, path, ClusterChoice(before.get(path) or self.plan.old_brokers))
            self._on_step("rollback", f"{name} uses the old cluster")

    async def _refuse_moved(self, on: CutoverClusters, *names: str) -> None:
        """Raises CutoverFailed if one of them already uses the new cluster, so that the state file lacks steps.

        A run with another copy of the file may have done them.
        """
        for name, path in self._choices().items():
            choice = await read_choice(on.ensemble, path)
            if name in names and choice.brokers is not None and same_cluster(choice.brokers, self.plan.new_brokers):
                raise CutoverFailed(
                    f"{name} already uses the new cluster (znode {path}), by a step that {self.plan.state} does not "
                    "have: go on with the state file of the run that did it"
                )

    async def _choose(self, on: CutoverClusters, path: str, choice: ClusterChoice) -> None:
        self._state.check_unchanged()
        await choose_cluster(on.ensemble, path, choice)

    def _archive(self, why: str) -> None:
        """Renames the state file, so that the plan can be run again."""
        self._state.archive(why)
        self._remove_restore_files()

    def _remove_restore_files(self) -> None:
        for group in self.plan.groups:
            self._restore_file(group).unlink(missing_ok=True)

    async def clear(self) -> None:
        """Removes the choice of the new cluster, once all services and producers name it in their own settings.

        Raises CutoverFailed before the last step.
        """
        with self._alone() as done:
            if STEPS[-1] not in done:
                raise CutoverFailed(
                    f"{self.plan.path} is not finished: its services still need the choice of the cluster"
                )
            async with opened(self.plan) as clusters:
                for name, path in self._choices().items():
                    await self._choose(clusters, path, ClusterChoice())
                    self._on_step("clear", f"{name} uses the brokers in its own settings")

    def _choices(self) -> dict[str, str]:
        """Returns who follows a cluster choice -> the path of its znode."""
        paths = {group: choice_path(self.plan.root, group) for group in self.plan.groups}
        return paths if self.plan.producers is None else {**paths, "the producers": self.plan.producers}

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _check(self, on: CutoverClusters) -> dict[str, Any]:
        faults = []
        for topic in self.plan.topics:
            count, there = len(on.old.partitions(topic) or ()), len(on.new.partitions(topic) or ())
            if not count or count != there:
                faults.append(f"{topic!r} has {count} partitions on the old cluster and {there} on the new one")
        mirrored = await on.mirrored()
        behind = [each for each in on.partitions(on.old) if each not in mirrored]
        if behind:
            faults.append(f"the mirror {self.plan.mirror!r} has not begun with {partition_names(behind)}")
        copied = await on.copied()
        between, after = await on.others(copied)
        faults += on.faults_of(between)
        members: dict[str, int] = {}
        topics: dict[str, list[str]] = {}
        # members that do not follow are stopped before the freeze; that they exist and what they read stays known
        earlier = self._state.steps.get("check", {})
        choices: dict[str, Optional[str]] = {}
        empty: dict[str, list[list[Any]]] = {}
        again: Counter[str] = Counter()
        ends = await ends_of(on.old, on.partitions(on.old))
        for group in self.plan.groups:
            async with self.plan.old(group).opened() as store:
                committed = await store.committed()
                members[group] = len(await store.members())
            read = {each.topic for each in (*committed, *await on.subscribed(group)) if on.old.partitions(each.topic)}
            faults += filter(None, [self._others(group, read)])
            read |= {topic for topic in earlier.get("read", {}).get(group, ()) if on.old.partitions(topic)}
            topics[group] = sorted(read.intersection(self.plan.topics))
            committed = {each: offset for each, offset in committed.items() if each.topic in self.plan.topics}
            again[group] = sum(on.map.start(each, at, copied.get(each)).again for each, at in committed.items())
            if not committed:
                faults.append(f"group {group!r} has no committed offsets in these topics on the old cluster")
            uncommitted = [each for each in ends if each.topic in read and each not in committed]
            empty[group] = [[*each, ends[each].end] for each in uncommitted if ends[each].start == ends[each].end]
            unread = [each for each in uncommitted if ends[each].start < ends[each].end]
            if unread:
                faults.append(
                    f"group {group!r} has no committed offset in {partition_names(unread)}, which hold records, so its "
                    "start on the new cluster is unknown. Let it commit some, or stop it and set its start (`allocator "
                    "group offsets reset`)"
                )
        for name, path in self._choices().items():
            choice = await read_choice(on.ensemble, path)
            if choice.frozen or not same_cluster(choice.brokers or self.plan.old_brokers, self.plan.old_brokers):
                faults.append(f"{name} already has another cluster choice: {choice}; check for another cutover")
            choices[path] = choice.brokers  # of an earlier cutover
        if faults:
            raise CutoverFailed(f"nothing was touched: {'; '.join(faults)}")
        found: dict[str, Any] = {"members": members, "lag": await on.mirror_lag(), "empty": empty, "choices": choices}
        found |= {
            "had_members": sorted({*earlier.get("had_members", ()), *filter(members.get, members)}),
            "read": topics,
        }
        if after:
            found["records of others"] = f"{dict(after)} (the groups read these if the mirror copies none behind them)"
        if +again:
            found["read again"] = f"at most {dict(+again)} (copies that are behind records of others)"
        if on.old.broker_version < (0, 11):
            found["fail-back"] = "impossible, it needs 0.11 or newer"
        return found

    def _others(self, group: str, read: Iterable[str]) -> str | None:
        """Returns the fault that the group reads topics which neither move nor are left; None if it reads none."""
        others = sorted({*read} - {*self.plan.topics, *self.plan.leave})
        if not others:
            return None
        return (
            f"group {group!r} also reads {some_of([*map(repr, others)], 10)}, by its members or its committed offsets. "
            "On the new cluster it would skip or repeat records of these: mirror them and add them to topics, or name "
            "those that it does not read any more in [cutover] leave"
        )

    async def _freeze(self, on: CutoverClusters) -> dict[str, Any]:
        self._state.begin()
        began = time.monotonic()
        await self._refuse_others(on)  # a freeze that failed may be repeated days later
        await on.refuse_others(". Roll back first (--rollback)")
        await self._let_leave(on)
        await self._refuse_others(on)
        for group in self.plan.groups:
            await self._settle(group)
        return {"seconds": round(time.monotonic() - began, 1)}

    async def _refuse_others(self, on: CutoverClusters) -> None:
        """Raises CutoverFailed if a group reads other topics since step `check`."""
        await on.old.refresh()
        for group in self.plan.groups:
            async with self.plan.old(group).opened() as store:
                read = {each.topic for each in (*await store.committed(), *await on.subscribed(group))}
            fault = self._others(group, filter(on.old.partitions, read))
            if fault is not None:
                raise CutoverFailed(f"{fault}. A topic can be added after --rollback")

    async def _let_leave(self, on: CutoverClusters) -> None:
        """Freezes the groups, and waits until they have no members."""
        for group in self.plan.groups:
            path = choice_path(self.plan.root, group)
            before = await read_choice(on.ensemble, path)
            await self._choose(on, path, ClusterChoice(before.brokers, frozen=True))
        for group in self.plan.groups:
            for store in (self.plan.old(group), self.plan.new(group)):
                async with store.opened() as there:
                    left = await until_empty(
                        there.members, self.plan.freeze_s, lambda found: self._on_wait("freeze", len(found), "members")
                    )
                    if left:
                        raise CutoverFailed(
                            f"group {group!r} still has members: {', '.join(left)}. Stop members that do not follow "
                            "the cluster choice (Consumer) yourself"
                        )

    async def _settle(self, group: str) -> None:
        """Commits the end of partitions that were empty at step `check`, so that the group reads all records since.

        Without a committed offset, a group with auto_offset_reset "latest" would skip them on the new cluster.
        """
        rows = self._state.steps.get("check", {}).get("empty", {}).get(group, [])
        empty = {TopicPartition(str(topic), int(number)): int(end) for topic, number, end in rows}
        if empty:
            async with self.plan.old(group).opened() as old:
                committed = await old.committed(empty)
                self._state.check_unchanged()
                await old.commit({each: end for each, end in empty.items() if each not in committed}, "was empty")

    async def _drain(self, on: CutoverClusters) -> dict[str, Any]:
        wanted: dict[TopicPartition, int] = {}
        for group in self.plan.groups:
            for each, offset in (await on.committed(self.plan.old(group))).items():
                wanted[each] = max(offset, wanted.get(each, 0))

        async def behind() -> dict[TopicPartition, int]:
            mirrored = await on.mirrored()
            return {each: mirrored.get(each, 0) for each, offset in wanted.items() if mirrored.get(each, 0) < offset}

        def tell(left: dict[TopicPartition, int]) -> None:
            self._on_wait("drain", sum(wanted[each] - at for each, at in left.items()), "records")

        left = await until_empty(behind, self.plan.drain_s, tell)
        if left:
            some = ", ".join(f"{p.topic}:{p.partition} at {at} of {wanted[p]}" for p, at in list(left.items())[:5])
            raise CutoverFailed(f"the mirror is behind the groups: {some}. Check that it is running")
        return {"partitions": len(wanted)}

    async def _offsets(self, on: CutoverClusters) -> dict[str, Any]:
        moved = {}
        await self._refuse_moved(on, *self.plan.groups)
        # records of others that were behind all copies until now. The offsets below skip no later ones
        await on.refuse_others(". Roll back (--rollback)")
        for group in self.plan.groups:
            file = self._restore_file(group)
            self._state.check_unchanged()
            if file.exists():  # a run was killed here: start again with the former offsets
                await restore_offsets(file, self.plan.new_security)
                file.unlink()
            old, new = self.plan.old(group), self.plan.new(group)
            # what an earlier try read on the new cluster does not count: the group reads on where it is on the old one
            done = await copy_offsets(
                old, new, file, by="map", topics=self.plan.topics, mirror=self.plan.mirror, backward=True
            )
            moved[group] = len(done.rows)
        return {"offsets": moved}

    async def _start(self, on: CutoverClusters) -> dict[str, Any]:
        left_at = {group: await self._left_at(on, group) for group in self.plan.groups}
        for group in self.plan.groups:
            await self._choose(on, choice_path(self.plan.root, group), ClusterChoice(self.plan.new_brokers))
        return {"left_at": left_at}

    async def _left_at(self, on: CutoverClusters, group: str) -> dict[str, int]:
        committed = await on.committed(self.plan.old(group))
        return {f"{p.topic}:{p.partition}": offset for p, offset in sorted(committed.items())}

    async def _all_have_left(self, on: CutoverClusters) -> None:
        """Raises CutoverFailed if a group has committed on the old cluster since step `start` or the last such error.

        A member that was started with the old brokers joins the group, takes partitions, and reads them there. So do
        all members once someone has changed the cluster choice.
        """
        for group in self.plan.groups:
            choice = await read_choice(on.ensemble, choice_path(self.plan.root, group))
            if choice.frozen or choice.brokers is None or not same_cluster(choice.brokers, self.plan.new_brokers):
                raise CutoverFailed(
                    f"group {group!r} was paused or moved since step 'start', and does not read the new cluster: its "
                    f"cluster choice is {choice}. Resume it, or roll back"
                )
        for group, before in self._state.steps.get("start", {}).get("left_at", {}).items():
            now = await self._left_at(on, group)
            moved = [name for name, offset in now.items() if before.get(name) != offset]
            if moved:
                self._state.steps["start"]["left_at"][group] = now
                self._state.write()
                raise CutoverFailed(
                    f"a member of group {group!r} still reads the old cluster: it has committed {some_of(moved)} "
                    f"there since step 'start'. Start it with {self.plan.new_brokers}, and run the cutover again"
                )

    async def _verify(self, on: CutoverClusters) -> dict[str, Any]:
        """Waits until every group has members and commits progress, and its partitions have owners."""
        await self._all_have_left(on)
        had_members = self._state.steps["check"]["had_members"]
        for group in self.plan.groups:
            if group not in had_members:
                continue
            file = read_json(self._restore_file(group))
            began = {TopicPartition(str(row[0]), int(row[1])): int(row[2]) for row in file["after"]}

            async def stuck(group: str = group, began: Mapping[TopicPartition, int] = began) -> list[str]:
                async with self.plan.new(group).opened() as store:
                    if not await store.members():
                        return ["it has no members"]
                state = await describe(on.ensemble, group, self.plan.root)
                if state is not None and state.members:  # owners are unknown in groups of Kafka's own protocol
                    began = {p: start for p, start in began.items() if p not in state.left_out}
                    unowned = [f"{p.topic}:{p.partition} has no owner" for p in began if p not in state.owners]
                    if unowned:
                        return unowned
                committed = await on.committed(self.plan.new(group))
                ends = await ends_of(on.new, began)
                return [
                    f"{p.topic}:{p.partition} stays at {start}"
                    for p, start in began.items()
                    if committed.get(p, start) <= start < ends[p].end
                ]

            left = await until_empty(
                stuck, self.plan.verify_s, lambda found: self._on_wait("verify", len(found), "partitions")
            )
            if left:
                await self._all_have_left(on)
                raise CutoverFailed(f"group {group!r} does not work on the new cluster: {'; '.join(left[:5])}")
        await self._all_have_left(on)
        others = sum(
            await on.others(await on.copied()), Counter()
        )  # the groups read these, but a rollback does not bring them along
        return {"lag": await on.mirror_lag(), **({"records of others": dict(others)} if others else {})}

    async def _producers(self, on: CutoverClusters) -> dict[str, Any]:
        if "opened" not in self._state.steps:  # not repeated after a kill: producers may write there already
            await self._all_have_left(on)
            if self.plan.producers is not None:
                await self._choose(on, self.plan.producers, ClusterChoice(frozen=True))
            ends = await self._quiet(on)
            self._state.check_unchanged()
            pairs = await on.ends_of_copies(ends)
            # after this, the groups can no longer roll back: a switch in the map stays, as if producers had moved
            self._state.note("opened", ends=[[*each, *pairs[each]] for each in sorted(pairs)])
        await on.switch(
            {TopicPartition(topic, n): (old, new) for topic, n, old, new in self._state.steps["opened"]["ends"]}
        )
        if self.plan.producers is not None:
            await self._choose(on, self.plan.producers, ClusterChoice(self.plan.new_brokers))
        return {"partitions": len(self._state.steps["opened"]["ends"])}

    async def _quiet(self, on: CutoverClusters) -> dict[TopicPartition, int]:
        """Waits until no producer writes to the old topics and all records are mirrored. Returns their ends."""
        deadline = time.monotonic() + self.plan.producers_s
        last: dict[TopicPartition, int] = {}
        since = time.monotonic()
        while True:
            found = {each: ends.end for each, ends in (await ends_of(on.old, on.partitions(on.old))).items()}
            now = time.monotonic()
            if found != last:
                last, since = found, now
            mirrored = await on.mirrored()
            behind = [each for each, end in found.items() if mirrored.get(each, 0) < end]
            self._on_wait("producers", sum(found[each] - mirrored.get(each, 0) for each in behind), "records")
            if not behind and now - since >= self.plan.quiet_s:
                await self._all_have_left(on)
                return found
            if now > deadline:
                writes = now - since < self.plan.quiet_s
                why = "a producer still writes to the old topics" if writes else "the mirror is still behind"
                raise CutoverFailed(
                    f"{why} after {self.plan.producers_s:g} s; stop the producers or move them to "
                    f"{self.plan.new_brokers}, and run the cutover again. Until then a rollback is possible"
                )
            await asyncio.sleep(POLL_S)

    async def _finish(self, on: CutoverClusters) -> dict[str, Any]:
        if not self.plan.audit:
            return {"audit": "disabled"}
        if self._audit is None:
            raise CutoverFailed("audit is true, but no audit function was passed; set it to false to finish without")
        ends = self._state.steps["opened"]["ends"]
        found = {
            topic: await asyncio.to_thread(self._audit, topic, self._sides(topic, ends)) for topic in self.plan.topics
        }
        lost = [f"{topic}: {text}" for topic, (text, records) in found.items() if records]
        if lost:
            raise CutoverFailed(
                f"the new cluster lacks records of the old one: {'; '.join(lost)}; see allocator audit. Run the "
                "cutover again to compare again, or with audit = false to finish without"
            )
        return {"audit": {topic: text for topic, (text, _) in found.items()}}

    def _sides(self, topic: str, ends: list[list[Any]]) -> list[tuple[str, dict[str, str]]]:
        """Returns both clusters with the options that read `topic` up to the ends at which producers switched."""
        plan = self.plan
        old, new = (plan.old_brokers, plan.old_security, 2), (plan.new_brokers, plan.new_security, 3)
        return [
            (
                brokers,
                {
                    "ending_offsets": json.dumps({topic: {str(row[1]): row[at] for row in ends if row[0] == topic}}),
                    "isolation_level": "read_committed",  # the mirror reads with this level too
                    **{f"security.{key}": str(value) for key, value in (security or {}).items()},
                },
            )
            for brokers, security, at in (old, new)
        ]

    def _restore_file(self, group: str) -> Path:
        return self.plan.state.with_name(f"{self.plan.state.stem}.{group}.offsets.json")
