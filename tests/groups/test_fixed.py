"""Fixed partitions: start, keep and stop when metadata changes. With a fake cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from allocator.core.membership import AssignmentListener
from allocator.core.membership.fixed import FixedMembership
from allocator.core.types import Partitions
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.testing import wait_until_async
from allocator.types import TopicPartition


class Cluster:
    def __init__(self, **topics: int) -> None:
        self.counts = dict(topics)
        self.followed: frozenset[str] | None = frozenset()
        self.refreshes = 0
        self._listeners: list[Callable[[], None]] = []

    def follow(self, topics: Iterable[str]) -> None:
        self.followed = frozenset(topics)

    def follow_all(self) -> None:
        self.followed = None

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        self.refreshes += 1
        if self.refreshes % 2:
            raise BrokersUnavailable("for the moment")

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        return tuple(range(self.counts[topic])) if topic in self.counts else None

    def topics(self, internal: bool = False) -> frozenset[str]:
        return frozenset(self.counts)

    def racks(self, partition: TopicPartition) -> tuple[str | None, ...]:
        return ()

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def now(self, **topics: int) -> None:
        self.counts = dict(topics)
        for listener in self._listeners:
            listener()


class Recorder(AssignmentListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []
        self.errors: list[BaseException] = []
        self.breaks = False

    async def assigned(self, partitions: Partitions) -> None:
        self.calls.append(("assigned", sorted(partitions)))
        if self.breaks:
            raise ZeroDivisionError

    async def revoked(self, partitions: Partitions) -> None:
        self.calls.append(("revoked", sorted(partitions)))

    async def lost(self, partitions: Partitions) -> None:
        self.calls.append(("lost", sorted(partitions)))

    def suspended(self, why: str) -> None: ...

    def resumed(self) -> None: ...

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


async def becomes(owner: Recorder, count: int) -> None:
    await wait_until_async(lambda: len(owner.calls) == count, 30, f"{count} calls")


async def test_partitions_that_come_and_go_are_taken_and_given_up() -> None:
    cluster, owner = Cluster(t=2, other=9), Recorder()
    member = FixedMembership(cluster, owner, topics=frozenset({"t", "later"}))
    assert not member.may_act()
    await member.join()
    assert member.may_act()
    assert owner.calls == [("assigned", [("t", 0), ("t", 1)])]
    cluster.now(t=3, later=1)
    await becomes(owner, 2)
    cluster.now(t=1, later=1)  # deleted and created again with fewer
    await becomes(owner, 3)
    assert owner.calls[1:] == [("assigned", [("later", 0), ("t", 2)]), ("revoked", [("t", 1), ("t", 2)])]
    assert member.generation == 3
    await member.leave()
    await member.leave()
    assert owner.calls[3:] == [("revoked", [("later", 0), ("t", 0)])]
    assert not member.may_act()


async def test_the_same_partitions_again_change_nothing_and_a_topic_that_is_denied_is_kept() -> None:
    cluster, owner = Cluster(t=2), Recorder()
    member = FixedMembership(cluster, owner, topics=frozenset({"t"}))
    await member.join()
    cluster.now()
    cluster.now(t=2, other=1)
    cluster.now(t=3)
    await becomes(owner, 2)
    assert owner.calls[1] == ("assigned", [("t", 2)])
    await member.leave()


async def test_a_pattern_takes_what_it_matches_and_metadata_is_asked_for_again_and_again() -> None:
    cluster, owner = Cluster(ab=1, b=1), Recorder()
    member = FixedMembership(cluster, owner, pattern="a", topic_poll_s=0.01)
    await member.join()
    assert cluster.followed is None
    assert owner.calls == [("assigned", [("ab", 0)])]
    cluster.now(ab=1, ac=1, b=1)
    await becomes(owner, 2)
    await wait_until_async(lambda: cluster.refreshes >= 4, 30, "metadata to be asked for though it failed at first")
    member.subscribe(["b"])
    await becomes(owner, 4)
    assert sorted(owner.calls[2:]) == [("assigned", [("b", 0)]), ("revoked", [("ab", 0), ("ac", 0)])]
    await member.leave()


async def test_partitions_by_hand_stay_whatever_metadata_says_later() -> None:
    cluster, owner = Cluster(t=2), Recorder()
    chosen = [TopicPartition("t", 1), TopicPartition("unknown", 5)]
    member = FixedMembership(cluster, owner, partitions=chosen)
    await member.join()
    cluster.now(t=1)
    assert member.held == frozenset(chosen)
    await member.leave()
    assert owner.calls == [("assigned", [("t", 1), ("unknown", 5)]), ("revoked", [("t", 1), ("unknown", 5)])]
    with pytest.raises(ConfigError, match="t:7 does not exist; the topic has 1"):
        await FixedMembership(cluster, owner, partitions=[TopicPartition("t", 7)]).join()


async def test_an_owner_that_breaks_ends_it_and_everything_is_lost() -> None:
    cluster, owner = Cluster(t=1), Recorder()
    member = FixedMembership(cluster, owner, topics=frozenset({"t"}))
    await member.join()
    owner.breaks = True
    cluster.now(t=2)
    await becomes(owner, 3)
    assert owner.calls[2] == ("lost", [("t", 0), ("t", 1)])
    assert isinstance(member.ended, ZeroDivisionError)
    assert owner.errors == [member.ended]
    assert not member.may_act()
    await member.leave()
