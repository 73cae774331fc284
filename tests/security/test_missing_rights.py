"""Commands name the right that a user lacks, and do not call a topic missing that brokers hide from the user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka.admin import ACLOperation, ResourceType

from allocator import Consumer, Kafka
from allocator.cli.commands import main
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from tests.secured import USER, by_sasl, denied, with_an_authorizer

VERSIONS = ["3.9.1", *(pytest.param(each, marks=pytest.mark.long) for each in ("1.1.1", "2.8.2", NEWEST))]
REPORTS_RIGHTS = (2, 3)


class Settings:
    """A settings file for `USER`, with a topic and a dead-letter topic."""

    def __init__(self, cluster: LocalCluster, group: str, topics: tuple[str, str], path: Path) -> None:
        self.topic, self.dead, self.group = *topics, group
        self.file = path / "orders.toml"
        sections: dict[str, dict[str, Any]] = {
            "kafka": {"brokers": [by_sasl(cluster)], **USER},
            "zookeeper": {"hosts": cluster.zookeeper} if cluster.zookeeper else {},
            "group": {"name": group, "topics": [self.topic], "membership": "kafka"},
            "handler": {"target": "tests.daemon.handlers_under_test:plain", "dead_letter_topic": self.dead},
        }
        lines = []
        for name, values in sections.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        self.file.write_text("\n".join(lines))

    async def run(self, *words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*words, "--config", str(self.file)])

    async def until_named(self, *words: str, right: str) -> None:
        """Runs a command until it names the right; before that, the brokers may not know the rule yet."""
        results: list[str] = []

        async def named() -> bool:
            done = await self.run(*words)
            results.append(done.output)
            return done.exit_code == 1 and right in done.output

        await wait_until_async(named, 30, lambda: f"{right} in {results[-1:]}")

    async def check(self) -> dict[str, dict[str, Any]]:
        arguments = ["run", str(self.file), "--check", "--connect", "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        found = json.loads(done.stdout)
        assert done.exit_code == (0 if found["ok"] else 1)
        return {each["what"]: each for each in found["checks"]}

    async def until_failed(self, what: str) -> dict[str, Any]:
        """Checks until only the check `what` fails. Returns it."""
        failed: list[Any] = []

        async def only_this() -> bool:
            failed[:] = [each for each in (await self.check()).values() if not each["ok"]]
            return [each["what"] for each in failed] == [what]

        await wait_until_async(only_this, 30, lambda: f"{what} in {failed}")
        found: dict[str, Any] = failed[0]
        return found


@pytest.fixture
def make(cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path) -> Callable[..., Any]:
    async def make(kafka: str) -> tuple[LocalCluster, Settings]:
        cluster = await with_an_authorizer(cluster_factory, kafka)
        topic, dead = [await asyncio.to_thread(topic_factory, 1, 1, None, cluster) for _ in range(2)]
        return cluster, Settings(cluster, group, (topic, dead), tmp_path)

    return make


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_commands_name_the_missing_right_of_a_hidden_topic(
    kafka: str, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, it = await make(kafka)
    read = f"not authorised to read topic {it.topic!r}; grant this user READ and DESCRIBE on it"
    describe = f"not authorised to describe topic {it.topic!r}; grant this user DESCRIBE on it"
    async with denied(cluster, ResourceType.TOPIC, it.topic):
        await it.until_named("records", it.topic, right=read)
        await it.until_named("deadletters", "list", it.topic, right=read)
        await it.until_named(
            "group", "offsets", "reset", it.group, "--topic", it.topic, "--to", "latest", right=describe
        )
    settled = f"{it.dead}.settled"
    async with denied(cluster, ResourceType.TOPIC, settled):
        await it.until_named(
            "deadletters", "redrive", it.dead, "--execute", right=f"not authorised to write topic {settled!r}"
        )
        assert (await it.run("deadletters", "list", it.dead)).exit_code == 0
        assert (
            f"settled letters, if there are any, count as open: not authorised to read topic {settled!r}" in caplog.text
        )
    done = await it.run("records", it.topic + "-x")
    assert "the cluster has no topic" in done.output, "a missing topic is not forbidden"


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_the_check_before_a_start_names_each_missing_right(kafka: str, make: Any) -> None:
    cluster, it = await make(kafka)
    topic, dead, group = f"topic {it.topic}", f"topic {it.dead} (dead letters)", "group coordinator"
    assert all(each["ok"] for each in (await it.check()).values())
    async with denied(cluster, ResourceType.TOPIC, it.topic):
        found = await it.until_failed(topic)
        assert found["found"] == f"not authorised to read topic {it.topic!r}"
        assert found["remedy"] == "grant this user READ and DESCRIBE on it"
    if tuple(map(int, kafka.split("."))) > REPORTS_RIGHTS:
        async with denied(cluster, ResourceType.TOPIC, it.topic, ACLOperation.READ):
            assert "READ" in (await it.until_failed(topic))["remedy"]
        async with denied(cluster, ResourceType.TOPIC, it.dead, ACLOperation.WRITE):
            assert (await it.until_failed(dead))["found"] == f"not authorised to write topic {it.dead!r}"
    async with denied(cluster, ResourceType.GROUP, it.group, ACLOperation.READ):
        assert "GROUP_AUTHORIZATION_FAILED" in (await it.until_failed(group))["found"]


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_the_check_and_the_doctor_name_the_right_to_operator_commands(kafka: str, make: Any) -> None:
    """Without it, the service starts and ignores operator commands."""
    cluster, it = await make(kafka)
    commands = f"{it.group}.orders"
    right = f"not authorised to read topic {commands!r}", "grant this user READ and DESCRIBE on it"
    membership = Kafka(session_timeout_s=20.0)
    async with Consumer(it.topic, brokers=cluster.bootstrap, group=it.group, membership=membership) as member:
        await wait_until_async(lambda: len(member.assignment()) == 1, 60, "an assignment")
        async with denied(cluster, ResourceType.TOPIC, commands):
            found = await it.until_failed(f"topic {commands} (operator commands)")
            assert (found["ok"], found["found"], found["remedy"]) == (None, *right)
            await it.until_named("doctor", it.group, "--interval", "0", right="; ".join(right))
            described = await it.run("group", "describe", it.group, "--json")
            assert described.exit_code == 0, "members and offsets are complete"
            assert json.loads(described.stdout)["problems"] == [
                f"the operator commands are not known: {'; '.join(right)}"
            ]
        assert f"topic {commands} (operator commands)" not in await it.check()
