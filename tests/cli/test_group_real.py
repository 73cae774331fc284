"""`allocator group` on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.testing.batches import ProducedRecord
from allocator.types import OffsetAndMetadata
from tests.doctor.doctor_patient import Patient

NOWHERE = ["--zookeeper", "none"]


class Shell(Patient):
    """One group on one topic of three partitions with ten records each."""

    async def run(self, *arguments: str, brokers: bool = True) -> tuple[int, str, str]:
        """Exit code, output and errors of `allocator group ...`, in this process: to start one costs half a second."""
        where = [] if {"--zookeeper", "-c"} & {*arguments} else ["--zookeeper", self.zookeeper]
        where += ["--brokers", self.cluster.bootstrap] if brokers and "-c" not in arguments else []
        done = await asyncio.to_thread(CliRunner().invoke, main, ["group", *arguments, *where])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    async def json(self, *arguments: str, code: int = 0, brokers: bool = True) -> Any:
        found, out, err = await self.run(*arguments, "--json", brokers=brokers)
        assert found == code, out + err
        return json.loads(out)

    async def committed(self) -> dict[int, int]:
        async with KafkaClient(self.cluster.bootstrap) as client:
            found = await GroupOffsets(client, self.group).fetch(self.partitions)
        return {partition.partition: offset.offset for partition, offset in found.items()}


@contextlib.asynccontextmanager
async def ensemble(hosts: str) -> AsyncIterator[ZooKeeperClient]:
    zk = ZooKeeperClient(hosts)
    await zk.connect()
    try:
        yield zk
    finally:
        await zk.close()


@pytest.fixture
def shell(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Shell:
    topic = topic_factory(3)
    records = [ProducedRecord(None, b"%d" % n, p, 1_700_000_000_000 + n * 1000) for p in range(3) for n in range(10)]
    produce(kafka_cluster.bootstrap, topic, records)
    return Shell(kafka_cluster, topic, group, 3)


async def test_a_living_group_is_shown_with_owners_positions_lag_and_generation(shell: Shell) -> None:
    async with shell.consumer(client_id="billing-1", rack="r1") as consumer:
        await shell.consume(consumer, 30)
        found = await shell.json("describe", shell.group)
        assert found["state"] == "stable"
        assert found["generation"] == consumer.generation >= 1
        assert found["strategy"] == "naive"
        assert found["lag"] == 0
        assert found["unowned"] == []
        assert found["problems"] == []
        (member,) = found["members"]
        assert member["id"] == found["leader"] == consumer.member_id
        assert (member["client_id"], member["rack"], member["partitions"]) == ("billing-1", "r1", 3)
        assert [(p["owner"], p["committed"], p["log_end"], p["lag"]) for p in found["partitions"]] == [
            (consumer.member_id, 10, 10, 0)
        ] * 3

        code, out, _ = await shell.run("describe", shell.group)
        assert code == 0
        assert out.startswith(f"{shell.group}: stable, generation")
        assert "billing-1" in out

        groups = await shell.json("list", brokers=False)
        assert [(g["group"], g["members"], g["partitions"]) for g in groups["groups"]] == [(shell.group, 1, 3)]
        without = await shell.json("describe", shell.group, brokers=False)
        assert without["partitions"][0]["committed"] is None
        assert without["partitions"][0]["owner"] == consumer.member_id


async def test_offsets_of_a_cluster_that_the_group_no_longer_reads_are_reported(shell: Shell) -> None:
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
    path = choice_path("/allocator", shell.group)
    async with ensemble(shell.zookeeper) as zk:
        await choose_cluster(zk, path, ClusterChoice("new1:9092,new2:9092"))
        found = await shell.json("describe", shell.group, code=1)
        assert [problem for problem in found["problems"] if "new1:9092,new2:9092" in problem] == found["problems"]
        assert found["problems"]
        # the lists share one address, so they name the same cluster
        await choose_cluster(zk, path, ClusterChoice(f"new1:9092,{shell.cluster.bootstrap}"))
        assert (await shell.json("describe", shell.group))["problems"] == []
        await zk.set(path, b"rubbish")
        (problem,) = (await shell.json("describe", shell.group, code=1))["problems"]
        assert path in problem


async def test_a_group_that_has_ended_still_shows_its_offsets_and_lag(shell: Shell) -> None:
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
    produce(shell.cluster.bootstrap, shell.topic, [(None, b"more", 1)] * 4)
    found = await shell.json("offsets", shell.group)
    assert [p["lag"] for p in found["partitions"]] == [0, 4, 0]
    assert found["lag"] == 4
    code, out, _ = await shell.run("offsets", shell.group)
    assert code == 0
    assert len(out.splitlines()) == 4
    assert (await shell.json("describe", shell.group))["state"] == "empty"
    plan = await shell.json("delete", shell.group)
    assert (plan["executed"], plan["members_alive"], plan["committed"], plan["offsets_stay"]) == (False, [], 3, "")
    code, out, _ = await shell.run("delete", shell.group, "--keep-offsets", "--execute")
    assert code == 0
    assert "the offsets stay: --keep-offsets was given" in out
    assert await shell.committed() == {0: 10, 1: 10, 2: 10}
    assert (await shell.json("delete", shell.group, "--execute", *NOWHERE))["committed"] == 3
    assert await shell.committed() == {}
    again = await shell.json("delete", shell.group, "--execute", *NOWHERE, code=1)
    assert again["error"]["type"] == "NothingToDelete"


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", [0, 0, 0]),
        ("timestamp:1700000004500", [5, 5, 5]),
        ("timestamp:1800000000000", [10, 10, 10]),
        ("ago:20000d", [0, 0, 0]),
        ("3", [3, 3, 3]),
    ],
)
async def test_offsets_are_reset_only_with_execute(shell: Shell, to: str, offsets: list[int]) -> None:
    async with KafkaClient(shell.cluster.bootstrap) as client:
        await GroupOffsets(client, shell.group).commit({shell.partitions[0]: OffsetAndMetadata(7, "", -1)})
    plan = await shell.json("offsets", "reset", shell.group, "--to", to, *NOWHERE)
    assert plan["executed"] is False
    assert [(p["from"], p["to"]) for p in plan["partitions"]] == list(zip([7, None, None], offsets))
    assert await shell.committed() == {0: 7}
    code, out, _ = await shell.run("offsets", "reset", shell.group, "--to", to, *NOWHERE)
    assert code == 0
    assert out.startswith(f"brokers {shell.cluster.bootstrap}; ZooKeeper is not checked for members\n")
    assert "nothing was changed; add --execute to do it" in out

    done = await shell.json("offsets", "reset", shell.group, "--to", to, "--execute", *NOWHERE)
    assert done["executed"] is True
    assert await shell.committed() == dict(enumerate(offsets))


async def test_offsets_go_to_a_file_and_back(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    kept = {0: 7, 2: 1}
    async with KafkaClient(shell.cluster.bootstrap) as client:
        commits = {shell.partitions[p]: OffsetAndMetadata(at, "", -1) for p, at in kept.items()}
        await GroupOffsets(client, shell.group).commit(commits)
    _, out, _ = await shell.run("offsets", "show", shell.group, "--csv", *NOWHERE)
    assert out == f"{shell.topic},0,7\n{shell.topic},2,1\n"
    await asyncio.to_thread(file.write_text, out)
    await shell.json("offsets", "reset", shell.group, "--to", "latest", "--execute", *NOWHERE)
    assert await shell.committed() == {0: 10, 1: 10, 2: 10}
    done = await shell.json("offsets", "reset", shell.group, "--from-file", str(file), "--execute", *NOWHERE)
    assert [(each["partition"], each["to"]) for each in done["partitions"]] == list(kept.items())
    assert await shell.committed() == {**kept, 1: 10}
    for text, fault in (
        (f"{shell.topic},1,5\n{shell.topic},0,11\n", f"line 2, offset 11: {shell.topic}:0 has 0 to 10"),
        (f"{shell.topic},9,1\n", f"partition {shell.topic}:9 does not exist"),
        (f"{shell.topic},0,1\n{shell.topic},0,2\n", "line 2: .* comes twice"),
        (f"{shell.topic},0\n", "line 1: .* is not TOPIC,PARTITION,OFFSET"),
        ("", "has no offsets"),
    ):
        await asyncio.to_thread(file.write_text, text)
        code, _, err = await shell.run("offsets", "reset", shell.group, "--from-file", str(file), "--execute", *NOWHERE)
        assert code == 2
        assert re.search(fault, " ".join(err.split()))
    assert await shell.committed() == {**kept, 1: 10}


@pytest.mark.parametrize("storage", ["zookeeper", "both"])
async def test_a_reset_changes_the_offsets_where_the_group_keeps_them(shell: Shell, storage: str) -> None:
    """Once, it changed those in Kafka, and members continued at the old ones in ZooKeeper."""
    async with shell.consumer(offsets=storage) as consumer:
        await shell.consume(consumer, 30)
    for committed in (10, 4):
        shown = await shell.json("offsets", shell.group)
        assert {each["committed"] for each in shown["partitions"]} == {committed}
        await shell.json("offsets", "reset", shell.group, "--to", "4", "--execute")
    async with shell.consumer(offsets=storage) as again:
        await shell.consume(again, 18)


async def test_a_reset_is_refused_while_members_are_alive(shell: Shell) -> None:
    async with shell.consumer(client_id="billing-1") as consumer:
        await shell.consume(consumer, 30)
        plan = await shell.json("offsets", "reset", shell.group, "--to", "earliest")
        (alive,) = plan["members_alive"]
        assert alive == f"billing-1@{socket.gethostname()}:{os.getpid()}#{int(consumer.member_id[-10:])}"
        code, _out, err = await shell.run("offsets", "reset", shell.group, "--to", "earliest", "--execute")
        assert code == 1
        assert f"has members: {alive};" in err
        refused = await shell.json("offsets", "reset", shell.group, "--to", "earliest", "--execute", code=1)
        assert refused["error"]["type"] == "MembersAlive"
        assert await shell.committed() == {0: 10, 1: 10, 2: 10}
    await shell.json("offsets", "reset", shell.group, "--to", "earliest", "--execute")
    assert await shell.committed() == {0: 0, 1: 0, 2: 0}
    async with shell.consumer() as again:
        await shell.consume(again, 30)  # all of them come again


@pytest.mark.parametrize("command", [["offsets", "reset", "--to", "earliest"], ["delete"]])
async def test_a_group_is_not_changed_without_a_check_for_members(shell: Shell, command: list[str]) -> None:
    group_command, arguments = command[:-2] or command, command[-2:] if len(command) > 2 else []
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
        for execute in ([], ["--execute"]):
            full = ["group", *group_command, shell.group, *arguments, *execute, "--brokers", shell.cluster.bootstrap]
            done = await asyncio.to_thread(CliRunner().invoke, main, full)
            assert done.exit_code == 2
            assert "Give --zookeeper or --config, or --zookeeper none " in done.stderr
            mistyped = [*full, "--zookeeper", shell.zookeeper, "--root", "/alocator"]
            done = await asyncio.to_thread(CliRunner().invoke, main, mistyped)
            assert done.exit_code == 1
            assert f"has no group '{shell.group}' under /alocator" in done.stderr
        assert await shell.committed() == {0: 10, 1: 10, 2: 10}
        code, out, _ = await shell.run(*group_command, shell.group, *arguments)
        assert code == 0
        assert out.startswith(f"brokers {shell.cluster.bootstrap}; ZooKeeper {shell.zookeeper}, root /allocator\n")


async def test_a_reset_sees_the_members_of_older_clients(shell: Shell) -> None:
    async with KafkaClient(shell.cluster.bootstrap) as client:
        await GroupOffsets(client, shell.group).commit({shell.partitions[0]: OffsetAndMetadata(7, "", -1)})
    async with ensemble(shell.zookeeper) as zk:
        await zk.ensure_path(f"/consumers/{shell.group}/ids")
        await zk.create(f"/consumers/{shell.group}/ids/old", b"{}", ephemeral=True)
        refused = await shell.json("offsets", "reset", shell.group, "--to", "earliest", "--execute", code=1)
        assert refused["error"]["type"] == "MembersAlive"
        assert await shell.committed() == {0: 7}


async def test_members_of_older_clients_are_known_while_kafka_is_away(shell: Shell) -> None:
    async with ensemble(shell.zookeeper) as zk:
        await zk.ensure_path(f"/consumers/{shell.group}/ids")
        await zk.create(f"/consumers/{shell.group}/ids/old", b"{}", ephemeral=True)
        away = ["--brokers", "127.0.0.1:1", "--timeout", "1"]
        code, out, _ = await shell.run("describe", shell.group, *away, brokers=False)
        assert (code, out.split(",")[0]) == (1, f"{shell.group}: unknown")
        assert f"has 1 members under /consumers/{shell.group}" in out
        assert "offsets are not known" in out
        assert "no Kafka broker responded" in (await shell.run("describe", "other", *away, brokers=False))[2]


async def test_a_paused_group_is_called_paused_and_is_not_deleted(shell: Shell) -> None:
    """Its services wait, and are in no list of members. Once, a deletion let them join again at once."""
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
    async with ensemble(shell.zookeeper) as zk:
        path = choice_path("/allocator", shell.group)
        await choose_cluster(zk, path, ClusterChoice("other:9092", frozen=True))
        assert (await shell.run("describe", shell.group))[1].startswith(f"{shell.group}: paused")
        assert [each["state"] for each in (await shell.json("list"))["groups"]] == ["paused"]
        where = ["--zookeeper", shell.zookeeper, "--brokers", shell.cluster.bootstrap, "--interval", "0", "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", shell.group, *where])
        found = {each["id"] for each in json.loads(done.stdout)["findings"]}
        assert "paused" in found
        assert "no-members" not in found
        out = (await shell.run("delete", shell.group))[1]
        assert "services that follow the group to other:9092 will use the brokers in their own settings" in out
        assert "would be refused: the group is paused" in out
        refused = await shell.json("delete", shell.group, "--execute", code=1)
        assert refused["error"]["type"] == "GroupPaused"
        assert await shell.committed() == {0: 10, 1: 10, 2: 10}
        await choose_cluster(zk, path, ClusterChoice())
        assert (await shell.json("describe", shell.group))["state"] == "empty"
        await shell.json("delete", shell.group, "--execute")
        assert await shell.committed() == {}


async def test_only_the_named_topics_are_reset(shell: Shell, topic_factory: Callable[..., str]) -> None:
    other = topic_factory(1)
    produce(shell.cluster.bootstrap, other, [b"x"])
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
    await shell.json("offsets", "reset", shell.group, "--to", "latest", "--topic", other, "--execute")
    assert await shell.committed() == {0: 10, 1: 10, 2: 10}
    found = await shell.json("offsets", shell.group)
    assert {(p["topic"], p["committed"]) for p in found["partitions"]} == {(shell.topic, 10), (other, 1)}


async def test_commands_report_a_missing_chroot_and_do_not_create_it(shell: Shell) -> None:
    where = ["--zookeeper", shell.zookeeper, "--brokers", shell.cluster.bootstrap, "--json"]
    reset = ["group", "offsets", "reset", shell.group, "--to", "latest", "--topic", shell.topic, "--execute"]
    for command in (reset, ["top", "--once"], ["doctor", "--interval", "0"]):
        done = await asyncio.to_thread(CliRunner().invoke, main, [*command, *where])
        assert done.exit_code == 1
        assert f"has no znode /{shell.group}" in done.stdout
    async with ensemble(shell.cluster.zookeeper) as zk:
        assert await zk.exists(f"/{shell.group}") is None
    assert await shell.committed() == {}, "members under another chroot may exist, and would overwrite these"


async def test_refusals_name_what_is_wrong(shell: Shell) -> None:
    async with shell.consumer() as consumer:
        await shell.consume(consumer, 30)
    missing = await shell.json("describe", "missing", code=1)
    assert missing["error"]["type"] == "NoSuchGroup"
    assert "ZooKeeper has no group 'missing' under /allocator" in missing["error"]["message"]

    code, _, err = await shell.run("offsets", "reset", shell.group, "--to", "11")
    assert code == 2
    assert f"offset 11 is outside the log: {shell.topic}:0 has 0 to 10" in err
    code, _, err = await shell.run("offsets", "reset", shell.group, "--to", "sometime")
    assert code == 2
    assert "'sometime' is not shift:-100, earliest, latest" in err
    code, _, err = await shell.run("offsets", "reset", shell.group, "--to", "latest", "--topic", "no-such-topic")
    assert code == 1
    assert "no-such-topic" in err
    code, _, err = await shell.run("offsets", shell.group, brokers=False)
    assert code == 2
    assert "no brokers were given" in err


@pytest.mark.parametrize("zookeeper", [True, False])
async def test_a_group_of_kafkas_own_protocol_is_shown_as_its_coordinator_has_it(
    shell: Shell, tmp_path: Path, zookeeper: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[kafka]\nbrokers = "{shell.cluster.bootstrap}"\n'
        + (f'[zookeeper]\nhosts = "{shell.cluster.zookeeper}"\n' if zookeeper else "")
        + f'[group]\nname = "{shell.group}"\ntopics = ["{shell.topic}"]\nmembership = "kafka"\n'
        + '[handler]\ntarget = "a:b"\n'
    )

    def run(*arguments: str) -> Awaitable[tuple[int, str, str]]:
        return shell.run(*arguments, "-c", str(config))

    async with shell.consumer(membership="kafka", client_id="billing-1") as consumer:
        await shell.consume(consumer, 30)
        code, out, err = await run("describe", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert (found["state"], found["generation"], found["lag"]) == ("stable", None, 0)
        (member,) = found["members"]
        assert (member["client_id"], member["topics"], member["partitions"]) == ("billing-1", [shell.topic], 3)
        assert (member["weight"], member["pid"]) == (None, None), "the coordinator does not know them"
        assert member["name"].startswith("billing-1@127.0.0.1#")
        code, out, err = await run("freeze", shell.group)
        assert code == 1
        assert "such commands have no effect" in err
        assert {each["owner"] for each in found["partitions"]} == {member["id"]}
        code, out, err = await run("describe")
        assert out.startswith(
            f"{shell.group}: stable (by Kafka's coordinator), 1 members, 3 of 3 partitions owned, lag 0"
        )
        code, out, err = await run("offsets", "reset", "--to", "earliest", "--execute")
        assert code == 1
        assert f"has members: {member['name']} (Kafka);" in err
        code, out, err = await run("delete", shell.group, "--execute")
        assert code == 1
        assert f"has members: {member['name']} (Kafka);" in err
    code, out, err = await run("describe", "--json")
    assert (json.loads(out)["state"], json.loads(out)["members"]) == ("empty", [])
    code, out, err = await run("offsets", "reset", "--to", "earliest", "--execute")
    assert code == 0, err
    assert await shell.committed() == {0: 0, 1: 0, 2: 0}
    code, out, err = await run("delete", shell.group, "--execute")
    assert code == 0, err
    assert await shell.committed() == {}


async def test_commands_about_what_the_cluster_does_not_have_are_refused_or_say_so(shell: Shell) -> None:
    topic, group = shell.topic, shell.group
    wrong = {
        ("skip", f"{topic}:0", "10"): f"offset 10 is outside the log: {topic}:0 has 0 to 9",  # a later record has it
        ("skip", f"{topic}:7", "3"): f"partition {topic}:7 does not exist",
        ("skip", f"x{topic}:0", "3"): f"the cluster has no topic 'x{topic}'",
        ("seek", f"{topic}:1-4", "--to", "earliest"): f"partitions {topic}:3, {topic}:4 do not exist",
    }
    waits = f"the command waits for partitions that the cluster does not have: {topic}:3"
    async with shell.consumer(client_id="one"):
        for (kind, *words), why in wrong.items():
            for options in ([], ["--dry-run"]):
                code, _, err = await shell.run(kind, group, *words, *options)
                assert (code > 0, why in err) == (True, True), err
        assert (await shell.json("commands", group))["commands"] == []
        assert (await shell.run("skip", group, f"{topic}:0", "9"))[0] == 0
        for kind, *words in (("quarantine",), ("pause",), ("pin", "one")):
            code, _, err = await shell.run(kind, group, f"{topic}:2-3", *words)
            assert (code, waits in err) == (0, True), err
        code, out, err = await shell.run("pause", group, f"{topic}:3", "--dry-run")
        assert (code, waits in err) == (0, True), out + err
        # the brokers may be the reason to pause
        away = await asyncio.to_thread(
            CliRunner().invoke, main, ["group", "pause", group, f"{topic}:0", "--timeout", "2", "--brokers"]
            + ["127.0.0.1:1", "--zookeeper", shell.zookeeper],
        )  # fmt: skip
        assert (away.exit_code, "it is not known whether the partitions exist" in away.stderr) == (0, True), away.output
        kinds = [each["kind"] for each in (await shell.json("commands", group))["commands"]]
        assert kinds == ["skip", "quarantine", "pause", "pin", "pause"]


async def test_members_under_kiels_paths_are_reported(shell: Shell) -> None:
    async with shell.consumer(
        membership="kiel", zookeeper=shell.zookeeper, offsets="both", auto_commit_interval_s=None
    ) as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 3, 30, "its partitions")
        code, out, err = await shell.run("describe", shell.group)
        hint = f"group '{shell.group}' has 1 members under /kiel/groups/{shell.group}/members"
        assert (code, out.split(",")[0]) == (1, f"{shell.group}: unknown"), "as in the list"
        assert hint in " ".join(out.split())
        assert f"allocator doctor {shell.group}" in " ".join(out.split())
        await shell.consume(consumer, 30)
        code, out, err = await shell.run("describe", shell.group)
    assert code == 1
    assert hint in " ".join((out + err).split())
    assert "partition" in out, "its offsets are shown too"


async def test_a_plan_that_is_applied_gives_its_budget_before_its_moves(shell: Shell) -> None:
    async with shell.consumer(client_id="a") as first, shell.consumer(client_id="b") as second:
        await wait_until_async(lambda: len(first.assignment()) * len(second.assignment()) == 2, 30, "both to have some")
        code, _, err = await shell.run("plan", shell.group, "--evacuate", "a", "--at-once", "1", "--apply")
        assert code == 0, err
        commands = (await shell.json("commands", shell.group))["commands"]
        assert [each["kind"] for each in commands] == ["budget", "evacuate"]


@pytest.mark.parametrize("to", ["ago:1s", "2026-01-31T12:00:00Z", "earliest"])
async def test_a_reset_to_a_time_on_brokers_without_times_says_so(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture, to: str
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="0.8.2.2")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    given = ["--to", to, "--topic", topic, "--brokers", cluster.bootstrap, *NOWHERE]
    done = await asyncio.to_thread(CliRunner().invoke, main, ["group", "offsets", "reset", group, *given])
    assert done.exit_code == 0, done.output
    assert ("may be far from the time" in caplog.text) is (to != "earliest")
