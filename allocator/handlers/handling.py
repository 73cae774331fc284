"""Converts the settings of `HANDLING`, from keywords or a file, into the form that a `Processor` uses."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from allocator.core.consumer import GroupMember
from allocator.core.settings import keyword_faults
from allocator.errors import ConfigError
from allocator.handlers.handlers import Handler, preparing, traced
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.settings import HANDLING, HANDLING_DEFAULT
from allocator.types import Record

_ERRORS = ("retry_on", "dead_letter_on", "skip_on", "stop_on")
_RETRIES = ("retries", "retry_backoff_s", "retry_backoff_max_s", "retry_limit_s")
Deserialize = Callable[[Record], Record]


@dataclass(frozen=True)
class Handling:
    """Values of `HANDLING`. `retries` and `policy` hold the settings for retries and error classes."""

    ordering: str = HANDLING_DEFAULT["ordering"]
    concurrency: int = HANDLING_DEFAULT["concurrency"]
    workers: str = HANDLING_DEFAULT["workers"]
    in_hand_bytes: int = HANDLING_DEFAULT["in_hand_bytes"]
    retries: Retries = field(default_factory=Retries)
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    retry_topics: Optional[Sequence[str]] = None
    create_retry_topics: bool = False
    dead_letter_topic: Optional[str] = None
    results: str = HANDLING_DEFAULT["results"]
    drain_timeout_s: float = HANDLING_DEFAULT["drain_timeout_s"]
    commit_interval_s: float = HANDLING_DEFAULT["commit_interval_s"]
    in_hand_records: int = 2000
    """Maximum number of unfinished records of one partition; not a setting. Higher: more keys are handled at the same
    time, and more memory is used; lower: a key with many consecutive records delays other keys."""

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "") -> Handling:
        """Creates it from the checked values of all settings. `values`: name of the setting -> value.

        Raises ConfigError, whose text starts with `where`, if an error class does not exist or is in two lists.
        """
        return cls(
            retries=Retries(*(values[name] for name in _RETRIES)),
            policy=ErrorPolicy.of(where, **{name: values[name] for name in _ERRORS}),
            **{name: values[name] for name in cls.__dataclass_fields__.keys() & values.keys() - {"retries"}},
        )

    def prepared(self, handler: Handler, group: str | None) -> Handler:
        """Returns the handler with a span around each call. Raises ConfigError if processes cannot run it."""
        if self.workers != "processes":
            return traced(handler, group or "")
        if handler.on_loop:
            raise ConfigError(
                f"workers = 'processes': handler {handler.name!r} is a coroutine, which runs on the loop; leave "
                "workers out"
            )
        from allocator.handlers.subprocesses import check_picklable

        check_picklable(handler.function, handler.name)
        return handler


def contradictions(
    values: Mapping[str, Any],
    *,
    group: str | None,
    topics: Collection[str],
    pattern: str | None,
    membership: str,
    sink: bool,
    by_batch: bool = False,
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the names of settings that contradict each other or the consumer's settings, with the reason."""
    topic = values["dead_letter_topic"]
    if topic is not None and topic in topics:
        yield ("dead_letter_topic", "topics"), "dead letters would be consumed again"
    if topic is not None and pattern is not None and re.match(pattern, topic):
        yield ("dead_letter_topic", "pattern"), "dead letters would be consumed again"
    if values["retry_backoff_s"] > values["retry_backoff_max_s"]:
        yield ("retry_backoff_s", "retry_backoff_max_s"), "the first delay exceeds the maximum"
    if values["dead_letter_on"] is not None and topic is None:
        yield ("dead_letter_on", "dead_letter_topic"), "dead letters need a topic"
    if values["ordering"] != "partition":
        if sink:
            yield ("sink", "ordering"), 'a sink needs the records of a partition in order; use ordering "partition"'
        if by_batch:
            yield ("mode", "ordering"), "a batch has records of many keys; use mode record"
    if sink and values["workers"] == "processes":
        why = 'each process would have a sink of its own, which owns no partition; use workers "threads"'
        yield ("sink", "workers"), why
    if values["results"] == "exactly-once":
        if sink:
            yield ("sink", "results"), "the offset is in the sink, so it cannot be committed with results in Kafka"
        if values["retry_topics"] is not None:
            yield ("retry_topics", "results"), "a record may come into a retry topic twice, and so have two results"
    if values["retry_topics"] is not None:
        if topic is None:
            yield ("retry_topics",), "a dead-letter topic is needed, for records that fail after the last delay"
        elif membership not in ("zookeeper", "kafka"):
            why = f"members of {membership!r} cannot share retry topics; use 'zookeeper' or 'kafka'"
            yield ("retry_topics",), why
        elif sink:
            why = "a sink needs the records of a partition in order, but later records overtake those in retry topics"
            yield ("retry_topics",), why
        elif by_batch:
            yield ("retry_topics",), "a batch cannot be split into done and failed records; use mode record"
        yield from _of_retry_topics(values["retry_topics"], group or "", {*topics, topic})


def _of_retry_topics(delays: Sequence[str], group: str, taken: set[Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    from allocator.handlers.retry_topics import RetryPlan

    try:
        plan = RetryPlan.of(group, delays)
    except ConfigError as error:
        yield ("retry_topics", "group"), str(error)
        return
    for name in plan.topics:
        if name in taken:
            yield ("retry_topics",), f"{name!r} is a retry topic; leave it out of the other settings"


def given_in_python(
    function: Callable[[Record], Any], deserialize: Deserialize | None, values: Mapping[str, Any], core: GroupMember
) -> tuple[Handler, Handling]:
    """Returns the handler and settings of a call of `Consumer.process`. Raises ConfigError that lists every fault."""
    if not callable(function):
        raise TypeError(f"a handler is a function or a coroutine function, not {function!r}")
    delays, joining = values["retry_topics"], core.choice.config
    faults = list(keyword_faults({name: values[name] for name in HANDLING if name not in _ERRORS}, HANDLING).values())
    if values["workers"] == "processes" and deserialize is not None:
        faults.append("workers = 'processes': deserializers cannot run in other processes; call them in the handler")
    if not faults:
        if delays is not None:
            delays = HANDLING["retry_topics"].kind.read(delays)
            values = {**values, "retry_topics": delays}
        found = contradictions(
            values,
            group=joining.group,
            topics=joining.topics,
            pattern=joining.pattern,
            membership=joining.membership,
            sink=core.sink is not None,
        )
        faults += (f"{' with '.join(names)}: {why}" for names, why in found)
    if delays is not None and not (joining.topics or joining.pattern):
        faults.append("retry_topics: the consumer must subscribe to topics; it reads single partitions")
    if faults:
        raise ConfigError("; ".join(faults))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    handler = Handler(name, function)
    if deserialize is not None:
        # deserialize a copy, because retries and dead letters need the original record
        prepared = preparing(function, lambda record: deserialize(copy.copy(record)))
        handler = replace(handler, function=prepared)
    handling = Handling.of(values)
    return handling.prepared(handler, core.group), handling
