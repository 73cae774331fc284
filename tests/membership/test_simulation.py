"""Thousands of schedules in virtual time; and proof that a broken protocol is found by them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import pytest
from simulation import Broken, Simulation

from allocator.membership import plan
from allocator.membership.keeper import Keeper
from allocator.membership.leader import Leader
from allocator.membership.lease import Lease
from allocator.membership.znodes import Waiting
from allocator.membership.zookeeper import ZooKeeperMembership
from allocator.wire.zookeeper import Op

SEEDS = 60
LONG_SEEDS = 4000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A schedule has thousands of lines, and only one that fails is of interest: it prints its own."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Simulation(seed).run()


def test_every_promise_holds_under_faults() -> None:
    """Crash, freeze, cut-off, leave, death of the leader, deletion and rubbish by hand, growth: 60 s of them each."""
    run_all(range(SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_promise_holds_under_many_more() -> None:
    run_all(range(SEEDS, LONG_SEEDS))


def test_a_seed_gives_the_same_run_twice() -> None:
    runs = [Simulation(7), Simulation(7)]
    for run in runs:
        run.run()
    assert runs[0].schedule == runs[1].schedule
    assert runs[0].processed == runs[1].processed
    assert runs[0].loop.now == runs[1].loop.now


def a_lease_as_long_as_the_session_and_longer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "MARGIN", -0.5)


def members_that_do_not_ask_whether_they_may_act(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "may_act", True)


def partitions_that_are_free_as_soon_as_they_are_revoked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "_still_waiting", lambda entry, claim: Waiting(entry.since, frozenset()))


def old_claims_that_count_and_new_ones_that_grow_unchecked(patch: pytest.MonkeyPatch) -> None:
    """Either alone is harmless: each guards against what the other lets through."""
    from simulated_zookeeper import SimulatedZooKeeper

    async def unchecked(self: SimulatedZooKeeper, ops: list[Op]) -> None:
        for op in ops:
            if op.kind == "set":
                await self.set(op.path, op.data)

    patch.setattr(SimulatedZooKeeper, "multi", unchecked)
    patch.setattr(
        plan,
        "_still_waiting",
        lambda entry, claim: entry if claim is None else Waiting(entry.since, entry.partitions & claim.held),
    )


def a_leader_that_forgets_what_changed_while_it_read(patch: pytest.MonkeyPatch) -> None:
    step = Leader._step

    async def forgetful(self: Leader) -> None:
        await step(self)
        self._group_changed = False
        self._changed.clear()

    patch.setattr(Leader, "_step", forgetful)


def members_that_release_before_they_have_stopped(patch: pytest.MonkeyPatch) -> None:
    async def drain(self: ZooKeeperMembership, partitions: frozenset) -> None:
        self._draining -= partitions
        self._changed.set()
        await self._owner.revoked(partitions)

    patch.setattr(ZooKeeperMembership, "_drain", drain)


@pytest.mark.parametrize(
    "break_it",
    [
        a_lease_as_long_as_the_session_and_longer,
        members_that_do_not_ask_whether_they_may_act,
        partitions_that_are_free_as_soon_as_they_are_revoked,
        old_claims_that_count_and_new_ones_that_grow_unchecked,
        a_leader_that_forgets_what_changed_while_it_read,
        members_that_release_before_they_have_stopped,
    ],
)
def test_a_broken_protocol_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(Broken, match="seed"):
        run_all(range(300))
