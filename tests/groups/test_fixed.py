"""Fixed partitions: start, keep and stop when metadata changes. With a fake cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from members import History, RecordingOwner, StaticTopics

from allocator.core.membership.fixed import FixedMembership
from allocator.core.types import Partitions
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.testing import wait_until_async
from allocator.types import TopicPartition


class Cluster(StaticTopics):
    """Every other refresh fails."""

    def __init__(self, **topics: int) -> None:
        super().__init__(topics)
        self.refreshes = 0

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        self.refreshes += 1
        if self.refreshes % 2:
            raise BrokersUnavailable("for the moment")

    def now(self, **topics: int) -> None:
        self.counts = {}
        self.change(**topics)


class Recorder(RecordingOwner):
    def __init__(self) -> None:
        super().__init__("a", History())
        self.breaks = False

    @property
    def calls(self) -> list[tuple[str, list[tuple[str, int]]]]:
        return [(what, sorted(partitions)) for _, _, what, partitions in self.history.events]

    async def assigned(self, partitions: Partitions) -> None:
        await super().assigned(partitions)
        if self.breaks:
            raise ZeroDivisionError


async def becomes(owner: Recorder, count: int) -> None:
    await wait_until_async(lambda: len(owner.calls) == count, 30, f"{count} calls")


async def test_partitions_that_appear_and_disappear_are_assigned_and_revoked() -> None:
    cluster, owner = Cluster(t=2, other=9), Recorder()
    member = FixedMembership(cluster, owner, topics=frozenset({"t", "later"}))
    assert not member.may_act()
    await member.join()
    assert member.may_act()
    assert owner.calls == [("begin", [("t", 0), ("t", 1)])]
    cluster.now(t=3, later=1)
    await becomes(owner, 2)
    cluster.now(t=1, later=1)  # deleted and created again with fewer
    await becomes(owner, 3)
    assert owner.calls[1:] == [("begin", [("later", 0), ("t", 2)]), ("end", [("t", 1), ("t", 2)])]
    assert member.generation == 3
    await member.leave()
    await member.leave()
    assert owner.calls[3:] == [("end", [("later", 0), ("t", 0)])]
    assert not member.may_act()


async def test_unchanged_metadata_and_a_missing_topic_change_nothing() -> None:
    cluster, owner = Cluster(t=2), Recorder()
    member = FixedMembership(cluster, owner, topics=frozenset({"t"}))
    await member.join()
    cluster.now()
    cluster.now(t=2, other=1)
    cluster.now(t=3)
    await becomes(owner, 2)
    assert owner.calls[1] == ("begin", [("t", 2)])
    await member.leave()


async def test_a_pattern_follows_metadata_that_is_requested_regularly() -> None:
    cluster, owner = Cluster(ab=1, b=1), Recorder()
    member = FixedMembership(cluster, owner, pattern="a", topic_poll_s=0.01)
    await member.join()
    assert owner.calls == [("begin", [("ab", 0)])]
    cluster.now(ab=1, ac=1, b=1)
    await becomes(owner, 2)
    await wait_until_async(lambda: cluster.refreshes >= 4, 30, "further metadata requests after a failure")
    member.subscribe(["b"])
    await becomes(owner, 4)
    assert sorted(owner.calls[2:]) == [("begin", [("b", 0)]), ("end", [("ab", 0), ("ac", 0)])]
    await member.leave()


async def test_chosen_partitions_stay_whatever_the_metadata_lists() -> None:
    cluster, owner = Cluster(t=2), Recorder()
    chosen = [TopicPartition("t", 1), TopicPartition("unknown", 5)]
    member = FixedMembership(cluster, owner, partitions=chosen)
    await member.join()
    cluster.now(t=1)
    assert member.held == frozenset(chosen)
    await member.leave()
    assert owner.calls == [("begin", [("t", 1), ("unknown", 5)]), ("end", [("t", 1), ("unknown", 5)])]
    with pytest.raises(ConfigError, match="t:7 does not exist; the topic has 1"):
        await FixedMembership(cluster, owner, partitions=[TopicPartition("t", 7)]).join()


async def test_a_listener_that_raises_ends_the_membership() -> None:
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
