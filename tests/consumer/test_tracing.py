"""Spans for OpenTelemetry, by the SDK's in-memory exporter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from joining import joined
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from allocator import Consumer, ConsumerGroup, ConsumerGroupConfig
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.record import Record
from allocator.core.telemetry.measures import Measures
from allocator.core.telemetry.tracing import handling
from allocator.errors import CommitFailed
from allocator.handlers.handlers import Handler, traced
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import OffsetAndMetadata, TopicPartition

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


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def handled(argument: Any, group: str | None = None) -> AbstractContextManager[Any]:
    """A span around the work on a record or a batch."""
    begin = handling(group)
    assert begin is not None
    return begin(argument)


def record(*headers: tuple[str, bytes]) -> Record:
    return Record("orders", 3, 17, 0, None, b"key", b"value", list(headers))


async def test_a_consumer_makes_spans_of_fetches_commits_and_rebalances(
    spans: Kept, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(2)
    written = f"00-{TRACE}-{WRITER}-01".encode()
    produce(kafka_cluster.bootstrap, topic, [ProducedRecord(None, b"one", 0, headers=[("traceparent", written)])])
    where = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    async with Consumer(topic, **joined(**where, group=group, client_id="it", max_wait_s=0.1)) as consumer:
        with spans.provider.get_tracer("test").start_as_current_span("work") as work:
            batch = await consumer.getbatch(30)
            assert batch is not None
            for each in batch:
                with handled(each, group):
                    pass
            await consumer.commit()

    own = {"messaging.system": "kafka", "messaging.consumer.group.name": group, "messaging.client.id": "it"}
    steps = {about(span)["allocator.step"]: about(span) for span in spans.named("rebalance")}
    assert steps == {
        step: {**own, "allocator.step": step, "allocator.partitions": 2} for step in ("assigned", "revoked")
    }
    fetch = spans.named("fetch")[0]
    assert {**own, "messaging.operation.type": "receive"}.items() <= about(fetch).items()
    assert (fetch.kind, fetch.parent) == (trace.SpanKind.CLIENT, None)
    commit = spans.named("commit")[0]
    assert {**own, "messaging.operation.type": "settle", "allocator.partitions": 1}.items() <= about(commit).items()
    assert commit.parent is not None
    assert commit.parent.span_id == work.get_span_context().span_id, "the span of the commit is a child of the work"
    process = spans.one(f"process {topic}")
    assert process.parent is not None
    assert (f"{process.context.trace_id:032x}", f"{process.parent.span_id:016x}") == (TRACE, WRITER)


async def test_a_consumer_group_makes_spans_too(
    spans: Kept, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1)
    where = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    async with ConsumerGroup(ConsumerGroupConfig(group=group, topics=[topic], **where)) as members:
        generation = await members.next()
        await generation.commit({topic: {0: 0}})
    assert about(spans.one("commit"))["messaging.consumer.group.name"] == group
    # the generation begins, and its functions are waited for when it ends
    told = [(about(span)["allocator.step"], about(span)["allocator.partitions"]) for span in spans.named("rebalance")]
    assert told == [("assigned", 1), ("revoked", 1)]


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
    assert about(commit)["error.type"] == "allocator.errors.CommitFailed"


async def test_a_handler_runs_in_a_span_and_what_it_makes_are_children(spans: Kept) -> None:
    def plain(each: Any) -> None:
        with spans.provider.get_tracer("test").start_as_current_span("query"):
            pass

    traced(Handler("plain", plain), "billing").call_plain(record())
    process, query = spans.one("process orders"), spans.one("query")
    assert query.parent is not None
    assert query.parent.span_id == process.context.span_id
    assert about(process) == {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": "billing",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
    }
    assert (process.kind, process.parent) == (trace.SpanKind.CONSUMER, None)


def test_what_a_handler_raises_is_noted_and_goes_on(spans: Kept) -> None:
    def broken(each: Any) -> None:
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such customer"):
        traced(Handler("broken", broken), "billing").call_plain(record())
    span = spans.one("process orders")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert about(span)["error.type"] == "ValueError"


def test_the_span_of_a_batch_links_to_the_producers_of_its_records(spans: Kept) -> None:
    class Some(list):  # type: ignore[type-arg]
        """As much of a batch as a span needs."""

        topic, partition, base_offset = "orders", 3, 17

    headers = [(("traceparent", f"00-{TRACE}-{number:016x}-01".encode()),) for number in (1, 2)]
    with handled(Some([record(*headers[0]), record(), record(*headers[1]), record(("traceparent", b"rubbish"))])):
        pass
    span = spans.one("process orders")
    assert span.parent is None
    assert [f"{link.context.span_id:x}" for link in span.links] == ["1", "2"]
    assert about(span)["messaging.batch.message_count"] == 4


def test_without_a_provider_there_is_nothing_between() -> None:
    def plain(each: Any) -> None:
        """Does nothing."""

    handler = Handler("plain", plain)
    assert traced(handler, "billing") is handler
    measures = Measures()
    measures.trace("billing", "it")
    assert measures.span("fetch", partitions=1) is measures.span("commit")
    assert handling("billing") is None


def test_nobody_who_does_not_want_it_loads_it() -> None:
    code = "import sys, allocator.cli, allocator, allocator.daemon.process; from allocator import Consumer; "
    code += "from allocator.core.telemetry.tracing import handling; handling(); "
    code += "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)
