"""Fixed partitions: start, keep and stop when metadata changes. With a fake cluster."""

from __future__ import annotations

from allocator.core.types import Partitions
from allocator.protocols.fixed import FixedMembership
from allocator.testing import wait_until_async
from tests.groups.members import History, RecordingOwner, StaticTopics


class Cluster(StaticTopics):
    def __init__(self, **topics: int) -> None:
        super().__init__(topics)

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
