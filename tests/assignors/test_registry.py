"""Allocator functions are found by name, by path, by entry point, or passed as a callable."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from allocator.assignors import (
    GroupView,
    Member,
    compute,
    known_names,
    left_out,
    naive,
    naive_allocator,
    resolve,
    wants,
)
from allocator.assignors.registry import of_kiel
from allocator.errors import AssignorError, BadAssignment
from allocator.types import TopicPartition

HERE = Path(__file__).parent
T = frozenset({"t"})
BUILT_IN = ["cooperative-sticky", "naive", "rack-aware", "range", "roundrobin", "sticky", "weighted"]
TWO = GroupView((Member("m-1", "zoe", T), Member("m-2", "adam", T)), {"t": 11})


@pytest.fixture
def functions() -> Any:
    from tests.assignors import functions

    functions.calls.clear()
    return functions


def everything(topic: str, count: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, p) for p in range(count))


def test_the_default_is_found_by_name_by_text_and_as_itself() -> None:
    for spec in ("naive", "allocator.assignors:naive", naive, naive_allocator):
        assert resolve(spec) is naive


def test_each_built_in_function_is_found_by_its_name_and_by_its_place() -> None:
    assert [name for name in known_names() if ":" not in name and "." not in name] == BUILT_IN
    for name in BUILT_IN:
        assert resolve(name).name == name == repr(resolve(name))
        module = "basic" if name in ("naive", "range", "roundrobin") else "sticky"
        place = "range_" if name == "range" else name.replace("-", "_")
        assert resolve(f"allocator.assignors.{module}:{place}") is resolve(name)


def test_an_assignor_has_the_name_of_the_text_the_function_or_the_object(functions: Any) -> None:
    for spec, name in (
        ("tests.assignors.functions:first_takes_all", "tests.assignors.functions:first_takes_all"),
        (functions.first_takes_all, "tests.assignors.functions:first_takes_all"),
        (functools.partial(functions.first_takes_all), "tests.assignors.functions:first_takes_all"),
        ("tests.assignors.functions:short", "tests.assignors.functions:short"),
        ("tests.assignors.functions:bound", "tests.assignors.functions:bound"),
        (functions.Configured(), "configured"),
        (functions.Configured, "configured"),
        ("tests.assignors.functions:Configured", "configured"),
    ):
        assignor = resolve(spec)
        assert assignor.name == name
        assert compute(assignor, TWO) == {"m-1": everything("t", 11), "m-2": frozenset()}


def test_kiels_signature_gets_sorted_names_and_sorted_partition_strings(functions: Any) -> None:
    assignor = resolve("tests.assignors.functions:kiel_last_takes_all")
    assert compute(assignor, TWO) == {"m-1": everything("t", 11), "m-2": frozenset()}
    assert functions.calls == [(["adam", "zoe"], sorted(f"t:{p}" for p in range(11)))]


def test_kiels_signature_gets_ids_when_names_repeat(functions: Any) -> None:
    view = GroupView((Member("m-2", "same", T), Member("m-1", "same", T)), {"t": 1})
    assert compute(resolve(functions.kiel_last_takes_all), view) == {"m-1": frozenset(), "m-2": everything("t", 1)}
    assert functions.calls[0][0] == ["m-1", "m-2"]


def test_kiels_signature_is_called_once_per_set_of_subscribers(functions: Any) -> None:
    view = GroupView(
        (Member("1", "x", frozenset("ab")), Member("2", "y", frozenset("abc")), Member("3", "z", frozenset("c"))),
        {"a": 1, "b": 1, "c": 1, "d": 1},
    )
    owned = compute(resolve(functions.kiel_last_takes_all), view)
    assert functions.calls == [(["x", "y"], ["a:0", "b:0"]), (["y", "z"], ["c:0"])]
    assert owned == {"1": frozenset(), "2": everything("a", 1) | everything("b", 1), "3": everything("c", 1)}


def test_only_functions_in_kiels_signature_may_leave_partitions_out(functions: Any) -> None:
    even = frozenset(TopicPartition("t", number) for number in range(0, 11, 2))
    assignment = compute(resolve(functions.kiel_even), TWO)
    assert assignment == {"m-1": even, "m-2": frozenset()}
    assert left_out(TWO, assignment) == everything("t", 11) - even
    assert left_out(TWO, compute(resolve("naive"), TWO)) == frozenset()
    with pytest.raises(BadAssignment, match="11 partitions assigned to no member"):
        compute(resolve(lambda view: {}), TWO)


def test_of_kiel_passes_two_arguments_to_each_function_that_takes_them(functions: Any) -> None:
    def two(members: Any, partitions: Any = (), more: Any = None, *, strict: bool = True) -> Any:
        return functions.kiel_last_takes_all(members, partitions)

    for function in (lambda *a: functions.kiel_last_takes_all(*a), two, functools.partial(two, more=1)):
        assert compute(of_kiel(function), TWO)["m-1"] == everything("t", 11)
    assert of_kiel(naive_allocator) is resolve("naive")
    assert compute(of_kiel(functions.first_takes_all), TWO)["m-1"] == everything("t", 11), "allocator's own signature"
    with pytest.raises(AssignorError, match="must take one argument"):
        of_kiel(functions.three)


def test_an_unknown_member_in_the_result_is_named(functions: Any) -> None:
    with pytest.raises(BadAssignment, match=r"tests.assignors.functions:kiel_wrong.*1 unknown members: 'stranger'"):
        compute(resolve(functions.kiel_wrong), TWO)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("naiv", "no allocator function 'naiv' (did you mean 'naive'?); known: cooperative-sticky, naive,"),
        ("zzz", "no allocator function 'zzz'; known: cooperative-sticky, naive,"),
        ("no.such.module:f", "module 'no.such.module' cannot be imported"),
        ("tests.assignors.functions:first_take_all", "has no 'first_take_all'; did you mean 'first_takes_all'?"),
        ("tests.assignors.functions:", "write 'package.module:function'"),
        ("tests.assignors.functions:number", "is int, not callable"),
        ("tests.assignors.functions:too_late", "is a coroutine"),
        ("tests.assignors.functions:three", "takes (a: 'Any', b: 'Any', c: 'Any')"),
        ("tests.assignors.functions:Needy", "cannot be called without arguments"),
        ("tests.assignors.functions:Impostor", "has the name 'naive', which is built in"),
        (7, "is a name, 'package.module:function' or a callable, not 7"),
    ],
)
@pytest.mark.usefixtures("functions")
def test_an_unusable_function_is_refused_by_name(spec: Any, message: str) -> None:
    with pytest.raises(AssignorError) as caught:
        resolve(spec)
    assert message in str(caught.value)


def test_installed_packages_add_names_through_entry_points(
    functions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[allocator.assignors]\n"
        "greedy = tests.assignors.functions:first_takes_all\n"
        "broken = tests.assignors.functions:nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert known_names() == ["broken", *BUILT_IN[:1], "greedy", *BUILT_IN[1:]]
    greedy = resolve("greedy")
    assert greedy.name == "greedy"
    assert compute(greedy, TWO)["m-1"] == everything("t", 11)
    with pytest.raises(AssignorError, match=r"'broken': entry point 'tests.assignors.functions:nothing' does not load"):
        resolve("broken")
    with pytest.raises(AssignorError, match=r"'gredy' \(did you mean 'greedy'\?\)"):
        resolve("gredy")


def test_a_function_declares_the_inputs_that_it_wants() -> None:
    def by_lag(view):
        return {}

    assert wants(resolve(by_lag)) == frozenset()
    by_lag.wants = ["load", "racks"]
    assert wants(resolve(by_lag)) == {"load", "racks"}
    assert wants(resolve("rack-aware")) == {"racks"}
    assert wants(resolve("sticky")) == frozenset()


@pytest.mark.parametrize("wanted", ["load", ["lag"], 3])
def test_unknown_inputs_are_refused(wanted: object) -> None:
    def function(view):
        return {}

    function.wants = wanted
    with pytest.raises(AssignorError, match="wants"):
        resolve(function)
