"""How records are handled: the values of `HANDLING`, from keywords or a file, made into the parts of a processor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from allocator.core.consumer import ConsumerCore
from allocator.core.settings import keyword_faults
from allocator.errors import ConfigError
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.handlers.handlers import Handler, is_coroutine, traced
from allocator.handlers.policy import ErrorPolicy, Retries, load_errors
from allocator.handlers.processor import ProcessSettings
from allocator.handlers.retry_topics import RetryTopics
from allocator.handlers.settings import HANDLING
from allocator.handlers.subprocesses import check_picklable
from allocator.types import Record

_ERRORS = ("retry_on", "dead_letter_on", "skip_on", "stop_on")
_RETRIES = ("retries", "retry_backoff_s", "retry_backoff_max_s", "retry_limit_s")
P = TypeVar("P")
Deserialize = Callable[[Record], Record]


@dataclass(frozen=True)
class Handling:
    """The values of `HANDLING`, made into what a `Processor` takes."""

    settings: ProcessSettings
    dead_letter_topic: Optional[str]
    retry_topics: Optional[Sequence[str]]
    create_retry_topics: bool

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "") -> Handling:
        """`values`: all of `HANDLING` by name, each checked; error classes may be names.

        Raises ConfigError for an error class that does not exist or is in two lists. It begins with `where`.
        """
        errors = {name: _classes(values[name], where + name) for name in _ERRORS}
        names = ProcessSettings.__dataclass_fields__.keys() & values.keys() - {"retries"}
        return cls(
            ProcessSettings(
                retries=Retries(*(values[name] for name in _RETRIES)),
                policy=ErrorPolicy.of(**errors),
                **{name: values[name] for name in names},
            ),
            values["dead_letter_topic"],
            values["retry_topics"],
            values["create_retry_topics"],
        )

    def prepared(self, handler: Handler, group: str | None) -> Handler:
        """Returns the handler to call, with spans around its calls. Raises ConfigError if processes cannot run it."""
        if self.settings.workers != "processes":
            return traced(handler, group or "")
        if handler.on_loop:
            raise ConfigError(
                f"workers = 'processes': handler {handler.name!r} is a coroutine, which runs on the loop; leave "
                "workers out"
            )
        check_picklable(handler.function, handler.name)
        return handler

    def processor(
        self,
        kind: Callable[..., P],
        handler: Handler,
        group: str,
        brokers: str,
        security: Mapping[str, Any] | None,
        topics: Sequence[str],
        pattern: str | None,
    ) -> P:
        """Creates a `Processor` for a group that reads these topics, with the further topics on the same cluster."""
        letters = later = None
        if self.dead_letter_topic is not None:
            letters = DeadLetterTopic(self.dead_letter_topic, brokers, group, security=security)
        if self.retry_topics is not None:
            later = RetryTopics.of(
                group,
                self.retry_topics,
                brokers,
                security=security,
                topics=topics,
                pattern=pattern,
                create_topics=self.create_retry_topics,
            )
        return kind(handler, self.settings, dead_letters=letters, retry_topics=later)


def _classes(errors: Any, where: str) -> Any:
    names = errors is not None and not isinstance(errors, type) and all(isinstance(each, str) for each in errors)
    return load_errors(errors, where) if names else errors


def given_in_python(
    function: Callable[[Record], Any], deserialize: Deserialize | None, values: Mapping[str, Any], engine: ConsumerCore
) -> tuple[Handler, Handling]:
    """The arguments of a call of `Consumer.process`. Raises ConfigError that lists every fault."""
    _check(function, deserialize, values)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if deserialize is not None:
        function = _deserializing(function, deserialize)
    delays, topic, joining = values["retry_topics"], values["dead_letter_topic"], engine.joining
    if delays is not None:
        why = retry_fault(topic, joining.membership, sink=engine.sink is not None)
        if why is not None:
            raise ConfigError(f"retry_topics: {why}")
        if not (joining.topics or joining.pattern):
            raise ConfigError("retry_topics needs a consumer that subscribes to topics")
        delays = HANDLING["retry_topics"].kind.read(delays)
    handling = Handling.of({**values, "retry_topics": delays})
    if handling.settings.policy.needs_dead_letters and topic is None:
        raise ConfigError("dead_letter_on needs a dead_letter_topic")
    return handling.prepared(Handler(name, function), engine.group), handling


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
