"""The history from successive states of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from allocator.commands.command import Command, Commands
from allocator.core.types import Partitions
from allocator.operate.group_report import Coordinated, GroupState, Logs
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, CommandState, MemberInfo, Waiting
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.history import History, News, Point, Series

P = [TopicPartition("t", number) for number in range(6)]
A, B, C = (f"m-{number:016x}-{number:010d}" for number in range(3))
NAMES = {A: "alpha", B: "beta", C: "gamma"}


def state(
    generation: int,
    owners: Mapping[str, Partitions],
    *,
    promised: Mapping[str, Partitions] | None = None,
    waiting: Mapping[str, Partitions] | None = None,
    held: Mapping[str, Partitions] | None = None,
    members: tuple[str, ...] | None = None,
    strategy: str = "sticky",
) -> GroupState:
    """`held` has the claims that differ from `owners`."""
    present = tuple(owners) if members is None else members
    document = AssignmentDocument(
        generation=generation,
        revision=generation,
        strategy=strategy,
        owners=owners,
        promised=promised or {},
        waiting={member: Waiting(generation, parts) for member, parts in (waiting or {}).items()},
    )
    claims = {m: Claim(generation, (held or {}).get(m, owners.get(m, frozenset())), generation) for m in present}
    infos = {m: MemberInfo(NAMES[m], "host", frozenset({"t"})) for m in present}
    return GroupState("g", infos, claims, document)


def of(*numbers: int) -> Partitions:
    return frozenset(P[number] for number in numbers)


def observed(*steps: tuple[GroupState, float] | tuple[GroupState, float, News]) -> History:
    history = History()
    for step in steps:
        history.observe(*step)
    return history


def only(history: History) -> dict[str, Any]:
    (rebalance,) = history.rebalances
    return rebalance.to_json()


def test_a_group_at_rest_has_no_history() -> None:
    history = History()
    assert history.observe(state(3, {A: of(0, 1)}), 100.0)
    assert not history.observe(state(3, {A: of(0, 1)}), 101.0)
    assert not history.rebalances
    assert history.open is None


def test_a_rebalance_lasts_from_the_news_of_a_member_until_the_last_claim() -> None:
    history = History()
    history.observe(state(1, {A: of(0, 1, 2, 3)}), 10.0)
    history.observe(state(1, {A: of(0, 1, 2, 3)}, members=(A, B)), 11.0)  # it has joined, nothing is computed yet
    assert history.open is not None
    history.observe(state(2, {A: of(0, 1)}, promised={B: of(2, 3)}, waiting={A: of(2, 3)}, members=(A, B)), 11.5)
    history.observe(state(2, {A: of(0, 1), B: of(2, 3)}, held={B: of()}), 13.0)
    assert history.open is not None
    history.observe(state(2, {A: of(0, 1), B: of(2, 3)}), 13.2)
    assert history.open is None
    found = only(history)
    assert (found["generation"], found["began"], found["took_s"]) == (2, 11.0, 2.2)
    assert found["why"] == ["joined: beta@host#1"]
    assert (found["moved"], found["total"]) == (2, 4)
    assert found["between"] == [{"from": "alpha@host#0", "to": "beta@host#1", "partitions": 2}]
    assert found["waited_for"] == [{"member": "alpha@host#0", "s": 1.5}]
    assert (history.count, history.moved, round(history.seconds, 3)) == (1, 2, 2.2)


@pytest.mark.parametrize(
    ("timeout_s", "why"),
    [(10.0, "crashed or lost its session: beta@host#1"), pytest.param(None, "left: beta@host#1", id="older version")],
)
def test_a_crash_is_reported_with_the_time_until_it_could_be_noticed(timeout_s: float | None, why: str) -> None:
    before, after = state(1, {A: of(0), B: of(1)}), state(2, {A: of(0, 1)})
    infos = {member: replace(info, session_timeout_s=timeout_s) for member, info in before.members.items()}
    found = only(observed((replace(before, members=infos), 10.0), (after, 11.5, News(11.0, frozenset({B})))))
    assert (found["why"], found["took_s"], found["unnoticed_s"]) == ([why], 0.5, timeout_s)


def test_topics_that_grow_and_functions_that_change_are_reasons() -> None:
    history = observed(
        (state(1, {A: of(0, 1)}), 10.0),
        (state(2, {A: of(0, 1, 2)}), 11.0),
        (state(3, {A: of(0, 1, 2)}, strategy="range"), 12.0),
        (state(4, {A: of(0, 1, 2)}, strategy="range"), 13.0),
    )
    assert [rebalance.why for rebalance in history.rebalances] == [
        ["t: 2 to 3 partitions"],
        ["allocator function range instead of sticky"],
        ["computed again with the same members and topics"],
    ]
    assert [len(rebalance.moves) for rebalance in history.rebalances] == [1, 0, 0]


def test_commands_of_operators_are_reasons() -> None:
    pin = Command.make("pin", {"partitions": {"t": "0"}, "place": {"member": "a"}}, who="alice@ops1", now_ms=1)
    kept = {pin.id: CommandState("kept")}

    def seen(number: int, commands: Commands, states: dict[str, CommandState]) -> GroupState:
        found = state(number, {A: of(0, 1)})
        assert found.document is not None
        return replace(found, commands=commands, document=replace(found.document, commands=states))

    # the commands are read before the leader follows them
    history = observed(
        (seen(1, Commands(), {}), 10.0),
        (seen(1, Commands((pin,)), {}), 11.0),
        (seen(2, Commands((pin,)), kept), 12.0),
        (seen(3, Commands(), {}), 13.0),
    )
    assert [rebalance.why for rebalance in history.rebalances] == [
        ["command pin t:0 to a of alice@ops1"],
        ["the command pin t:0 to a was withdrawn"],
    ]


def test_a_rebalance_in_progress_at_the_start_of_the_watch_says_so_and_ends() -> None:
    history = History()
    history.observe(state(5, {A: of(0)}, promised={B: of(1)}, waiting={A: of(1)}, members=(A, B)), 10.0)
    assert history.open is not None
    history.observe(state(5, {A: of(0), B: of(1)}), 12.0)
    (rebalance,) = history.rebalances
    assert rebalance.why == ["it was in progress when the watch started"]
    assert (rebalance.moves, rebalance.ended) == ({P[1]: (A, B)}, 12.0)


def test_a_group_without_members_is_at_rest() -> None:
    history = observed((state(1, {A: of(0, 1)}), 10.0), (state(1, {A: of(0, 1)}, members=()), 11.0))
    assert history.open is None
    assert only(history)["why"] == ["left: alpha@host#0", "no member is left"]


def logs(committed: int, end: int) -> Logs:
    return Logs({P[0]: OffsetAndMetadata(committed, "", -1)}, {P[0]: 0}, {P[0]: end})


def series(*polls: tuple[float, int, int]) -> Series:
    """The series after polls (time, committed offset, end of the log)."""
    found = Series()
    for now, committed, end in polls:
        found.add(logs(committed, end), end - committed, now)
    return found


def test_rates_are_the_growth_of_offsets_per_second() -> None:
    first, second, third = series((10.0, 100, 150), (12.0, 180, 200), (14.0, 180, 200)).points
    assert (first.lag, first.produced, first.consumed) == (50, None, None)
    assert (second.lag, second.produced, second.consumed, second.commits) == (20, 25.0, 40.0, 0.5)
    assert (third.produced, third.consumed, third.commits) == (0.0, 0.0, 0.0)
    set_back = series((10.0, 100, 150), (12.0, 0, 20)).points[1]
    assert (set_back.produced, set_back.consumed) == (0.0, 0.0), "no negative throughput"


def test_rates_are_unknown_during_and_after_an_outage() -> None:
    found = series((10.0, 100, 150), (12.0, 180, 200))
    for now in (13.0, 14.0):
        found.unknown(now)
    assert found.points[-1] == Point(13.0, None), "recorded once"
    found.add(logs(200, 300), 100, 20.0)
    assert found.points[-1] == Point(20.0, 100), "the records of the outage have no known time"


# -- groups of Kafka's own protocols


def coordinated(owners: Mapping[str, Partitions], at: str = "Stable") -> GroupState:
    infos = {m: MemberInfo(NAMES[m], "host", frozenset({"t"}), strategies=()) for m in owners}
    claims = {m: Claim(0, parts) for m, parts in owners.items()}
    return GroupState("g", infos, claims, None, coordinated=Coordinated(at, "range"))


def test_a_polled_group_has_rebalances_of_unknown_length() -> None:
    history = History()
    assert history.observe(coordinated({A: of(0, 1, 2, 3)}), 10.0)
    assert not history.observe(coordinated({A: of(0, 1, 2, 3)}), 11.0)
    # during a rebalance the coordinator reports no partitions
    assert not history.observe(coordinated({A: of(), B: of()}, "PreparingRebalance"), 12.0)
    assert not history.rebalances
    assert history.observe(coordinated({A: of(0, 1), B: of(2, 3)}), 13.0)
    (first,) = history.rebalances
    assert first.why[0].startswith("joined: beta")
    assert (first.moves, first.total) == ({P[2]: (A, B), P[3]: (A, B)}, 4)
    assert (first.took_s, first.unnoticed_s, first.to_json()["generation"]) == (None, None, None)
    assert (history.open, history.count, history.moved) == (None, 0, 2)
    assert history.observe(coordinated({A: of(0, 1, 2, 3)}), 14.0)
    last = history.last
    assert last is not None
    assert last.why[0].startswith("left: beta")
    assert last.to_json()["between"] == [{"from": "beta@host#1", "to": "alpha@host#0", "partitions": 2}]
    assert history.observe(coordinated({}, "Empty"), 15.0)
    assert len(history.rebalances) == 3
