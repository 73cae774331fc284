"""Spans for OpenTelemetry: of fetches, handler calls, commits and rebalances.

There is no setting: a consumer creates spans if the process has a tracer provider when it starts, for example from
`opentelemetry-instrument` or OpenTelemetry's SDK (`zk-partition-allocator[otel]`). Without one, the cost is a
comparison with None for each request, and nothing for each record; this module does not import OpenTelemetry then.
Names and attributes follow its conventions for messaging; other attributes are `allocator.*`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Optional

__all__ = ["handling"]

OPERATIONS = {"fetch": "receive", "commit": "settle"}  # names in the conventions
# a commit belongs to the span of its caller; the others run in the background, so the current span does not matter
BACKGROUND = frozenset({"fetch", "rebalance"})
Begin = Callable[[str, Mapping[str, Any]], AbstractContextManager[Any]]


def wanted() -> bool:
    """Whether the process has a tracer provider."""
    return _tracer() is not None


def spans_of(group: str | None, client_id: str) -> Optional[Begin]:
    """A function that starts spans of one consumer, from kind and attributes; None: tracing is off."""
    tracer = _tracer()
    if tracer is None:
        return None
    who = _who(group, client_id)
    trace, no_context = sys.modules["opentelemetry.trace"], _no_context()

    def begin(what: str, about: Mapping[str, Any]) -> AbstractContextManager[Any]:
        attributes = {**who, **{f"allocator.{name}": value for name, value in about.items()}}
        kind = trace.SpanKind.INTERNAL
        if what in OPERATIONS:
            kind = trace.SpanKind.CLIENT
            attributes["messaging.operation.type"], attributes["messaging.operation.name"] = OPERATIONS[what], what
        context = no_context if what in BACKGROUND else None
        span: AbstractContextManager[Any] = tracer.start_as_current_span(what, context, kind, attributes)
        return span

    return begin


@contextlib.contextmanager
def handling(argument: Any, group: str | None = None) -> Iterator[None]:
    """A span `process <topic>` around the work on a record or a batch; nothing if tracing is off.

    Spans of the block are its children. The span of a record is a child of its producer's span, if the headers name one
    (W3C Trace Context, as OpenTelemetry producers write it); the span of a batch has no parent. An exception of the
    block is recorded and raised.
    """
    tracer = _tracer()
    if tracer is None:
        yield
        return
    with _process(tracer, argument, group):
        yield


def _process(tracer: Any, argument: Any, group: str | None) -> AbstractContextManager[Any]:
    trace, context = sys.modules["opentelemetry.trace"], _no_context()
    attributes = {
        **_who(group),
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": argument.topic,
        "messaging.destination.partition.id": str(argument.partition),
    }
    if hasattr(argument, "offset"):
        attributes["messaging.kafka.offset"] = argument.offset
        if argument.headers:
            context = _written_in(argument.headers, context)
    else:
        attributes["messaging.kafka.offset"] = argument.base_offset
        attributes["messaging.batch.message_count"] = len(argument)
    name = f"process {argument.topic}"
    span: AbstractContextManager[Any] = tracer.start_as_current_span(name, context, trace.SpanKind.CONSUMER, attributes)
    return span


def _written_in(headers: Sequence[tuple[str, Optional[bytes]]], context: Any) -> Any:
    """The trace context in the headers."""
    from opentelemetry import propagate

    carrier = {name: value.decode("latin-1") for name, value in headers if value is not None}
    return propagate.extract(carrier, context)


def _tracer() -> Any:
    """None if the process has no tracer provider."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return _tracer_of(provider)


@lru_cache(maxsize=1)
def _tracer_of(provider: Any) -> Any:
    return provider.get_tracer("allocator")


def _no_context() -> Any:
    return sys.modules["opentelemetry.context"].Context()


def _who(group: str | None, client_id: str | None = None) -> dict[str, Any]:
    found = {"messaging.system": "kafka"}
    if group is not None:
        found["messaging.consumer.group.name"] = group
    if client_id is not None:
        found["messaging.client.id"] = client_id
    return found
