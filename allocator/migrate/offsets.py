"""Copies the offsets of a group to another storage, group or cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from allocator.core.text import partition_names
from allocator.documents import read_json, refuse_existing, write_json
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate import translate
from allocator.migrate.positions import is_synced
from allocator.migrate.storage import OffsetStore, OpenOffsetStore
from allocator.migrate.topics import TopicIds, same_topic
from allocator.operate import MembersAlive, ShellCommand, name_of, parse_topics
from allocator.types import TopicPartition

FORMAT = "allocator offsets 1"


class CopyRefused(AllocatorError):
    """Some offsets cannot be copied as they are. Nothing was changed."""


@dataclass(frozen=True)
class Row:
    """One partition of a copy. `before` None: no committed offset; `after` None: none can be copied, see `problem`."""

    partition: TopicPartition
    source: int
    before: Optional[int]
    after: Optional[int]
    lag: Optional[int]
    """Number of records between `after` and the end of the log."""
    note: str
    problem: str = ""


@dataclass(frozen=True)
class CopyPlan:
    """The offsets that a copy would commit."""

    METHODS: ClassVar = translate.METHODS
    """Names of the methods that find the position in the target log."""

    source: OffsetStore
    target: OffsetStore
    by: str
    rows: tuple[Row, ...]
    alive: tuple[str, ...]
    """Members of either group, which must stop before the copy."""

    @property
    def problems(self) -> list[str]:
        """The reasons to refuse the copy, except live members."""
        return [f"{name_of(row.partition)}: {row.problem}" for row in self.rows if row.problem]

    def to_json(self) -> dict[str, Any]:
        return {
            "from": _store_json(self.source),
            "to": _store_json(self.target),
            "by": self.by,
            "alive": list(self.alive),
            "partitions": [
                {**row.partition._asdict(), "from": row.source}
                | {name: getattr(row, name) for name in ("before", "after", "lag", "note", "problem")}
                for row in self.rows
            ],
        }


async def copy_offsets(
    source: OffsetStore,
    target: OffsetStore,
    restore_file: Path | None = None,
    *,
    by: str = "offset",
    topics: Collection[str] = (),
    mirror: str = "allocator-mirror",
    backward: bool = False,
    progress: translate.Progress = translate.silent,
) -> CopyPlan:
    """Saves the former offsets in `restore_file` and copies the new ones. Without a file it only returns the plan.

    `by` is one of `CopyPlan.METHODS`; `mirror` is the group of the mirror, for "map". `topics` has topics, and
    partitions of them such as "orders:0,2-5"; without any, it copies all with committed offsets. `backward`: also to an
    offset before the one that the target has. It calls `progress(done, total, unit)` while it reads logs.

    Raises MembersAlive or CopyRefused before any change. After CommitFailed some offsets may have been copied;
    `restore_offsets` undoes that. If a member joined during the copy, the MembersAlive says so.
    """
    if restore_file is not None:
        refuse_existing(restore_file)
    async with source.opened() as old, target.opened() as new:
        plan = await _plan(old, new, by, topics, mirror, backward, progress)
        if restore_file is None:
            return plan
        # checked after the plan, so that a member has hardly any time to join
        await old.refuse_members()
        await new.refuse_members()
        if plan.problems:
            raise CopyRefused(f"nothing was copied: {'; '.join(plan.problems)}")
        chosen = {row.partition: row.after for row in plan.rows if row.after is not None}
        saved = _restore(plan, await TopicIds(new.client).of({each.topic for each in chosen}))
        write_json(restore_file, saved, fresh=True)  # another copy may have written it meanwhile
        await new.commit(chosen, f"copied from {source.group}")
        copied = await new.committed(chosen)
        joined = [*await old.members(), *await new.members()]
        wrong = [each for each, offset in chosen.items() if copied.get(each) != offset]
        if joined or wrong:
            raise MembersAlive(
                f"the offsets were copied, but {', '.join(joined) or 'a member'} joined meanwhile"
                + (f" and the offsets of {partition_names(wrong)} have changed since" if wrong else "")
                + f"; stop them, undo it with `{restoring(restore_file)}`, and copy again"
            )
        return plan


def restoring(file: Path) -> ShellCommand:
    """Returns the command that restores the offsets which a copy saved in `file`."""
    return ShellCommand.of("allocator offsets restore", str(file))


@dataclass(frozen=True)
class Restored:
    """The result of `restore_offsets`."""

    target: OffsetStore
    offsets: Mapping[TopicPartition, int]
    forgotten: tuple[TopicPartition, ...]
    """Partitions without a committed offset again, as before the copy."""
    left: tuple[TopicPartition, ...]
    """Partitions that keep the copied offset, because the cluster cannot delete it."""


async def restore_offsets(
    path: Path, security: Mapping[str, Any] | None = None, zookeeper_options: Mapping[str, Any] | None = None
) -> Restored:
    """Restores the offsets from before the copy that wrote `path`. May be repeated.

    Raises MembersAlive, and CopyRefused for topics that were deleted and created again since. The file has no
    credentials: pass `security` for its brokers and `zookeeper_options` for its ensembles.
    """
    saved = read_json(path)
    try:
        if saved["format"] != FORMAT:
            raise ValueError(f"its format is {saved['format']!r}")
        to = saved["to"]
        ensembles = tuple(to["zookeepers"])
        store = OffsetStore(
            to["brokers"], to["group"], to["storage"], ensembles, to["root"], security, zookeeper_options
        )
        before = {TopicPartition(str(row[0]), int(row[1])): row[2] for row in saved["before"]}
        topic_ids = dict(saved.get("topic_ids", {}))
    except (KeyError, TypeError, ValueError, LookupError) as error:
        raise ConfigError(f"{path} is not a file of `allocator offsets copy`: {error}") from error
    async with store.opened() as there:
        await there.refuse_members()
        now = await TopicIds(there.client).of({each.topic for each in before})
        again = sorted(topic for topic, known in topic_ids.items() if same_topic(known, now.get(topic)) is False)
        if again:
            raise CopyRefused(
                f"nothing was restored: {', '.join(again)} of {there} was deleted and created again since the copy, "
                f"and the offsets in {path} are of the former topic; set the start of the group (`allocator group "
                "offsets reset`)"
            )
        offsets = {each: int(offset) for each, offset in before.items() if offset is not None}
        await there.commit(offsets, f"restored from {path.name}")
        without = tuple(sorted(each for each, offset in before.items() if offset is None))
        forgotten = await there.forget(without)
        return Restored(store, offsets, without if forgotten else (), () if forgotten else without)


async def _plan(
    old: OpenOffsetStore,
    new: OpenOffsetStore,
    by: str,
    topics: Collection[str],
    mirror: str,
    backward: bool,
    progress: translate.Progress,
) -> CopyPlan:
    if by not in translate.METHODS:
        raise ConfigError(f"by is {by!r}, not one of {', '.join(translate.METHODS)}")
    source, target = old.store, new.store
    if (source.brokers, source.group, source.storage) == (target.brokers, target.group, target.storage):
        raise ConfigError("both stores are the same; name another group, storage or cluster")
    committed = await old.committed()
    if topics:
        whole, single = parse_topics(topics)
        named = {*whole, *(each.topic for each in single)}
        unknown = sorted(topic for topic in named if old.client.partitions(topic) is None)
        if unknown:
            raise await old.client.absence(unknown, "describe")
        bare = sorted(single - set(committed))
        if bare:
            raise CopyRefused(f"{old} has no committed offset of {', '.join(map(name_of, bare[:5]))}: correct --topic")
        committed = {each: at for each, at in committed.items() if each.topic in whole or each in single}
    if not committed:
        raise CopyRefused(f"{old} has no committed offsets" + (f" of {', '.join(topics)}" if topics else ""))
    for store in (old, new):
        await store.wait_for_leaders(committed)
    if by == "timestamp":
        found = await translate.by_timestamp(old, new, committed, progress)
    elif by == "content":
        found = await translate.by_content(old, new, committed, progress)
    elif by == "map":
        found = await translate.by_map(old, new, mirror, committed)
    else:  # keeps the offset, which is correct only where both stores refer to the same log
        found = {each: translate.Found(offset) for each, offset in committed.items()}
    own_ends, former = await translate.ends_of(old.client, committed), await old.of_former_topics(committed)
    before = await new.committed(list(committed))
    ends = await translate.ends_of(new.client, committed)
    alive_there = await new.members()
    unsynced = await _unsynced(new, found, bool(alive_there)) if by == "map" else {}
    rows = []
    for partition, offset in sorted(committed.items()):
        after, note = found[partition]
        problem = "" if after is not None else note
        if partition in former:
            problem = f"offset {offset} belongs to a topic that was deleted and created again since"
        elif partition in own_ends and offset > own_ends[partition].end:
            end = own_ends[partition].end
            problem = f"offset {offset} is beyond the end of its own log, {end}: it was created again, or cut"
        if not problem and partition not in ends:
            problem = "not on the new cluster"
        elif not problem and after is not None and not ends[partition].start <= after <= ends[partition].end:
            problem = f"offset {after} is outside of its log, {ends[partition].start} to {ends[partition].end}"
        was = before.get(partition)
        if not problem and not backward and after is not None and was is not None and after < was:
            problem = f"it would go back from {was} to {after} (--backward), and records would be read again"
            problem += f"; {unsynced[partition]}" if partition in unsynced else ""
        elif after is not None:
            note = "; ".join(filter(None, (note, unsynced.get(partition))))
        lag = None if problem or after is None else ends[partition].end - after
        rows.append(Row(partition, offset, was, after, lag, note if not problem else "", problem))
    alive = [*await old.members(), *alive_there]
    return CopyPlan(source, target, by, tuple(rows), tuple(dict.fromkeys(alive)))


async def _unsynced(
    new: OpenOffsetStore, found: Mapping[TopicPartition, translate.Found], has_members: bool
) -> dict[TopicPartition, str]:
    """Maps each partition whose offset in the target a mirror with `sync_group_offsets` cannot correct to the reason
    and the way forward."""
    reasons = {}
    stored = await new.offsets.fetch(list(found))
    for each, (after, _) in found.items():
        was = stored.get(each)
        if after is None or (was is not None and was.offset == after):
            continue
        if was is not None and not is_synced(was):
            reasons[each] = (
                f"others committed {was.offset} there, so no mirror changes it: delete it if the group has not moved"
            )
        elif has_members and (was is None or was.offset < after):
            reasons[each] = "no mirror writes it while the group has members there: stop all of them, and compare again"
    return reasons


def _restore(plan: CopyPlan, topic_ids: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "from": _store_json(plan.source),
        "to": _store_json(plan.target),
        "topic_ids": dict(topic_ids),
        "before": [[*row.partition, row.before] for row in plan.rows],
        "after": [[*row.partition, row.after] for row in plan.rows],
    }


def _store_json(store: OffsetStore) -> dict[str, Any]:
    """Returns the fields of a store without credentials."""
    return {name: getattr(store, name) for name in ("brokers", "group", "storage", "zookeepers", "root")}
