"""Spans for OpenTelemetry: of fetches, handler calls, commits and rebalances.

Nothing has to be switched on: spans are made where the process has a tracer provider when a consumer starts, as
`opentelemetry-instrument` and OpenTelemetry's SDK set one. Who has none pays for a comparison with None at each request
and for nothing at each record, since this never imports OpenTelemetry by itself; `zk-partition-allocator[otel]` brings
the SDK.
Names and attributes are those of its conventions for messaging, and `allocator.*` where they have none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Optional

__all__ = ["handling"]

OPERATIONS = {"fetch": "receive", "commit": "settle"}  # what the conventions call them
# a commit belongs to what asks for it; the others go on in the background, whatever was current when they were started
BACKGROUND = frozenset({"fetch", "rebalance"})
Begin = Callable[[str, Mapping[str, Any]], AbstractContextManager[Any]]


def wanted() -> bool:
    """Whether the process has a tracer provider."""
    return _tracer() is not None


def spans_of(group: str | None, client_id: str) -> Optional[Begin]:
    """What begins the spans of one consumer, given their kind and what they are about; None: nobody wants any."""
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
    """A span of the work on a record or a batch, `process <topic>`; nothing where nobody wants spans.

    The spans that the block makes are its children. It is itself a child of the span in which the record was written,
    if its headers name one (W3C Trace Context, as every OpenTelemetry producer writes it); a batch stands alone. An
    exception that leaves the block is noted and goes on.
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
    """The context that the headers carry."""
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
