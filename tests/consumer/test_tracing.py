"""Spans for OpenTelemetry, by the SDK's in-memory exporter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from allocator import Consumer, ConsumerGroup, ConsumerGroupConfig
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.record import Record
from allocator.core.telemetry.measures import Measures
from allocator.core.telemetry.tracing import configure_spans, handling
from allocator.errors import CommitFailed
from allocator.handlers.handlers import Handler, traced
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.joining import joined

TRACE, WRITER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Kept:
    """The spans up to now."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The process has a provider; a real one can be set only once."""
    kept = Kept()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: kept.provider)
    return kept


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def record(*headers: tuple[str, bytes]) -> Record:
    return Record("orders", 3, 17, 0, None, b"key", b"value", list(headers))


async def test_a_consumer_creates_spans_of_fetches_calls_commits_and_rebalances(
    spans: Kept, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(2)
    written = f"00-{TRACE}-{WRITER}-01".encode()
    produce(kafka_cluster.bootstrap, topic, [ProducedRecord(None, b"one", 0, headers=[("traceparent", written)])])
    where = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}

    async def handle(record: Record) -> None:
        await consumer.commit({(record.topic, record.partition): record.offset + 1})
        handled.set()

    handled = asyncio.Event()
    async with Consumer(topic, **joined(**where, group=group, client_id="it", max_wait_s=0.1)) as consumer:
        work = asyncio.ensure_future(consumer.process(handle))
        await asyncio.wait_for(handled.wait(), 60)
        await consumer.close()
        await work

    own = {"messaging.system": "kafka", "messaging.consumer.group.name": group, "messaging.client.id": "it"}
    steps = {attributes(span)["allocator.step"]: attributes(span) for span in spans.named("rebalance")}
    assert steps == {
        step: {**own, "allocator.step": step, "allocator.partitions": 2} for step in ("assigned", "revoked")
    }
    fetch = spans.named("fetch")[0]
    assert {**own, "messaging.operation.type": "receive"}.items() <= attributes(fetch).items()
    assert (fetch.kind, fetch.parent) == (trace.SpanKind.CLIENT, None)
    process = spans.one(f"process {topic}")
    assert process.parent is not None
    assert (f"{process.context.trace_id:032x}", f"{process.parent.span_id:016x}") == (TRACE, WRITER)
    assert attributes(process)["messaging.consumer.group.name"] == group
    commit = spans.named("commit")[0]
    expected = {**own, "messaging.operation.type": "settle", "allocator.partitions": 1}
    assert expected.items() <= attributes(commit).items()
    assert commit.parent is not None
    assert commit.parent.span_id == process.context.span_id, "the span of the commit is a child of the call"


async def test_a_consumer_group_creates_spans_too(
    spans: Kept, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1)
    where = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    async with ConsumerGroup(ConsumerGroupConfig(group=group, topics=[topic], **where)) as members:
        generation = await members.next()
        await generation.commit({topic: {0: 0}})
    assert attributes(spans.one("commit"))["messaging.consumer.group.name"] == group
    # a generation starts and ends
    steps = [attributes(span) for span in spans.named("rebalance")]
    assert [(each["allocator.step"], each["allocator.partitions"]) for each in steps] == [
        ("assigned", 1),
        ("revoked", 1),
    ]


async def test_a_commit_that_fails_is_an_error_in_its_span(
    spans: Kept, kafka_cluster: LocalCluster, group: str
) -> None:
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        client.measures.trace(group, "it")
        nowhere = TopicPartition("no-such-topic", 0)
        with pytest.raises(CommitFailed):
            await GroupOffsets(client, group, timeout_s=1.0).commit({nowhere: OffsetAndMetadata(0, "", -1)})
    commit = spans.one("commit")
    assert commit.status.status_code is trace.StatusCode.ERROR
    assert attributes(commit)["error.type"] == "allocator.errors.CommitFailed"


def test_with_masks_a_span_has_the_class_and_the_place_of_an_error_without_its_text(spans: Kept) -> None:
    def broken(each: Any) -> None:
        raise ValueError("card " + "4929")  # the traceback shows this line

    configure_spans(quote_records=False)
    try:
        with pytest.raises(ValueError, match="card 4929"):
            traced(Handler("broken", broken), "billing").call_plain(record())
    finally:
        configure_spans(quote_records=True)
    span = spans.one("process orders")
    assert span.status.description == "ValueError"
    assert "test_tracing.py" in span.to_json()
    assert "card 4929" not in span.to_json()


def test_an_error_of_a_handler_is_recorded_and_raised(spans: Kept) -> None:
    def broken(each: Any) -> None:
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such customer"):
        traced(Handler("broken", broken), "billing").call_plain(record())
    span = spans.one("process orders")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": "billing",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
        "error.type": "ValueError",
    }
    assert (span.kind, span.parent) == (trace.SpanKind.CONSUMER, None)


def test_the_span_of_a_batch_links_to_the_producers_of_its_records(spans: Kept) -> None:
    class Some(list):  # type: ignore[type-arg]
        """As much of a batch as a span needs."""

        topic, partition, base_offset = "orders", 3, 17

    headers = [(("traceparent", f"00-{TRACE}-{number:016x}-01".encode()),) for number in (1, 2)]
    begin = handling()
    assert begin is not None
    with begin(Some([record(*headers[0]), record(), record(*headers[1]), record(("traceparent", b"rubbish"))])):
        pass
    span = spans.one("process orders")
    assert span.parent is None
    assert [f"{link.context.span_id:x}" for link in span.links] == ["1", "2"]
    assert attributes(span)["messaging.batch.message_count"] == 4


def test_without_a_provider_no_span_is_created() -> None:
    def plain(each: Any) -> None:
        """Does nothing."""

    handler = Handler("plain", plain)
    assert traced(handler, "billing") is handler
    measures = Measures()
    measures.trace("billing", "it")
    assert measures.span("fetch", partitions=1) is measures.span("commit")
    assert handling("billing") is None


def test_opentelemetry_is_not_imported_by_default() -> None:
    code = "import sys, allocator.cli, allocator, allocator.daemon.process; from allocator import Consumer; "
    code += "from allocator.core.telemetry.tracing import handling; handling(); "
    code += "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)
