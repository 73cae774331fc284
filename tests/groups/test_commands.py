"""The orders of a group: valid content of their znode, and concurrent writers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.commands.command import KEPT_MS, KINDS, Command, CommandResult, Commands
from allocator.documents.checked import InvalidZnode
from allocator.errors import ConfigError, NoSuchCommand
from allocator.protocols.zookeeper.client.client import NoZnode
from allocator.protocols.zookeeper.command_store import CommandStore
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.types import TopicPartition
from tests.groups.zookeeper_sessions import session

NOW = 1_767_225_600_000
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cordon": {"member": "web1"},
    "evacuate": {"member": "web1"},
    "swap": {"old": "web1", "new": "web2"},
    "pin": {"partitions": {"t": "0-3,7"}, "place": {"rack": "a"}},
    "freeze": {},
    "pause": {"partitions": {"t": "5"}},
    "quarantine": {"partitions": {"t": "5"}},
    "skip": {"partitions": {"t": "5"}, "offset": 1 << 40},
    "seek": {"partitions": {"t": "5"}, "to": "timestamp:1767225600000"},
    "budget": {"at_once": 5, "per_minute": None},
    "canary": {"count": 2, "known": ["web1"], "promoted": []},
}


def command(kind: str = "cordon", now_ms: int = NOW, **more: Any) -> Command:
    arguments = more.pop("arguments", ARGUMENTS.get(kind))
    return Command.make(kind, arguments, who="alice@ops1", now_ms=now_ms, **more)


@pytest.mark.parametrize(
    ("kind", "arguments", "found"),
    [
        ("cordon", {"member": ""}, "names no member"),
        ("cordon", {"member": 7}, "names no member"),
        ("cordon", {}, "have to be member"),
        ("cordon", {"member": "a", "rack": "b"}, "have to be member"),
        ("pin", {"partitions": {"t": "3-1"}, "place": {"rack": "a"}}, "does not name partitions"),
        ("pin", {"partitions": {"t": "0-9999999"}, "place": {"rack": "a"}}, r"does not name partitions \((?!znode)"),
        ("pin", {"partitions": {"": "1"}, "place": {"rack": "a"}}, "a name has 1 to 1000"),
        ("pin", {"partitions": {"t" * 1001: "1"}, "place": {"rack": "a"}}, "a name has 1 to 1000"),
        ("pin", {"partitions": {}, "place": {"rack": "a"}}, "names no partitions"),
        ("pin", {"partitions": {"t": "1"}, "place": {"host": "a"}}, "is neither"),
        ("seek", {"partitions": {"t": "0-1000"}, "to": "5"}, "it names 1001 partitions, more than the 1000"),
        ("budget", {"at_once": 0, "per_minute": None}, "use freeze"),
        ("budget", {"at_once": True, "per_minute": None}, "is neither a number"),
        ("canary", {"count": -1, "known": [], "promoted": []}, "is not a number"),
        ("dance", {}, "there is no operator command 'dance'; known: budget, canary"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    kind: str, arguments: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        command(kind, arguments=arguments)


def test_a_command_that_would_have_expired_is_refused() -> None:
    with pytest.raises(ConfigError, match="expired already"):
        command(expires=NOW)


def test_a_command_of_a_later_version_stays_and_has_no_effect() -> None:
    document = json.loads(Commands((command("freeze"),)).encode())
    document["orders"].append({**document["orders"][0], "id": "o-00000001", "kind": "dance", "arguments": {"to": [1]}})
    document["orders"].append({**document["orders"][0], "id": "o-00000002", "kind": "pin", "arguments": {"to": [1]}})
    commands = Commands.decode("/x", json.dumps(document).encode())
    assert [each.fault is None for each in commands.entries] == [True, False, False]
    assert [each.kind for each in commands.in_force(NOW)] == ["freeze"]
    written = json.loads(commands.put(command("cordon"), NOW).encode())["orders"]
    assert written[1:3] == document["orders"][1:3]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
half_right = st.fixed_dictionaries(
    {
        "id": st.just("o-12345678") | json_values,
        "kind": st.sampled_from(sorted(KINDS)) | json_values,
        "arguments": st.sampled_from(sorted(ARGUMENTS)).map(ARGUMENTS.__getitem__) | json_values,
        "who": st.just("a") | json_values,
        "when": st.just(5) | json_values,
    },
    optional={"why": json_values, "expires": json_values, "results": json_values},
)


@given(
    st.binary(max_size=200)
    | st.lists(half_right, max_size=3).map(lambda o: json.dumps({"format": 1, "orders": o}).encode())
)
def test_garbage_is_refused_with_its_path_or_decoded_within_bounds(data: bytes) -> None:
    try:
        commands = Commands.decode("/x", data)
    except InvalidZnode as error:
        assert "/x" in str(error)
    else:
        for each in commands.entries:
            assert each.fault is not None or len(each.partitions) <= 1_000_000


def test_the_memory_of_commands_is_bounded() -> None:
    document = json.loads(Commands((command("pin"),)).encode())
    template = {**document["orders"][0], "arguments": {"partitions": {"t": "0-999998"}, "place": {"rack": "a"}}}
    document["orders"] = [{**template, "id": f"o-0000000{number}"} for number in range(2)]
    with pytest.raises(InvalidZnode, match="more than 1000000 partitions"):
        Commands.decode("/x", json.dumps(document).encode())
    with pytest.raises(InvalidZnode, match="bytes"):
        Commands.decode("/x", b"{" * 600_000)


def test_a_new_command_replaces_that_of_the_same_subject() -> None:
    commands = Commands()
    for each in (command("cordon"), command("budget"), command("cordon", arguments={"member": "web2"}), command("pin")):
        commands = commands.put(each, NOW)
    commands = commands.put(command("budget", arguments={"at_once": 9, "per_minute": 1}), NOW)
    commands = commands.put(command("cordon", why="again"), NOW)
    commands = commands.put(command("pin", arguments={**ARGUMENTS["pin"], "place": {"member": "web2"}}), NOW)
    assert [(each.kind, each.arguments.get("member")) for each in commands.entries] == [
        ("cordon", "web2"),
        ("budget", None),
        ("cordon", "web1"),
        ("pin", None),
    ]


def test_an_expired_command_has_no_effect_and_is_dropped_a_day_later() -> None:
    commands = Commands((command("freeze", expires=NOW + 10), command("cordon", expires=NOW + 20)))
    assert commands.next_expiry(NOW) == NOW + 10
    assert [each.kind for each in commands.in_force(NOW + 10)] == ["cordon"]
    assert commands.next_expiry(NOW + 20) is None
    late = NOW + 10 + KEPT_MS
    assert [each.kind for each in commands.put(command("budget"), late - 1).entries] == ["freeze", "cordon", "budget"]
    assert [each.kind for each in commands.put(command("budget"), late).entries] == ["cordon", "budget"]


def test_the_number_and_size_of_commands_are_limited() -> None:
    commands = Commands(tuple(command("cordon", arguments={"member": f"web{n}"}) for n in range(Commands.MAX_ENTRIES)))
    with pytest.raises(ConfigError, match="remove some first"):
        commands.put(command("freeze"), NOW)
    long = Commands(
        tuple(command("cordon", arguments={"member": f"web{n}"}, why="x" * 1000) for n in range(Commands.MAX_ENTRIES))
    )
    with pytest.raises(ConfigError, match="more than the 500000"):
        long.encode()


def test_a_command_that_is_carried_out_once_is_done_when_each_partition_is() -> None:
    once = command("seek", arguments={"partitions": {"t": "0-1"}, "to": "5"})
    commands = Commands((once,))
    for number in range(2):
        assert commands.in_force(NOW)
        parts = frozenset({TopicPartition("t", number)})
        commands = commands.with_results(once.id, [CommandResult(NOW, "m", parts, "sought")])
    assert commands.entries[0].done
    assert commands.in_force(NOW) == ()
    assert Commands.decode("/x", commands.encode()) == commands
    assert commands.without((), NOW + KEPT_MS).entries == ()


# -- in ZooKeeper ----------------------------------------------------------------------------------------------------


async def test_concurrent_writes_of_operators_all_succeed(zk_chroot: str, group: str) -> None:
    async with session(zk_chroot) as zk:
        store = CommandStore(zk, Paths("/allocator", group))
        with pytest.raises(NoZnode):
            await write(store, command("freeze"))
        await zk.ensure_path(store.paths.members)
        changed = asyncio.Event()
        assert (await store.read(changed.set)).entries == ()
        ten = [command("cordon", arguments={"member": f"web{n}"}) for n in range(10)]
        await asyncio.gather(*(write(store, each) for each in ten))
        await asyncio.wait_for(changed.wait(), 30)
        assert {each.id for each in (await store.read()).entries} == {each.id for each in ten}

        changed.clear()
        await store.read(changed.set)
        assert await store.remove([ten[0].id, ten[1].id], NOW) == (ten[0], ten[1])
        await asyncio.wait_for(changed.wait(), 30)
        with pytest.raises(NoSuchCommand, match=f"no operator command {ten[0].id}; there are"):
            await store.remove([ten[0].id, ten[2].id], NOW)
        assert len((await store.read()).entries) == 8

        once = command("seek", arguments={"partitions": {"t": "0"}, "to": "5"})
        await write(store, once)
        result = CommandResult(NOW, "m", once.partitions, "sought to 5")
        for _ in range(2):
            found = (await store.add_results(once.id, [result])).find(once.id)
            assert found is not None
            assert found.results == (result,)
        await zk.set(store.paths.commands, b"garbage")
        with pytest.raises(InvalidZnode):
            await write(store, command("freeze"))


async def test_a_command_is_refused_if_its_results_would_not_fit(zk_chroot: str, group: str) -> None:
    """Otherwise it would never be done, and each new owner would carry it out again."""
    async with session(zk_chroot) as zk:
        store = CommandStore(zk, Paths("/allocator", group))
        await zk.ensure_path(store.paths.members)
        seeks = [
            command("seek", arguments={"partitions": {"t": "0-998", f"u{to}": "0"}, "to": str(to)}) for to in range(5)
        ]
        given = [each for each in seeks if await put(store, each)]
        assert 0 < len(given) < 5
        for each in given:
            what = f"sought to {1 << 40} from {1 << 40}"
            results = [CommandResult(NOW, f"m-{0:016x}-{0:010}", frozenset({p}), what) for p in each.partitions]
            assert (await store.add_results(each.id, results)).find(each.id).done


async def write(store: CommandStore, given: Command) -> None:
    await store.change(lambda commands: commands.put(given, NOW))


async def put(store: CommandStore, given: Command) -> bool:
    try:
        await write(store, given)
    except ConfigError as error:
        assert "remove some first" in str(error)
        return False
    return True
