"""A consumer decodes records by a schema registry, and waits while the registry is unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer, Record, TopicPartition
from allocator.errors import DeserializationError
from allocator.schemas import RegistryDeserializer
from allocator.testing import LocalCluster, wait_until_async
from tests.joining import joined
from tests.schemas.schema_registry import avro, framed, registry

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "schema-registry.md"
V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
V2 = {"type": "record", "name": "Order", "fields": [*V1["fields"], {"name": "to", "type": "string", "default": ""}]}
FIRST, SECOND, WRONG = framed(1, avro(V1, {"id": 1})), framed(2, avro(V2, {"id": 2, "to": "b"})), b"text"


async def test_a_consumer_waits_for_the_registry_and_skips_records_that_cannot_be_decoded(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, refused = topic_factory(1), topic_factory(1)
    partition = TopicPartition(topic, 0)
    values = [(b"k", value, 0) for value in (FIRST, WRONG, SECOND)]
    await asyncio.get_running_loop().run_in_executor(None, kafka_cluster.produce, topic, values)
    good = {f"/schemas/ids/{n}": {"schema": json.dumps(each)} for n, each in ((1, V1), (2, V2))}
    responses: dict[str, Any] = dict.fromkeys(good, 503)
    requests: list[str] = []
    kafka = {
        "brokers": kafka_cluster.bootstrap,
        "zookeeper": f"{kafka_cluster.zookeeper}/{group}",
        "session_timeout_s": 15.0,
    }
    async with registry(responses, requests) as url:
        orders = RegistryDeserializer(url, reader_schema=V2, timeout_s=30)
        async with Consumer(topic, **joined(group=group, value_deserializer=orders, **kafka)) as consumer:  # type: ignore[arg-type]
            reader = asyncio.ensure_future(consumer.getone(60))
            await wait_until_async(lambda: caplog.text.count("trying again") >= 2, 60, "warnings")
            assert consumer.assignment() == {partition}
            assert not reader.done()
            reader.cancel()  # as a timeout does; the batch is kept
            await asyncio.wait({reader})
            responses.update(good)
            record = await consumer.getone(60)
            assert record.value == {"id": 1, "to": ""}
            with pytest.raises(DeserializationError, match=f"{topic}:0.*no schema id"):
                await consumer.getone(60)
            record = await consumer.getone(60)
            assert record.value == {"id": 2, "to": "b"}

        seen: list[Any] = []

        def handle(record: Record) -> None:
            seen.append(record.value)

        again = RegistryDeserializer(url, reader_schema=V2, timeout_s=30)
        async with Consumer(topic, **joined(group=f"{group}-2", value_deserializer=again, **kafka)) as consumer:  # type: ignore[arg-type]
            work = asyncio.ensure_future(
                consumer.process(handle, dead_letter_on=[DeserializationError], dead_letter_topic=refused)
            )
            async with Consumer(refused, group=None, membership="fixed", brokers=kafka_cluster.bootstrap) as letters:
                letters_read = asyncio.ensure_future(letters.getone(60))
                await asyncio.wait({letters_read, work}, return_when=asyncio.FIRST_COMPLETED)
                letter = letters_read.result()
            assert letter.value == WRONG, "as it came"
            await wait_until_async(lambda: len(seen) == 2, 60, lambda: f"two records, not {seen}")
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        assert seen == [{"id": 1, "to": ""}, {"id": 2, "to": "b"}]


async def test_the_example_of_the_page_prints_the_decoded_records(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1)
    values = [(b"k", framed(1, avro(V1, {"id": 17})), 0)]
    await asyncio.get_running_loop().run_in_executor(None, kafka_cluster.produce, topic, values)
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    async with registry({"/schemas/ids/1": {"schema": json.dumps(V1)}}, []) as url:
        for shown, here in (
            ("https://user:password@registry:8081", url),
            ('"orders"', f'"{topic}"'),
            ("kafka:9092", kafka_cluster.bootstrap),
            ("zk:2181", kafka_cluster.zookeeper),
            ('"billing"', f'"{group}"'),
        ):
            assert shown in code
            code = code.replace(shown, here)
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            assert program.stdout is not None
            assert await asyncio.wait_for(program.stdout.readline(), 120) == b"17 EUR\n"
        finally:
            program.kill()
            await program.wait()
