"""Partitions that are this process's by decision: those named by hand, or all of the topics it reads.

Guarantee: none about other processes. Whoever chooses it says that nobody else reads these partitions, or that it does
not matter. What is read starts and stops as in any other membership, so a service can be tried without a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable

from allocator.errors import AllocatorError, ConfigError
from allocator.groups.membership import AssignmentListener, GroupMembership, PartitionCountSource
from allocator.groups.patterns import compiled
from allocator.tasks import TaskGroup, wait_for_event
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

__all__ = ["FixedMembership"]

log = logging.getLogger(__name__)

NO_TOPICS: frozenset[str] = frozenset()


class FixedMembership(GroupMembership):
    """A member of nothing that owns what it was told to.

    `partitions` are taken as they are; else it takes every partition of `topics`, or of those whose name begins with
    what `pattern` matches, new ones too, at most `topic_poll_s` seconds after they appear. A topic that is unknown
    for the moment keeps what is held of it: brokers that start say so of topics that exist.
    """

    def __init__(
        self,
        client: PartitionCountSource,
        owner: AssignmentListener,
        *,
        name: str = "",
        topics: frozenset[str] = frozenset(),
        pattern: str | None = None,
        partitions: Iterable[TopicPartition] = (),
        topic_poll_s: float = 10.0,
    ) -> None:
        self.member_id = name
        self.generation = 0
        """Grows with each change of what is held."""
        self.ended: BaseException | None = None
        self._client = client
        self._owner = owner
        self._topics, self._pattern = topics, compiled(pattern)
        self._partitions = frozenset(partitions)
        self._topic_poll_s = topic_poll_s
        self._held: Partitions = NO_PARTITIONS
        self._leaving: Partitions = NO_PARTITIONS
        """Not ours any more, but the owner has not let go of them yet."""
        self._active = False
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> Partitions:
        return self._held

    def may_act(self) -> bool:
        return self._active and self.ended is None

    def polled(self) -> None:
        """Nobody watches whether the user is alive."""

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces what was chosen, partitions by hand included."""
        self._choose(frozenset(topics), compiled(pattern), NO_PARTITIONS)

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Replaces what was chosen by these partitions.

        Returns those that are held from this moment on; the owner is not told of them, the caller tells it. The owner
        may not have let go of some of them yet since the choice before. Raises ConfigError for a partition that its
        topic has not, and changes nothing.
        """
        wanted = frozenset(partitions)
        self._check(wanted)
        self._choose(NO_TOPICS, None, wanted)
        if not self._active:
            return NO_PARTITIONS
        gained = self._wanted() - self._held
        if gained:
            self.generation += 1
            self._held |= gained
            self._leaving -= gained
        return gained

    def _choose(self, topics: frozenset[str], pattern: re.Pattern[str] | None, partitions: Partitions) -> None:
        self._topics, self._pattern, self._partitions = topics, pattern, partitions
        if self._active:
            gone = self._held - self._wanted()
            self._held -= gone
            self._leaving |= gone
            self._follow()
            self._changed.set()

    async def join(self) -> None:
        """Begins with what the client's metadata says. Raises ConfigError for a partition that its topic has not."""
        if self._task is not None:
            raise RuntimeError("join() was called already")
        self._changed, self._stop = asyncio.Event(), asyncio.Event()
        self._check(self._partitions)
        self._follow()
        self._active = True
        await self._take()
        self._changed.set()  # whatever has changed since nobody listened
        self._task = asyncio.get_running_loop().create_task(self._run(), name="membership")

    async def leave(self) -> None:
        if self._task is None:
            self._active = False
            return
        self._stop.set()
        self._changed.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            self._task, self._active = None, False

    async def _run(self) -> None:
        remove = self._client.on_metadata(self._changed.set)
        try:
            await TaskGroup().run(self._keep_up(), topics=self._poll_topics())
        except Exception as error:
            log.exception("reading the chosen partitions ended")
            self.ended = error
            self._owner.failed(error)
        finally:
            remove()
            held, self._held, self._leaving = self._held | self._leaving, NO_PARTITIONS, NO_PARTITIONS
            if held:
                await self._owner.lost(held)

    async def _keep_up(self) -> None:
        while not self._stop.is_set():
            await self._changed.wait()
            self._changed.clear()
            await self._take()
        await self._take()

    async def _take(self) -> None:
        self._leaving |= self._held - self._wanted()
        self._held -= self._leaving
        gone = self._leaving
        if gone:
            self.generation += 1
            await self._owner.revoked(gone)
            self._leaving -= gone
        gained = self._wanted() - self._held - self._leaving  # what is wanted may have changed meanwhile
        if gained:
            self.generation += 1
            log.info("%d partitions are read from now on", len(gained))
            self._held |= gained
            await self._owner.assigned(gained)

    def _wanted(self) -> Partitions:
        if self._stop.is_set():
            return NO_PARTITIONS
        if self._partitions:
            return self._partitions
        found = set()
        for topic in self._chosen():
            partitions = self._client.partitions(topic)
            if partitions is None:
                found |= {p for p in self._held if p.topic == topic}
            else:
                found |= {TopicPartition(topic, number) for number in partitions}
        return frozenset(found)

    def _chosen(self) -> frozenset[str]:
        if self._pattern is None:
            return self._topics
        known = self._client.topics() | {p.topic for p in self._held}
        return frozenset(topic for topic in known if self._pattern.match(topic))

    def _check(self, partitions: Partitions) -> None:
        for topic, number in sorted(partitions):
            known = self._client.partitions(topic)
            if known is not None and number not in known:
                raise ConfigError(f"partition {topic}:{number} does not exist; the topic has {len(known)} partitions")

    def _follow(self) -> None:
        if self._pattern is not None:
            self._client.follow_all()
        else:
            self._client.follow(self._topics | {p.topic for p in self._partitions})

    async def _poll_topics(self) -> None:
        """What no message announces: new topics and partitions."""
        while not await wait_for_event(self._stop, self._topic_poll_s):
            if not self._partitions:
                with contextlib.suppress(AllocatorError):  # the next turn asks again
                    await self._client.refresh()
