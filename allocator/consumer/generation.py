"""One assignment of a group to this member, and everything that must stop when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, TypeVar

from allocator.errors import CommitFailed, ConfigError, Fenced, GenerationEnded, NotOwned
from allocator.offsets.group_offsets import GroupOffsets
from allocator.offsets.messages import Committer
from allocator.subscription.loss import stamped
from allocator.tasks import TaskGroup
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

__all__ = ["Generation", "GenerationTracker", "PartitionStart", "PendingGeneration"]

log = logging.getLogger(__name__)

# the generation that started the current task as a function, or a task above it
_generation_here: ContextVar[Optional[Generation]] = ContextVar("allocator_generation_here")


class PartitionStart(NamedTuple):
    """A partition, and where to begin with it."""

    partition: int
    offset: int
    """Of the next record; where nothing is committed -2 for the earliest or -1 for the latest, as in ListOffsets."""


class Generation:
    """The partitions that this member has for as long as a generation lasts. `ConsumerGroup.next` makes them.

    Guarantees: the member gives nothing up and joins no other generation before every function started here has
    returned; an offset is committed only under this generation's own identity.

    A generation ends as soon as one of its functions returns or raises, when the group rebalances, when it is not
    certain any more that the partitions are ours, and when the group is closed. The functions are then cancelled. They
    may still commit on their way out, if the partitions are still held; once all have returned nobody can.

    `id` is the group's number of it, which grows. Through ZooKeeper, and where a follower of a Kafka group joins again
    without need, two in a row may have the same.
    """

    def __init__(
        self,
        id: int,
        group: str,
        member_id: str,
        assignments: Mapping[str, tuple[PartitionStart, ...]],
        offsets: GroupOffsets,
        still_ours: Callable[[], bool],
        topic_id: Callable[[str], Any] = lambda topic: None,
    ) -> None:
        self.id = id
        self.group = group
        self.member_id = member_id
        self.assignments: Mapping[str, tuple[PartitionStart, ...]] = MappingProxyType(dict(assignments))
        """Every topic of the group's configuration, those without partitions too."""
        self.ended: GenerationEnded | None = None
        """Why this generation has ended; None while it goes on."""
        self.returned = False
        """Whether it ended because a function returned or raised."""
        self.failure: BaseException | None = None
        """What that function raised."""
        self.partitions = frozenset(
            TopicPartition(topic, start.partition) for topic, starts in self.assignments.items() for start in starts
        )
        self._offsets = offsets
        self._still_ours = still_ours
        self._topic_ids = {topic: topic_id(topic) for topic in self.assignments}
        self._end = asyncio.Event()
        self._functions: set[asyncio.Task[Any]] = set()
        self._commits: set[asyncio.Future[None]] = set()
        self._over = False

    def __repr__(self) -> str:
        state = "active" if self.ended is None else "over" if self._over else "ending"
        return f"<Generation {self.id} of {self.group!r}: {len(self.partitions)} partitions, {state}>"

    # -- its life -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended: what it gave is not to be worked on any more."""
        return self.ended is not None

    async def wait(self) -> GenerationEnded:
        """Returns when it ends, with the reason."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    def start(
        self,
        function: Callable[[Generation], Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any],
        name: str | None = None,
    ) -> asyncio.Task[Any]:
        """Binds a coroutine, or a coroutine function that is called with this generation, to its life.

        The first one that returns or raises ends the generation; the others are cancelled, and `ended` says why. The
        next generation waits for all of them: one that holds out against its cancellation holds up this member, and
        perhaps the group. What a function raises comes out of `ConsumerGroup.next`, if it is what ended the generation.

        On a generation that has ended the function begins too, so that whoever waits for it is served, and is
        cancelled at its first wait.
        """
        coroutine = function(self) if callable(function) else function
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"a generation starts a coroutine or a coroutine function, not {function!r}")
        before = _generation_here.set(self)  # the task has a copy
        try:
            name = name or getattr(coroutine, "__qualname__", None)
            task = asyncio.get_running_loop().create_task(coroutine, name=name)
        finally:
            _generation_here.reset(before)
        self._functions.add(task)
        task.add_done_callback(self._function_ended)
        if self.ended is not None:
            self._tell(task, self.ended)
        return task

    def runs_here(self) -> bool:
        """Whether the current task is one of its functions, or was started by one."""
        return _generation_here.get(None) is self

    def end(self, why: str) -> None:
        """Caller: the group. The functions are told; `over` waits for them. Only the first reason counts."""
        if self.ended is not None:
            return
        self.ended = GenerationEnded(f"generation {self.id} of group {self.group!r} has ended: {why}")
        log.info("%s", self.ended)
        self._end.set()
        for task in self._functions:
            self._tell(task, self.ended)

    async def over(self) -> None:
        """Until it has ended, every function has returned, and no commit of it is under way."""
        await self._end.wait()
        while self._functions or self._commits:
            await asyncio.wait({*self._functions, *self._commits})
        self._over = True
        await self._offsets.close()

    def _tell(self, task: asyncio.Task[Any], why: GenerationEnded) -> None:
        # not at once: a task that is cancelled before its first step never begins, nor do its `finally` blocks
        asyncio.get_running_loop().call_soon(task.cancel, why)

    def _function_ended(self, task: asyncio.Task[Any]) -> None:
        self._functions.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GenerationEnded):
            error = None  # it heard so from a commit, and passed it on
        if self.ended is not None:
            if error is not None:
                log.error("%r: %s raised after its end", self, task.get_name(), exc_info=error)
            return
        self.returned, self.failure = True, error
        self.end(f"{task.get_name()} {'returned' if error is None else f'raised {error!r}'}")

    # -- offsets --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commits topic -> partition -> the next record to read, exactly these: lower ones set the group back.

        Raises `GenerationEnded` when this generation cannot commit any more, `NotOwned` for a partition it does not
        have (nothing was sent then), or `CommitFailed`, which does not end the generation.
        """
        wanted = self._checked(offsets)
        if not wanted:
            return
        if self._over or not self._still_ours():
            raise self._refusal(wanted) from self.ended
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.add(under_way)
        try:
            await self._offsets.commit(wanted)
        except CommitFailed as error:
            if self._still_ours() and not isinstance(error, Fenced):
                raise
            raise self._refusal(wanted) from error
        finally:
            self._commits.discard(under_way)
            under_way.set_result(None)
        if log.isEnabledFor(logging.DEBUG):
            for partition, committed in sorted(wanted.items()):
                log.debug("%s: committed %s:%s at %s", self.group, *partition, committed.offset)

    def _checked(self, offsets: Mapping[str, Mapping[int, int]]) -> dict[TopicPartition, OffsetAndMetadata]:
        stamp = f"generation {self.id} member {self.member_id}"
        wanted = {}
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                    raise ConfigError(
                        f"{topic}:{partition}: {offset!r} cannot be committed; give the offset of a record"
                    )
                metadata = stamped(stamp, self._topic_ids.get(topic))
                wanted[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata, -1)
        foreign = sorted(f"{p.topic}:{p.partition}" for p in set(wanted) - self.partitions)
        if foreign:
            raise NotOwned(f"generation {self.id} of group {self.group!r} does not have {', '.join(foreign)}")
        return wanted

    def _refusal(self, wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> GenerationEnded:
        why = str(self.ended or f"it is not certain that generation {self.id} of group {self.group!r} still stands")
        return GenerationEnded(f"offsets of {len(wanted)} partitions are not committed: {why}")


# -- standing ----------
# What a membership says, made into whole generations.


T = TypeVar("T")


@dataclass(frozen=True)
class PendingGeneration:
    """A generation that may begin."""

    id: int
    member_id: str
    partitions: Partitions
    committer: Committer | None = field(default=None, compare=False)
    """Under whose name it commits; None where Kafka knows no members."""


class GenerationTracker:
    """The `Owner` of a membership, for a `ConsumerGroup`: any change of what is held ends the current generation.

    Guarantee: what the membership is told to wait for (`revoked`, `lost`, `ending`) returns only when the current
    generation is over. The next one begins with what `settle` was called with last, which its caller does when a
    whole assignment stands.
    """

    def __init__(self) -> None:
        self.round: PendingGeneration | None = None
        self.current: Generation | None = None
        """The one that began last, until it is over."""
        self.reason: BaseException | None = None
        """Why this membership is given up."""
        self._suspended = False
        self._news = asyncio.Event()
        self._stop = asyncio.Event()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        # not waited for: nobody else waits for what is gained
        self.round = None
        self._end(f"it gains {len(partitions)} partitions")

    async def revoked(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are revoked")

    async def lost(self, partitions: Partitions) -> None:
        await self.ending(f"{len(partitions)} partitions are lost")

    def suspended(self, why: str) -> None:
        # its functions read and handle records by themselves: only their end keeps them from what may be another's
        self._suspended = True
        self._end(why)

    def resumed(self) -> None:
        self._suspended = False
        self._news.set()

    def failed(self, error: BaseException) -> None:
        self.stop(error)

    async def ending(self, why: str) -> None:
        """The current generation ends; returns when it is over."""
        self.round = None
        generation = self.current
        if generation is not None:
            generation.end(why)
            await generation.over()

    def settle(self, round: PendingGeneration) -> None:
        """This is the whole assignment. Changes nothing when a generation with the same partitions goes on."""
        current = self.current
        if current is not None and not current.done:
            if (current.member_id, current.partitions) == (round.member_id, round.partitions):
                return
            current.end("another assignment stands")
        if round != self.round:
            self.round = round
            self._news.set()

    # -- called by the group --------------------------------------------------------------------------------------

    def stop(self, reason: BaseException) -> None:
        """Ends everything for this reason; only the first one counts."""
        if self.reason is None:
            self.reason = reason
            self._end(str(reason))
            self._stop.set()
            self._news.set()

    async def settled(self) -> PendingGeneration:
        """The next generation to begin. Raises the reason to stop instead."""
        while True:
            self._news.clear()
            if self.reason is not None:
                raise self.reason
            if self.round is not None and not self._suspended:
                return self.round
            await self._news.wait()

    def may_begin(self, round: PendingGeneration) -> bool:
        """Whether `round` still is what stands."""
        return self.round is round and not self._suspended and self.reason is None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises the reason to stop if that comes first, and then `work` has ended."""
        return await TaskGroup().run(work, stop=self._stopped())

    async def _stopped(self) -> None:
        await self._stop.wait()
        assert self.reason is not None
        raise self.reason

    def _end(self, why: str) -> None:
        if self.current is not None:
            self.current.end(why)
