"""Living groups of Kafka's share groups (KIP-932) and of Kafka Streams (KIP-1071): no command takes them for empty."""

from __future__ import annotations

import asyncio
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.operate import GroupReport, kafka_group
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.outside.java_tools import command

STREAMS_GROUP_HEARTBEAT = 88


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def array(items: list[bytes] | None) -> bytes:
    return b"\0" if items is None else bytes([len(items) + 1]) + b"".join(items)


def heartbeat(group: str, member: str, topic: str) -> bytes:
    """The first heartbeat of a member of Kafka Streams, with a topology of one subtopology that reads the topic.

    Java's client for it is a whole application, and no client library for Python has the message.
    """
    none, tags = array([]), b"\0"
    subtopology = text("0") + array([text(topic)]) + none * 5 + tags
    topology = b"\x01" + struct.pack(">i", 0) + array([subtopology]) + tags
    body = text(group) + text(member) + struct.pack(">ii", 0, 0) + text(None) * 2 + struct.pack(">i", 60_000)
    body += topology + none * 3 + text(str(uuid.uuid4())) + b"\xff" + none + array(None) * 2 + b"\0" + tags
    header = struct.pack(">hhih", STREAMS_GROUP_HEARTBEAT, 0, 1, 4) + b"test" + tags
    return struct.pack(">i", len(header + body)) + header + body


def send(address: str, request: bytes) -> int:
    """Returns the error code of the response."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(request)
        (length,) = struct.unpack(">i", answers.read(4))
        # behind the correlation id, the tags and the throttle time
        return int.from_bytes(answers.read(length)[9:11], "big")


@asynccontextmanager
async def streams_member(cluster: LocalCluster, topic: str, group: str, _: Path) -> AsyncIterator[None]:
    member = str(uuid.uuid4())

    async def joined() -> bool:
        return await asyncio.to_thread(send, cluster.bootstrap, heartbeat(group, member, topic)) == 0

    await wait_until_async(joined, 60, "the coordinator to take the member")
    yield


@asynccontextmanager
async def share_member(cluster: LocalCluster, topic: str, group: str, output: Path) -> AsyncIterator[None]:
    """Java's share consumer."""
    arguments = ["--topic", topic, "--group-id", group, "--bootstrap-server", cluster.bootstrap]
    argv = command(str(cluster.version), "org.apache.kafka.tools.VerifiableShareConsumer", *arguments)
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*argv, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("member", [streams_member, share_member])
async def test_a_living_group_is_not_taken_for_empty(
    member: Any, cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, cluster)
    where = ["--brokers", cluster.bootstrap, "--zookeeper", "none"]

    async def run(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *where])
        return done.exit_code, " ".join(done.output.split())

    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        if member is streams_member:  # share groups have no committed offsets
            store = GroupOffsets(client, group)
            await store.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
            await store.close()
        async with member(cluster, topic, group, tmp_path / "output"):

            async def lives() -> bool:
                found = await kafka_group(client, group)
                return found is not None and found.coordinated is not None and not found.coordinated.idle

            await wait_until_async(lives, 60, "the coordinator to report the members")
            code, out = await run("group", "describe", group)
            assert (code, out.split(",")[0]) == (1, f"{group}: unknown (by Kafka's coordinator)")
            assert "members that are not consumers" in out
            found = await kafka_group(client, group)
            assert found is not None
            assert GroupReport(found).phase == "unknown"  # as on the page
            assert "no-members" not in (await run("doctor", group, "--interval", "0"))[1]
            changes = [["group", "offsets", "reset", group, "--to", "earliest", "--topic", topic]]
            changes.append(["group", "delete", group])
            if member is streams_member:
                restore = str(tmp_path / "restore.json")
                changes.append(["offsets", "copy", group, f"{group}-2", "--restore-file", restore])
            for refused in changes:
                code, out = await run(*refused, "--execute")
                assert code == 1
                assert f"group {group!r} has members: members that are not consumers" in out
