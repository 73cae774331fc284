"""Creates OpenTelemetry spans of fetches, handler calls, commits and rebalances.

A consumer creates spans if the process has a tracer provider when it starts, for example from
`opentelemetry-instrument` or OpenTelemetry's SDK (`zk-partition-allocator[otel]`). Otherwise this module does not
import OpenTelemetry, and tracing costs nothing for each record. Names and attributes follow OpenTelemetry's conventions
for messaging; other attributes are `allocator.*`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, Optional

from allocator.core.text.quoting import places_of, text_of

OPERATIONS = {"fetch": "receive", "commit": "settle"}  # kind of span -> `messaging.operation.type`
# kinds of span without a parent; the span of a commit is a child of its caller's span
BACKGROUND = frozenset({"fetch", "rebalance"})
LINKED = 128  # records of a batch that its span links to, as OpenTelemetry's SDK keeps no more
_quote_records = True
Begin = Callable[[str, Mapping[str, Any]], AbstractContextManager[Any]]


def configure_spans(*, quote_records: bool) -> None:
    """With `quote_records` False, spans of this process have the class and the place of an error, but not its text."""
    global _quote_records
    _quote_records = quote_records


def spans_of(group: str | None, client_id: str) -> Optional[Begin]:
    """Returns a function that starts a span of the consumer from its kind and attributes; None: tracing is off."""
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
        return _span(tracer, what, no_context if what in BACKGROUND else None, kind, attributes)

    return begin


def handling(group: str | None = None) -> Optional[Callable[[Any], AbstractContextManager[Any]]]:
    """Returns a function that starts a span `process <topic>` for a record or a batch; None: tracing is off.

    The span of a record is a child of its producer's span, if the headers name one (W3C Trace Context, as OpenTelemetry
    producers write it). The span of a batch has no parent, and links to the producers' spans of its first records. An
    exception of the block is recorded and raised.
    """
    tracer = _tracer()
    return None if tracer is None else partial(_process, tracer, group)


def _process(tracer: Any, group: str | None, argument: Any) -> AbstractContextManager[Any]:
    trace, context = sys.modules["opentelemetry.trace"], _no_context()
    attributes = {
        **_who(group),
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": argument.topic,
        "messaging.destination.partition.id": str(argument.partition),
    }
    links = []
    if hasattr(argument, "offset"):
        attributes["messaging.kafka.offset"] = argument.offset
        if argument.headers:
            context = _written_in(argument.headers, context)
    else:
        attributes["messaging.kafka.offset"] = argument.base_offset
        attributes["messaging.batch.message_count"] = len(argument)
        # raw: a deserializer may raise, and the handler must get that error
        records = argument.raw() if hasattr(argument, "raw") else argument
        links = list(_producers(islice(records, LINKED), context))
    return _span(tracer, f"process {argument.topic}", context, trace.SpanKind.CONSUMER, attributes, links)


@contextlib.contextmanager
def _span(
    tracer: Any, name: str, context: Any, kind: Any, attributes: Mapping[str, Any], links: Sequence[Any] = ()
) -> Iterator[Any]:
    trace = sys.modules["opentelemetry.trace"]
    # if `__str__` of the error fails, the SDK would raise that failure instead of the error
    ours = {"record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(name, context, kind, attributes, links, **ours) as span:
        try:
            yield span
        except Exception as error:
            module, name = type(error).__module__, type(error).__qualname__
            span.set_attribute("error.type", name if module == "builtins" else f"{module}.{name}")
            status = type(error).__name__
            if _quote_records:
                with contextlib.suppress(Exception):
                    span.record_exception(error)
                status += f": {text_of(error)}"
            else:
                place = {"exception.type": status, "exception.stacktrace": places_of(error)}
                span.add_event("exception", place)
            span.set_status(trace.Status(trace.StatusCode.ERROR, status))
            raise


def _producers(records: Iterable[Any], context: Any) -> Iterator[Any]:
    """Yields a link for each record whose headers name a span."""
    trace = sys.modules["opentelemetry.trace"]
    for record in records:
        if record.headers:
            found = trace.get_current_span(_written_in(record.headers, context)).get_span_context()
            if found.is_valid:
                yield trace.Link(found)


def _written_in(headers: Sequence[tuple[str, Optional[bytes]]], context: Any) -> Any:
    """Returns the trace context in the headers."""
    from opentelemetry import propagate

    carrier = {name: value.decode("latin-1") for name, value in headers if value is not None}
    return propagate.extract(carrier, context)


def _tracer() -> Any:
    """Returns the tracer of this library; None if the process has no tracer provider."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
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
