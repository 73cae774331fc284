"""The arguments of `Consumer.process`, checked and made into a handler with its settings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from allocator.core.consumer import ConsumerCore
from allocator.core.settings import keyword_faults
from allocator.errors import ConfigError
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.handlers import Handler, is_coroutine, traced
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.processor import ProcessSettings
from allocator.handlers.retry_topics import RetryTopics
from allocator.handlers.settings import HANDLING
from allocator.handlers.subprocesses import check_picklable
from allocator.types import Record

_ERRORS = ("retry_on", "dead_letter_on", "skip_on", "stop_on")
Deserialize = Callable[[Record], Record]


def processor(
    function: Callable[[Record], Any], deserialize: Deserialize | None, group: str | None, given: Mapping[str, Any]
) -> tuple[Handler, ProcessSettings]:
    """The arguments of a call of `Consumer.process`. Raises ConfigError that lists every fault."""
    _check(function, deserialize, given)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if deserialize is not None:
        function = _deserializing(function, deserialize)
    handler = Handler(name, function)
    retries = Retries(given["retries"], given["retry_backoff_s"], given["retry_backoff_max_s"], given["retry_limit_s"])
    policy = ErrorPolicy.of(**{each: given[each] for each in _ERRORS})
    if policy.needs_dead_letters and given["dead_letter_topic"] is None:
        raise ConfigError("dead_letter_on needs a dead_letter_topic")
    names = ProcessSettings.__dataclass_fields__.keys() & given.keys() - {"retries"}
    settings = ProcessSettings(retries=retries, policy=policy, **{name: given[name] for name in names})
    if settings.workers == "processes":
        if handler.on_loop:
            raise ConfigError(f"handler {name!r} is a coroutine, which runs on the loop; leave workers out")
        check_picklable(handler.function, name)
        return handler, settings
    return traced(handler, group or ""), settings


def _check(function: Any, deserialize: Deserialize | None, given: Mapping[str, Any]) -> None:
    if not callable(function):
        raise TypeError(f"a handler is a function or a coroutine function, not {function!r}")
    values = {name: value for name, value in given.items() if name not in _ERRORS}
    faults = keyword_faults(values, **{name: each.kind for name, each in HANDLING.items()})
    for name, value in values.items():
        if value is None and not HANDLING[name].accepts_none():
            faults[name] = f"{name} = None: must be {HANDLING[name].kind.allowed}"
    if given["workers"] == "processes" and deserialize is not None:
        faults["workers"] = "workers = 'processes': deserializers stay in this process; call them in the handler"
    if faults:
        raise ConfigError("; ".join(faults.values()))


def _deserializing(function: Callable[[Record], Any], deserialize: Deserialize) -> Callable[[Record], Any]:
    """Deserializes copies, because retries and dead letters need the original record."""
    if is_coroutine(function):

        async def call(record: Record) -> Any:
            return await function(deserialize(copy.copy(record)))

        return call
    return lambda record: function(deserialize(copy.copy(record)))


def retry_topics(given: Mapping[str, Any], engine: ConsumerCore) -> RetryTopics | None:
    """Creates the `RetryTopics` of a call, on the cluster of the consumer. Raises ConfigError."""
    delays = given["retry_topics"]
    if delays is None:
        return None
    joining = engine.joining
    why = retry_fault(given["dead_letter_topic"], joining.membership, sink=engine.sink is not None)
    if why is not None:
        raise ConfigError(f"retry_topics: {why}")
    if not (joining.topics or joining.pattern):
        raise ConfigError("retry_topics needs a consumer that subscribes to topics")
    return RetryTopics.of(
        engine.group or "",
        HANDLING["retry_topics"].kind.read(delays),
        engine.brokers,
        security=engine.security,
        topics=joining.topics,
        pattern=joining.pattern,
        create_topics=given["create_retry_topics"],
    )


def retry_fault(dead_letter_topic: str | None, membership: str, *, sink: bool, by_batch: bool = False) -> str | None:
    """Why the other settings exclude retry topics."""
    if dead_letter_topic is None:
        return "a dead-letter topic is needed, for records that fail after the last delay"
    if membership not in ("zookeeper", "kafka"):
        return f"members of {membership!r} cannot share retry topics; use 'zookeeper' or 'kafka'"
    if sink:
        return "a sink takes the records of a partition in order, and records in retry topics are overtaken"
    if by_batch:
        return "a batch has records of several fates; use mode record"
    return None


def dead_letters(topic: str | None, engine: ConsumerCore) -> DeadLetterTopic | None:
    """Creates the `DeadLetterTopic` of a call, on the cluster of the consumer."""
    if topic is None:
        return None
    return DeadLetterTopic(topic, engine.brokers, engine.group or "", security=engine.security)
