"""One generation: the partitions that a group assigned to this member, and the functions that must stop with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, TypeVar

from allocator.core.offsets import GroupOffsets, Terms
from allocator.core.subscription import stamped
from allocator.core.text import table
from allocator.errors import BrokerError, CommitFailed, ConfigError, Fenced, GenerationEnded, NotOwned
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Seconds that each function has to clean up once the loop ends. Higher: one that hangs holds the process longer, also
# after a second Ctrl-C; lower: a slow flush is cut off
CLEAN_UP_S = 60.0

# the generation whose function runs in the current task, or started that task
_generation_here: ContextVar[Optional[Generation]] = ContextVar("allocator_generation_here")


class PartitionStart(NamedTuple):
    """A partition and the offset at which to start."""

    partition: int
    offset: int
    """The offset of the next record. Without a committed offset: -2 for the earliest or -1 for the latest, as in
    ListOffsets."""


class _Function(asyncio.Task[Result]):
    """Runs a function of a generation.

    `asyncio.run` ends by cancelling all tasks while the loop does not run. Such a cancellation ends the generation,
    which cancels each function once. If it has ended before, the functions are cancelled already. A second cancellation
    would cut off their last commits, so the one of the loop takes effect only after `CLEAN_UP_S`, in each function.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Result], generation: Generation, name: str | None) -> None:
        super().__init__(coroutine, loop=asyncio.get_running_loop(), name=name)
        self._generation = generation

    def cancel(self, msg: Any = None) -> bool:
        loop = self.get_loop()
        if loop.is_running() or self.done():
            return super().cancel(msg)
        active = not self._generation.done
        if active:
            self._generation.end("the event loop ends")
        loop.call_later(CLEAN_UP_S, super().cancel, msg)
        return active


class Generation:
    """The partitions of this member in one generation. `ConsumerGroup.next` creates it.

    Guarantees: before every function that was started here has returned, the member releases no partition and joins no
    other generation. Offsets are committed only under the identity of this generation.

    A generation ends as soon as one of its functions returns or raises, the group rebalances, another member may own
    the partitions, the group is closed, or `asyncio.run` ends. Then its functions are cancelled: once, unless your code
    cancels them too, as code does that cancels `asyncio.all_tasks()` of a running loop. While they end, they may still
    commit, if the member still owns the partitions. After the last function has returned, every commit is refused.

    If `asyncio.run` ends, each function has 60 seconds for that. After these, the generation cancels it again.

    `id` is the group's number of this generation. It never decreases. Two consecutive generations may have the same
    number in a ZooKeeper group, and in a Kafka group if a follower rejoins although nothing has changed.
    """

    def __init__(
        self,
        id: int,
        group: str,
        member_id: str,
        assignments: Mapping[str, tuple[PartitionStart, ...]],
        offsets: GroupOffsets,
        still_owned: Callable[[], bool],
        topic_id: Callable[[str], Any] = lambda topic: None,
    ) -> None:
        self.id = id
        self.group = group
        self.member_id = member_id
        self.assignments: Mapping[str, tuple[PartitionStart, ...]] = MappingProxyType(dict(assignments))
        """Topic -> its partitions, for every configured topic; an empty tuple for a topic without partitions."""
        self.ended: GenerationEnded | None = None
        """Why this generation has ended; None while it is active."""
        self.returned = False
        """Whether the generation ended because a function returned or raised."""
        self.failure: BaseException | None = None
        """The error that the function raised."""
        self.partitions = frozenset(
            TopicPartition(topic, start.partition) for topic, starts in self.assignments.items() for start in starts
        )
        self._offsets = offsets
        self._still_owned = still_owned
        self._topic_ids = {topic: topic_id(topic) for topic in self.assignments}
        self._end = asyncio.Event()
        self._functions: set[asyncio.Task[Any]] = set()
        self._commits: set[asyncio.Future[None]] = set()
        self._over = False

    def _repr_html_(self) -> str:
        """Returns a table of the partitions and their start offsets, for notebooks."""
        starts = [[topic, s.partition, s.offset] for topic, each in sorted(self.assignments.items()) for s in each]
        state = "active" if self.ended is None else f"ended: {self.ended}"
        note = f"{self.group}, generation {self.id} of {self.member_id}, {state}"
        return table(("topic", "partition", "starts at"), starts, len(starts), note)

    def __repr__(self) -> str:
        state = "active" if self.ended is None else "over" if self._over else "ending"
        return f"<Generation {self.id} of {self.group!r}: {len(self.partitions)} partitions, {state}>"

    # -- its life -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the generation has ended, so that work on its partitions must stop."""
        return self.ended is not None

    async def wait(self) -> GenerationEnded:
        """Waits until the generation ends. Returns the reason."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    def start(
        self,
        function: Callable[[Generation], Coroutine[Any, Any, Result]] | Coroutine[Any, Any, Result],
        name: str | None = None,
    ) -> asyncio.Task[Result]:
        """Runs a coroutine, or a coroutine function that gets this generation, until the generation ends.

        The first function that returns or raises ends the generation. Then the others are cancelled, and `ended` has
        the reason. The next generation waits for all of them: a function that ignores its cancellation delays this
        member, and perhaps the group. If a function ends the generation by an exception, `ConsumerGroup.next` raises
        it.

        On a generation that has ended, the function starts and is cancelled at its first `await`, so the returned task
        always ends.
        """
        coroutine = function(self) if callable(function) else function
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"a generation starts a coroutine or a coroutine function, not {function!r}")
        before = _generation_here.set(self)  # the new task copies the context, and with it this variable
        try:
            name = name or getattr(coroutine, "__qualname__", None)
            task = _Function(coroutine, self, name)
        finally:
            _generation_here.reset(before)
        self._functions.add(task)
        task.add_done_callback(self._function_ended)
        if self.ended is not None:
            self._cancel(task, self.ended)
        return task

    def runs_here(self) -> bool:
        """Returns whether the current task is one of the functions, or was started by one."""
        return _generation_here.get(None) is self

    def end(self, why: str) -> None:
        """Ends the generation and cancels the functions; `over` waits for them. Only the first reason counts. Called by
        the group."""
        if self.ended is not None:
            return
        self.ended = GenerationEnded(f"generation {self.id} of group {self.group!r} has ended: {why}")
        log.info("%s", self.ended)
        self._end.set()
        for task in self._functions:
            self._cancel(task, self.ended)

    async def over(self) -> None:
        """Waits until the generation has ended, every function has returned, and no commit is in progress."""
        await self._end.wait()
        while self._functions or self._commits:
            await asyncio.wait({*self._functions, *self._commits})
        self._over = True
        await self._offsets.close()

    def _cancel(self, task: asyncio.Task[Any], why: GenerationEnded) -> None:
        loop = task.get_loop()
        if loop.is_running():
            # in the next iteration of the loop: a task that is cancelled before its first step never runs, so its
            # `finally` blocks would not run either
            loop.call_soon(task.cancel, why)
        else:  # now, because the tasks that the function awaits are cancelled now: later it would reach their clean-up
            asyncio.Task.cancel(task, why)

    def _function_ended(self, task: asyncio.Task[Any]) -> None:
        self._functions.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GenerationEnded):
            error = None  # not an error of the function: `commit` raised it, and the function did not catch it
        if self.ended is not None:
            if error is not None:
                log.error("%r: %s raised after its end", self, task.get_name(), exc_info=error)
            return
        self.returned, self.failure = True, error
        self.end(f"{task.get_name()} {'returned' if error is None else f'raised {error!r}'}")

    # -- offsets --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commits offsets: topic -> partition -> offset of the next record to read. A lower offset makes the group read
        records again.

        Raises `GenerationEnded` if this generation can no longer commit, `NotOwned` for a partition that it does not
        have (then nothing is sent), and `CommitFailed`, which does not end the generation.
        """
        wanted = self._checked(offsets)
        if not wanted:
            return
        if self._over or not self._still_owned():
            raise self._refusal(wanted) from self.ended
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.add(under_way)
        try:
            ended = BrokerError("the generation has ended")
            may_send = Terms(lambda partitions: {} if self._still_owned() else dict.fromkeys(partitions, ended))
            await self._offsets.commit(wanted, may_send)
        except CommitFailed as error:
            if self._still_owned() and not isinstance(error, Fenced):
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
                        f"{topic}:{partition}: {offset!r} cannot be committed; give the offset of the next record"
                    )
                metadata = stamped(stamp, self._topic_ids.get(topic))
                wanted[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata, -1)
        foreign = sorted(f"{p.topic}:{p.partition}" for p in set(wanted) - self.partitions)
        if foreign:
            raise NotOwned(f"generation {self.id} of group {self.group!r} does not have {', '.join(foreign)}")
        return wanted

    def _refusal(self, wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> GenerationEnded:
        why = str(self.ended or f"generation {self.id} of group {self.group!r} may be over")
        return GenerationEnded(f"offsets of {len(wanted)} partitions are not committed: {why}")
