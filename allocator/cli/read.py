"""Reads a group without joining it: owners from ZooKeeper, offsets from Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from allocator.cli.report import GroupReport, Logs, ResetPlan, Target
from allocator.core.client import KafkaClient, list_offsets
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import DEFAULT, check_path
from allocator.core.zookeeper import ZooKeeper
from allocator.daemon import Config, load
from allocator.errors import AllocatorError, ConfigError, TopicNotFound
from allocator.operate import (
    KIEL,
    OLD_CONSUMERS,
    GroupReader,
    GroupRemains,
    GroupState,
    OldLayouts,
    WaitingRecords,
    delete_group,
    describe,
    kafka_group,
    list_groups,
    measure,
    old_layouts,
    read_logs,
    read_waiting,
    remains,
    subscribed,
)
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

NOWHERE = "none"  # the value of --zookeeper with which the caller says that no ensemble has members of the group


class MembersAlive(AllocatorError):
    """Offsets of a group cannot be replaced while it has members, which commit their own offsets."""


class NoSuchGroup(AllocatorError):
    """The group exists neither in ZooKeeper nor in Kafka, as far as their addresses were given."""


@dataclass(frozen=True)
class Access:
    """Addresses and credentials of the clusters."""

    zookeeper: Optional[str] = None
    root: str = DEFAULT["root"]
    zookeeper_options: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    brokers: Optional[str] = None
    security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    timeout_s: float = 10.0
    settings: Optional[Config] = field(default=None, repr=False)
    """The settings file that they come from."""
    nowhere: bool = False
    """True if the caller said that no ensemble has members of the group."""

    def __post_init__(self) -> None:
        check_path("ZooKeeper root", self.root)

    @classmethod
    def of(
        cls,
        config: Optional[str],
        zookeeper: Optional[str] = None,
        root: Optional[str] = None,
        brokers: Optional[str] = None,
        timeout_s: float = 10.0,
        target: bool = False,
    ) -> Access:
        """The given addresses, and what is missing from the settings file `config`.

        Variables of the environment override the file; `target`: those for the target cluster.
        """
        nowhere = zookeeper == NOWHERE
        if nowhere:
            zookeeper = None
        if config is None:
            return cls(zookeeper, root or DEFAULT["root"], None, brokers, None, timeout_s, nowhere=nowhere)
        settings = load(config, target=target)
        return cls(
            None if nowhere else zookeeper or settings.zookeeper.hosts,
            root or settings.zookeeper.root,
            settings.zookeeper.options() or None,
            brokers or ",".join(settings.kafka.brokers),
            settings.kafka.security() or None,
            timeout_s,
            settings,
            nowhere,
        )

    def need_zookeeper(self) -> str:
        if self.zookeeper is None:
            raise ConfigError("where is ZooKeeper? Give --zookeeper or --config, or set ALLOCATOR_ZOOKEEPER_HOSTS")
        return self.zookeeper

    def need_brokers(self) -> str:
        if self.brokers is None:
            raise ConfigError("where are the brokers? Give --brokers or --config, or set ALLOCATOR_KAFKA_BROKERS")
        return self.brokers

    def chosen_group(self, name: Optional[str]) -> str:
        """`name`, or the group of the settings file."""
        if name:
            return name
        if self.settings is None:
            raise ConfigError("which group? Name it, or give --config")
        return self.settings.group.name

    def describe(self) -> str:
        """The clusters that a command acts on, in words."""
        brokers = "no brokers" if self.brokers is None else f"brokers {self.brokers}"
        return f"{brokers}; " + (
            "members in ZooKeeper are not looked for"
            if self.zookeeper is None
            else f"ZooKeeper {self.zookeeper}, root {self.root}"
        )

    @contextlib.asynccontextmanager
    async def ensemble(
        self, hosts: Optional[str] = None, *, session_timeout_s: Optional[float] = None, make_chroot: bool = False
    ) -> AsyncIterator[ZooKeeper]:
        zk = ZooKeeper(
            hosts or self.need_zookeeper(),
            session_timeout_s=session_timeout_s or self.timeout_s,
            options=self.zookeeper_options,
        )
        await zk.connect(self.timeout_s, make_chroot=make_chroot)
        try:
            yield zk
        finally:
            await zk.close()

    @contextlib.asynccontextmanager
    async def cluster(self) -> AsyncIterator[KafkaClient]:
        client = KafkaClient(self.need_brokers(), security=self.security, request_timeout_s=self.timeout_s)
        await client.connect(self.timeout_s)
        try:
            client.follow_all()
            await client.refresh()
            yield client
        finally:
            await client.close()


async def read_all(access: Access) -> list[GroupReport]:
    """Every group under the root, without offsets."""
    async with access.ensemble() as zk:
        names = await list_groups(zk, access.root)
        states = await asyncio.gather(*(describe(zk, group, access.root) for group in names))
    return [GroupReport(state) for state in states if state is not None]


async def read_group(access: Access, group: str) -> GroupReport:
    """One group, with offsets if brokers are given. Unreachable brokers appear as a problem of the group.

    Members are those in ZooKeeper, or if there are none, those that Kafka's coordinator has. Members in the znodes of
    kiel or of Kafka 0.8's consumer appear as a problem. Raises NoSuchGroup if nothing else of the group exists.
    """
    state, older, known = None, None, list[str]()
    nobody = GroupState(group, {}, {}, None)
    if access.zookeeper is not None or access.brokers is None:
        async with access.ensemble() as zk:
            state = await describe(zk, group, access.root)
            nobody = state or await GroupReader(zk, group, access.root).read_without_members()
            if not nobody.members:
                older = _older(await old_layouts(zk, group), group)
            known = await list_groups(zk, access.root)
    found = GroupReport(nobody, brokers=access.brokers)
    if access.brokers is not None:
        try:
            async with access.cluster() as client:
                state = await _with_kafkas(state, client, group)
                if state is not None and state.coordinated is not None:
                    state = replace(state, problems=nobody.problems, choice=nobody.choice)
                found = await measure(client, state or nobody, access.brokers)
        except AllocatorError as error:
            if state is None or isinstance(error, ConfigError):
                raise
            found = replace(found, state=state, logs=Logs(problems=(f"offsets are not known: {error}",)))
    if state is None and not found.logs.committed:
        if access.zookeeper is None:
            raise NoSuchGroup(f"Kafka has neither members nor offsets of group {group!r}")
        if older is not None:
            raise NoSuchGroup(older)
        raise NoSuchGroup(
            f"ZooKeeper has no group {group!r} under {access.root}"
            + (", and Kafka neither members nor offsets of it" if access.brokers is not None else "")
            + (f"; there are {', '.join(known)}" if known else "; there is none")
        )
    return found if older is None else replace(found, logs=found.logs + Logs(problems=(older,)))


async def read_retries(access: Access, report: GroupReport) -> list[WaitingRecords]:
    """The retry topics of the group and their waiting records, if brokers are given and answer."""
    if access.brokers is None:
        return []
    try:
        return await read_waiting(report.state.group, report.logs, access.brokers, access.security, access.timeout_s)
    except AllocatorError as error:
        log.warning("what waits in retry topics is not known: %s", error)
        return []


def _older(found: OldLayouts, group: str) -> str | None:
    """A message about members in layouts of older clients, which `group describe` does not read."""
    kinds = {KIEL: found.kiel, OLD_CONSUMERS: found.consumers}
    counts = [f"{len(members)} members under {path.format(group)}" for path, members in kinds.items() if members]
    if not counts:
        return None
    return f"group {group!r} has {' and '.join(counts)}, which are not shown; see `allocator doctor {group}`"


async def _with_kafkas(state: GroupState | None, client: KafkaClient, group: str) -> GroupState | None:
    """`state`, or the state from Kafka's coordinator if the group has no members in ZooKeeper."""
    if state is None or not state.members:
        found = await kafka_group(client, group)
        if found is not None and (found.alive or state is None):
            return found.as_state(group)
    return state


async def _members_of(access: Access, client: KafkaClient, group: str) -> GroupState | None:
    if access.zookeeper is None:
        return await _with_kafkas(None, client, group)
    async with access.ensemble() as zk:
        return await _with_kafkas(await describe(zk, group, access.root), client, group)


async def check_members_known(access: Access, group: str) -> None:
    """Raises if members of the group may be registered where nobody looks for them: they commit over what is changed.

    Raises ConfigError without a ZooKeeper, NoSuchGroup if ZooKeeper does not know the group, MembersAlive if it has
    members in the layout of an older client. `--zookeeper none`, or a settings file that says that this group does not
    use ZooKeeper, says that there are none.
    """
    settings = access.settings
    in_settings = settings is not None and settings.group.name == group
    if access.nowhere or (settings is not None and in_settings and settings.group.membership in ("kafka", "fixed")):
        return
    if access.zookeeper is None:
        raise ConfigError(
            f"in which ZooKeeper may members of {group!r} be registered? Give --zookeeper or --config, or "
            f"--zookeeper {NOWHERE} if it has none there. Nothing was changed"
        )
    async with access.ensemble() as zk:
        older = _older(await old_layouts(zk, group), group)
        if older is not None:
            raise MembersAlive(f"{older}; stop them first. Nothing was changed")
        known = await list_groups(zk, access.root)
        if group not in known:
            others = f"the groups there are {', '.join(known)}" if known else "there are no groups"
            raise NoSuchGroup(
                f"ZooKeeper {access.zookeeper} has no group {group!r} under {access.root} ({others}). Correct the "
                f"name, --zookeeper or --root, or give --zookeeper {NOWHERE} if no member of it is registered in any "
                "ZooKeeper. Nothing was changed"
            )


async def plan_reset(access: Access, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """The planned offsets. Empty `topics`: all topics that the group has committed or owns."""
    async with access.cluster() as client:
        state = await _members_of(access, client, group)
        return await _plan(client, access, group, state, target, topics)


async def execute_reset(access: Access, group: str, target: Target, topics: Collection[str] = ()) -> ResetPlan:
    """Commits the planned offsets. Raises MembersAlive and changes nothing while the group has members."""
    async with access.cluster() as client:
        plan = await _plan(client, access, group, await _members_of(access, client, group), target, topics)
        # check again after the slow plan, so that a member has little time left to join
        _refuse_members(await _members_of(access, client, group), group)
        await GroupOffsets(client, group, timeout_s=access.timeout_s).commit(
            {p: OffsetAndMetadata(offset, "reset by allocator group offsets", -1) for p, offset in plan.after.items()}
        )
        joined = await _members_of(access, client, group)
        if joined is not None and joined.members:
            raise MembersAlive(
                f"the offsets of {group!r} were reset, but {_members(joined)} joined meanwhile and may have started "
                "from the old ones, which it will commit; stop it and reset again"
            )
    return plan


async def _plan(
    client: KafkaClient, access: Access, group: str, state: GroupState | None, target: Target, topics: Collection[str]
) -> ResetPlan:
    committed = await GroupOffsets(client, group, timeout_s=access.timeout_s).fetch(None)
    unknown = [topic for topic in topics if client.partitions(topic) is None]
    if unknown:
        raise TopicNotFound(unknown)
    if topics:
        chosen = set(topics)
    else:
        assigned = state.assigned if state is not None else ()
        chosen = {p.topic for p in (*committed, *assigned, *subscribed(state, client))}
    wanted = {TopicPartition(topic, p) for topic in chosen for p in client.partitions(topic) or ()}
    if not wanted:
        raise NoSuchGroup(
            f"group {group!r} has neither offsets nor an assignment; correct its name, or name topics with --topic"
        )
    logs = await _all_logs(client, access, wanted, committed)
    alive = tuple(map(state.name_of, state.members)) if state else ()
    return ResetPlan.make(group, target, logs, await _times(client, access, target, wanted), alive)


async def read_partitions(
    access: Access, group: str, partitions: Collection[TopicPartition], target: Optional[Target] = None
) -> tuple[Logs, Mapping[TopicPartition, int]]:
    """The logs of these partitions with the group's offsets, and the target offset of a seek to `target`.

    Raises ConfigError if a leader does not respond, and for an offset outside a log.
    """
    async with access.cluster() as client:
        committed = await GroupOffsets(client, group, timeout_s=access.timeout_s).fetch(None)
        logs = await _all_logs(client, access, partitions, committed)
        if target is None:
            return logs, {}
        return logs, ResetPlan.make(group, target, logs, await _times(client, access, target, partitions)).after


async def _all_logs(
    client: KafkaClient, access: Access, wanted: Collection[TopicPartition], committed: Mapping[Any, OffsetAndMetadata]
) -> Logs:
    logs = await read_logs(client, wanted, committed)
    if set(logs.end) != set(wanted):
        raise ConfigError(f"not all partitions can be asked, so nothing is planned: {'; '.join(logs.problems)}")
    return logs


async def _times(
    client: KafkaClient, access: Access, target: Target, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """The offsets at the time of a target "timestamp:..."; {} for another target."""
    if not (isinstance(target, str) and target.startswith("timestamp:")):
        return {}
    when = int(target.partition(":")[2])
    answers = await list_offsets(client, dict.fromkeys(wanted, when), timeout_s=access.timeout_s)
    return {p: None if answer is None else answer.offset for p, answer in answers.items()}


async def copy_offsets(access: Access, group: str, other: str, *, execute: bool) -> ResetPlan:
    """Commits the offsets of a group for another group on the same brokers, or only plans it.

    Raises MembersAlive and changes nothing while the other group has members; NoSuchGroup if there are no offsets to
    copy.
    """
    async with access.cluster() as client:
        offsets = await GroupOffsets(client, group, timeout_s=access.timeout_s).fetch(None)
        if not offsets:
            raise NoSuchGroup(f"group {group!r} has no committed offsets to copy")
        target = GroupOffsets(client, other, timeout_s=access.timeout_s)
        before = await target.fetch(None)
        state = await _members_of(access, client, other)
        alive = tuple(map(state.name_of, state.members)) if state is not None else ()
        if execute:
            _refuse_members(state, other)
            await target.commit({p: offset._replace(leader_epoch=-1) for p, offset in offsets.items()})
        was = {p: before[p].offset if p in before else None for p in offsets}
        return ResetPlan(other, was, {p: offset.offset for p, offset in sorted(offsets.items())}, alive)


async def delete(access: Access, group: str, *, keep_offsets: bool = False, execute: bool = False) -> GroupRemains:
    """Deletes a group, or only reports what a delete removes. Raises GroupHasMembers, NothingToDelete."""
    async with contextlib.AsyncExitStack() as stack:
        asked = access.zookeeper is not None or access.brokers is None
        zk = await stack.enter_async_context(access.ensemble()) if asked else None
        client = None if access.brokers is None else await stack.enter_async_context(access.cluster())
        work = delete_group if execute else remains
        return await work(zk, client, group, access.root, keep_offsets=keep_offsets)


def _refuse_members(state: GroupState | None, group: str) -> None:
    if state is not None and state.members:
        raise MembersAlive(
            f"group {group!r} has members: {_members(state)}; stop them first, or they commit their own offsets over "
            "these. Nothing was changed"
        )


def _members(state: GroupState) -> str:
    return ", ".join(map(state.name_of, state.members))
