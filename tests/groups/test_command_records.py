"""Records of a compacted topic become the commands of a group."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import TopicPartition
from allocator.commands.command import Command, CommandResult, Commands
from allocator.errors import ConfigError
from allocator.protocols.command_records import MAX_BYTES, CommandRecords, result_record

NOW = 1_767_225_600_000
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
Entry = tuple[Optional[bytes], Optional[bytes]]


def a_command(number: int, kind: str = "pause", partitions: str = "0", **more: Any) -> Command:
    arguments = {"partitions": {"t": partitions}, **({"to": "5"} if kind == "seek" else {})}
    return Command(f"o-{number:08x}", kind, arguments, "alice", NOW, **more)


def folded(entries: list[Entry]) -> CommandRecords:
    records = CommandRecords()
    for key, value in entries:
        records.add(key, value)
    return records


def compacted(entries: list[Entry], dirty: int) -> list[Entry]:
    """A log as Kafka may leave it after compaction: before `dirty`, only the last record of each key, perhaps
    without tombstones."""
    last = {key: offset for offset, (key, _) in enumerate(entries)}
    return [
        entry
        for offset, entry in enumerate(entries)
        if offset >= dirty or (last[entry[0]] == offset and entry[1] is not None)
    ]


commands = st.builds(
    a_command, st.integers(0, 5), st.sampled_from(["pause", "quarantine", "seek"]), st.sampled_from(["0", "1", "0-1"])
)
results = st.builds(
    lambda number, partition, what: result_record(
        f"o-{number:08x}", CommandResult(NOW, "m", frozenset({TopicPartition("t", partition)}), what)
    ),
    st.integers(0, 5),
    st.integers(0, 1),
    st.sampled_from(["sought", "not kept"]),
)
own_keys = st.one_of(
    st.integers(0, 5).map(lambda number: b"o-%08x" % number),
    st.integers(0, 5).map(lambda n: b"result/o-%08x/%016x" % (n, n)),
)
garbage = st.tuples(
    st.one_of(st.none(), st.binary(max_size=20), own_keys),
    st.one_of(
        st.none(),
        st.binary(max_size=40),
        st.sampled_from([b"[]", b'{"format":2}', b'{"format":1}', b'{"format":1,"id":"o-00000001","kind":"pause"}']),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=8,
        ).map(
            lambda value: json.dumps({"format": 1, "id": "o-00000001", "kind": "pause", "arguments": value}).encode()
        ),
    ),
)
steps = st.lists(
    st.one_of(
        commands.map(lambda command: ("put", command)),
        st.integers(0, 5).map(lambda number: ("remove", f"o-{number:08x}")),
        results.map(lambda entry: ("raw", entry)),
        garbage.map(lambda entry: ("raw", entry)),
    ),
    max_size=25,
)


@given(steps, st.data())
def test_readers_derive_the_commands_that_were_put_and_not_removed_after_any_compaction(
    steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    log: list[Entry] = []
    for action, argument in steps:
        records = folded(log)
        before = records.commands
        if action == "raw":
            log.append(argument)
            continue
        after = before.put(argument, NOW) if action == "put" else before.without([argument], NOW)
        log += records.change(after)
        now = folded(log).commands
        # in another order, where one was put as it was
        assert {each.id: each.arguments for each in now.entries} == {each.id: each.arguments for each in after.entries}
    dirty = data.draw(st.integers(0, len(log)))
    small = CommandRecords()
    for key, value in compacted(log, dirty):
        small.add(key, value)
    assert small.commands == folded(log).commands


def test_concurrent_writes_leave_one_command_and_its_removal_leaves_none() -> None:
    seen = folded([])
    log: list[Entry] = [
        *seen.change(seen.commands.put(a_command(1), NOW)),
        *seen.change(seen.commands.put(a_command(2), NOW)),
    ]
    records = folded(log)
    assert [each.id for each in records.commands.entries] == ["o-00000002"]
    log += records.change(records.commands.without(["o-00000002"], NOW))
    assert folded(log).commands == Commands()
    assert [key for key, value in log[2:] if value is None] == [b"o-00000001", b"o-00000002"], "the older one first"


def test_results_of_several_owners_end_a_command_and_go_with_it() -> None:
    command = a_command(1, "seek", "0-1")
    records = folded([])
    log: list[Entry] = [*records.change(records.commands.put(command, NOW))]
    log.append(result_record(command.id, CommandResult(NOW, "a", frozenset({ZERO}), "sought to 5")))
    log.append(result_record(command.id, CommandResult(NOW, "b", frozenset({ONE}), "sought to 5 from 9")))
    records = folded(log)
    (found,) = records.commands.entries
    assert found.done
    assert [each.by for each in found.results] == ["a", "b"]
    gone = records.change(records.commands.without([command.id], NOW))
    assert len(gone) == 3
    assert all(value is None for _, value in gone)


def test_memory_is_bounded_and_further_commands_are_refused() -> None:
    records = CommandRecords()
    for number in range(20):
        records.add(b"o-%08x" % number, b"x" * (MAX_BYTES // 8))
    with pytest.raises(ConfigError, match="remove some first"):
        records.change(records.commands.put(a_command(99), NOW))
