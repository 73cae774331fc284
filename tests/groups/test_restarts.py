"""Restarts of members with an instance id, in virtual time and on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import re

import pytest

from allocator.errors import InstanceIdInUse
from allocator.operate.group_reader import describe
from allocator.operate.group_report import GroupReport
from allocator.protocols.zookeeper import leader, seats
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import wait_until_async
from tests.groups.members import OneGroup, TestMember
from tests.groups.simulate import broken_among
from tests.groups.simulated_faults import parse
from tests.groups.simulation import SEATED, Simulation


class Moves(Simulation):
    """Counts each time that a partition has another instance as its owner in the document."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.moves: list[str] = []
        self.last: dict[int, str] = {}

    def ids(self, *names: str) -> list[str]:
        return [self.workers[name].membership.member_id for name in names]

    def check_document(self, data: bytes) -> None:
        super().check_document(data)
        document = self.document
        for member, parts in document.owners.items():
            instance = document.seats[member].info.instance_id or ""
            for _, number in parts:
                if self.last.get(number, instance) != instance:
                    self.moves.append(f"{self.loop.time():.3f}: {number} from {self.last[number]} to {instance}")
                self.last[number] = instance


def run(schedule: str, faults_s: float, seed: int = SEATED, dies_at_step: int | None = None) -> Moves:
    found = Moves(seed, faults_s=faults_s, schedule=parse(schedule.splitlines()), dies_at_step=dies_at_step)
    found.run()
    return found


# the instance follows from the name: w1 and w6 are i1, w2 and w7 are i2, ...
ROLLING = """
   0.000 start w1
   0.000 start w2
   0.000 start w3
   0.000 start w4
   5.000 leave w1
   7.000 start w6
  10.000 leave w2
  12.000 start w7
  15.000 leave w3
  17.000 start w8
  20.000 leave w4
  22.000 start w9
"""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", [SEATED, SEATED + 1])  # the functions naive and sticky
def test_a_rolling_restart_moves_nothing_whoever_leads(seed: int) -> None:
    """Each of them leads once, and a clock of each is wrong by up to a quarter of an hour."""
    moves = run(ROLLING, 28.0, seed).moves
    assert [move for move in moves if float(move.split(":")[0]) > 4] == []


@pytest.mark.usefixtures("quiet")
def test_the_group_waits_for_a_crashed_member_for_its_session_and_grace() -> None:
    crash = "0 start w1\n0 start w2\n".replace("0 ", "0.000 ") + "   5.000 kill w2\n"
    found = run(crash + "  10.000 start w7\n", 20.0)  # its session ends between 8 and 10, its grace 3 s later
    assert [move for move in found.moves if float(move.split(":")[0]) > 4] == []
    moves = [float(move.split(":")[0]) for move in run(crash, 20.0).moves]
    assert moves
    assert 5 + 3 < moves[-1] < 5 + 4 + 1 + 3 + 0.5


@pytest.mark.usefixtures("quiet")
def test_a_second_process_of_an_instance_waits_until_the_first_one_is_gone() -> None:
    twins = "0.000 start w1\n0.000 start w2\n3.000 start w7\n"
    found = run(twins, 10.0)
    first, second = found.ids("w2", "w7")
    assert first in found.document.owners
    assert list(found.document.refused) == [second]
    found = run(twins + "  10.000 kill w2\n", 20.0)
    first, second = found.ids("w2", "w7")
    assert second in found.document.owners
    assert not found.document.refused


RESTARTS = """
   0.000 start w1
   0.000 start w2
   0.000 start w3
   2.000 leave w3
   2.500 start w8
   4.000 kill w2
  10.000 start w7
  11.000 quit w8
  12.000 start w4
"""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("every", [67, pytest.param(1, marks=pytest.mark.long)])
def test_the_leader_may_die_at_each_step_of_a_restart(every: int) -> None:
    steps = run(RESTARTS, 14.0).steps_of_leaders
    assert steps > 200
    for step in range(1, steps + 1, every):
        run(RESTARTS, 14.0, dies_at_step=step)


@pytest.mark.usefixtures("quiet")
def test_every_promise_holds_under_faults_with_grace() -> None:
    assert broken_among(range(SEATED, SEATED + 10)) == ""


def a_leader_that_takes_seats_of_live_members(patch: pytest.MonkeyPatch) -> None:
    def careless(document: AssignmentDocument, members: dict, alive: set, *rest: object) -> AssignmentDocument:
        instances = [info.instance_id for info in members.values()]
        twice = {m for m, info in members.items() if instances.count(info.instance_id) > 1}
        older = {m for m in twice if m in document.seats}
        return seats.take_seats(document, {m: i for m, i in members.items() if m not in older}, alive - older, *rest)

    patch.setattr(leader, "take_seats", careless)


@pytest.mark.usefixtures("quiet")
def test_a_seat_that_is_taken_from_a_member_that_lives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a_leader_that_takes_seats_of_live_members(monkeypatch)
    broken = None
    for seed in range(SEATED, SEATED + 60):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            # some seeds break a budget first
            broken = re.search(r"\A.*(both claim|may act|may both act)", str(error))
            if broken is not None:
                break
    assert broken is not None


# -- on a real ZooKeeper -----------------------------------------------------------------------------------------------


async def test_five_members_restart_one_by_one_and_no_partition_moves(zk_chroot: str, group: str) -> None:
    bench = OneGroup(zk_chroot, group, {"t": 500}, restart_grace_s=60.0, assignors=("sticky",))

    def member(number: int) -> TestMember:
        return bench.member(f"n{number}", instance_id=f"i{number}")

    members = [member(number) for number in range(5)]
    await asyncio.gather(*(one.membership.join() for one in members))
    await bench.settle(*members)
    had = [one.owned for one in members]
    for number, old in enumerate(members):  # the first one leads, so that each leads before its restart
        await old.membership.leave()
        assert old.owned == frozenset()
        members[number] = member(number)
        await members[number].membership.join()
        await wait_until_async(
            lambda number=number: members[number].owned == had[number],  # type: ignore[misc]
            30,
            lambda number=number: f"instance {number} to own again what it had",  # type: ignore[misc]
        )
        assert [one.owned for one in members] == had
    # a second process of a live instance gets an error and owns nothing
    twin = member(2)
    await twin.membership.join()
    await wait_until_async(lambda: bool(twin.owner.errors), 30, "the error of the second process")
    assert isinstance(twin.owner.errors[0], InstanceIdInUse)
    assert twin.owned == frozenset()
    await twin.membership.leave()
    # an absent member is shown; the group does not wait for a member that leaves for good
    await members[4].membership.leave()
    async with bench.store() as store:
        await wait_until_async(lambda: _reserved(store), 30, "the reservation to be shown")
        members[3].membership.leave_for_good()
        await members[3].membership.leave()
        await wait_until_async(
            lambda: sum(len(one.owned) for one in members[:3]) == 400, 30, "its partitions to move at once"
        )
        assert not had[4] & frozenset().union(*(one.owned for one in members[:3]))
        assert await store.end_reservation("i0") == frozenset()  # its process lives
        assert await store.end_reservation("i4") == had[4]
        await bench.settle(*members[:3])
        await wait_until_async(lambda: _unmarked(store), 30, "the left mark to be deleted")
        await asyncio.gather(*(one.membership.leave() for one in members[:3]))
    assert bench.history.overlaps() == []


async def _reserved(store: Store) -> bool:
    state = await describe(store.zk, store.paths.group, "/allocator")
    assert state is not None
    shown = GroupReport(state)
    if not shown.to_json()["reserved"]:
        return False
    assert [(each["instance_id"], each["partitions"]) for each in shown.to_json()["reserved"]] == [("i4", 100)]
    assert any("100 partitions wait for instance 'i4'" in problem for problem in shown.problems)
    return True


async def _unmarked(store: Store) -> bool:
    return await store.left_names() == []
